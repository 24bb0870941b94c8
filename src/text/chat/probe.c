#include "text/chat/probe.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/jinja.h"

/* Texts that no template writes itself. */
static const char ANSWER[] = "ok \x1a ok", THOUGHT[] = "so \x1a so";

static int fail_memory(struct moeflux_err *e)
{
    return err_set(e, ERR_MEMORY, "out of memory for a prompt");
}

/* A short conversation: a question; answer: and its answer (NULL: none); thought: with thinking (NULL:
 * none); again: and another question. */
struct probe {
    const char *answer, *thought;
    bool again;
};

static int render_probe(const struct chat *c, struct probe probe, struct chat_text *out,
                        struct moeflux_err *e)
{
    json_t *messages = json_array(), *thought = probe.thought ? json_string(probe.thought) : NULL;
    struct chat_prompt p = {.messages = messages, .opens_answer = !probe.answer || probe.again};
    int rc = messages ? chat_say(messages, "user", "a", 1, NULL, e) : fail_memory(e);
    if (rc == 0 && probe.answer)
        rc = chat_say(messages, "assistant", probe.answer, strlen(probe.answer), NULL, e);
    if (rc == 0 && thought && json_object_set(json_array_get(messages, 1), "reasoning_content", thought) < 0)
        rc = fail_memory(e);
    if (rc == 0 && probe.again)
        rc = chat_say(messages, "user", "b", 1, NULL, e);
    if (rc == 0)
        rc = chat_render(c, &p, out, e);
    json_decref(thought);
    json_decref(messages);
    return rc;
}

static int set_switches(struct chat *c, enum chat_thinking thinking, const char *effort,
                        struct moeflux_err *e)
{
    static const char *const efforts[] = {"reasoning_effort", "thinking_effort"};
    int on = thinking == CHAT_THINKING_ON;
    json_decref(c->switches);
    /* Templates know one of these variables. */
    c->switches = thinking == CHAT_THINKING_AUTO
                      ? json_object()
                      : json_pack("{s:b, s:b, s:s}", "enable_thinking", on, "thinking", on, "thinking_mode",
                                  on ? "enabled" : "disabled");
    for (size_t i = 0; effort && i < sizeof efforts / sizeof *efforts; i++)
        if (json_object_set_new(c->switches, efforts[i], json_string(effort)) < 0)
            return fail_memory(e);
    return c->switches ? 0 : fail_memory(e);
}

static bool ends_with(const struct chat_text *t, const char *tag)
{
    size_t n = t->text.len, len = strlen(tag);
    while (n > 0 && strchr(" \n\t\r", t->text.data[n - 1]))
        n--;
    return n >= len && memcmp(t->text.data + n - len, tag, len) == 0 &&
           t->authors.data[n - 1] == JINJA_TEMPLATE;
}

/* Counts the tokens at the end of a question's prompt that the next question's prompt does not have,
 * because the template leaves out old thinking. */
static int find_opening(struct chat *c, const struct chat_text *prompt, bool thinks, struct moeflux_err *e)
{
    struct chat_text next = {0};
    struct token_list tokens = {0};
    struct moeflux_err refused;
    uint32_t n_kept;
    /* A template may accept only one question; it says so if asked a second one. */
    if (render_probe(c, (struct probe){"ok", thinks ? THOUGHT : NULL, true}, &next, &refused) < 0)
        return 0;
    size_t n = prompt->text.len;
    bool stays = next.text.len >= n && memcmp(next.text.data, str_text(&prompt->text), n) == 0 &&
                 (!thinks || strstr(str_text(&next.text), THOUGHT));
    int rc = stays ? 0 : chat_encode(c, prompt, 0, &tokens, e);
    size_t n_tokens = tokens.n;
    if (rc == 0 && !stays)
        rc = chat_extend(c, &next, NULL, 0, &tokens, &n_kept, e);
    if (rc == 0 && !stays)
        c->n_opening = (uint32_t)n_tokens - n_kept;
    token_list_free(&tokens);
    chat_text_free(&next);
    return rc;
}

/* Models of this form think before every answer. Fills prompt_end and frees the texts. */
static int harmony_thinking(struct chat *c, struct chat_text *prompt, struct chat_text *other,
                            enum chat_thinking thinking, struct moeflux_err *e)
{
    size_t n = prompt->text.len, most = sizeof c->prompt_end - 1, from = n > most ? n - most : 0;
    memcpy(c->prompt_end, str_text(&prompt->text) + from, n - from);
    c->prompt_end[n - from] = '\0';
    chat_text_free(prompt);
    chat_text_free(other);
    if (thinking != CHAT_THINKING_OFF)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "chat template: the model's always thinks (leave `thinking off` out)");
}

int probe_thinking(struct chat *c, struct moeflux_err *e)
{
    struct chat_text as_asked = {0}, other = {0};
    enum chat_thinking thinking = c->thinking,
                       opposite = thinking == CHAT_THINKING_ON ? CHAT_THINKING_OFF : CHAT_THINKING_ON;
    int rc = set_switches(c, opposite, c->effort_word, e);
    if (rc == 0)
        rc = render_probe(c, (struct probe){0}, &other, e);
    if (rc == 0)
        rc = set_switches(c, thinking, c->effort_word, e);
    if (rc == 0)
        rc = render_probe(c, (struct probe){0}, &as_asked, e);
    if (rc == 0 && c->harmony.is_used)
        return harmony_thinking(c, &as_asked, &other, thinking, e);
    bool switches = rc == 0 && strcmp(str_text(&as_asked.text), str_text(&other.text)) != 0;
    c->opens_inside = rc == 0 && ends_with(&as_asked, c->tags->open);
    c->may_open = rc == 0 && switches && thinking != CHAT_THINKING_OFF && c->think_open >= 0 &&
                  !c->opens_inside && !ends_with(&as_asked, c->tags->close);
    if (rc == 0)
        rc = find_opening(c, &as_asked, c->opens_inside || (switches && thinking != CHAT_THINKING_OFF), e);
    chat_text_free(&as_asked);
    chat_text_free(&other);
    if (rc == 0 && thinking == CHAT_THINKING_ON && !switches && !c->opens_inside)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "chat template: the model's has no thinking (leave `thinking on` out)");
    if (rc == 0 && thinking == CHAT_THINKING_OFF && !switches && c->opens_inside)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "chat template: the model's always thinks (leave `thinking off` out)");
    return rc;
}

int probe_tail(struct chat *c, struct moeflux_err *e)
{
    struct chat_text text = {0};
    int rc = render_probe(c, (struct probe){.answer = ANSWER}, &text, e);
    const char *at = rc == 0 ? strstr(str_text(&text.text), ANSWER) : NULL;
    if (rc == 0 && !at)
        rc = err_set(e, ERR_UNSUPPORTED, "chat template: it does not repeat the text of an answer");
    if (rc == 0)
        rc = chat_encode(c, &text, (size_t)(at - text.text.data) + sizeof ANSWER - 1, &c->tail, e);
    c->turn_close = -1;
    for (size_t i = c->tail.n; i-- > 0;)
        if (tokenizer_is_added(c->tokenizer, c->tail.ids[i]) && !c->sections.is_used)
            c->turn_close = c->tail.ids[i];
    if (c->sections.is_used) /* sections end before it */
        c->turn_close = c->sections.end;
    chat_text_free(&text);
    return rc;
}

/* Appends bytes from..to of a text. */
static void add_part(const struct chat_text *text, size_t from, size_t to, struct chat_text *out)
{
    str_add(&out->text, str_text(&text->text) + from, to - from);
    str_add(&out->authors, str_text(&text->authors) + from, to - from);
}

int probe_between(const struct chat *c, struct chat_text *out, bool *found, struct moeflux_err *e)
{
    struct chat_text text = {0};
    int rc = render_probe(c, (struct probe){.answer = ANSWER, .thought = THOUGHT}, &text, e);
    const char *all = str_text(&text.text), *thought = rc == 0 ? strstr(all, THOUGHT) : NULL;
    const char *answer = thought ? strstr(thought, ANSWER) : NULL;
    *found = answer != NULL;
    if (answer)
        add_part(&text, (size_t)(thought - all) + sizeof THOUGHT - 1, (size_t)(answer - all), out);
    if (rc == 0 && (!str_ok(&out->text) || !str_ok(&out->authors)))
        rc = fail_memory(e);
    chat_text_free(&text);
    return rc;
}

int probe_effort(struct chat *c, const char *word, struct chat_text *out, bool *fails, struct moeflux_err *e)
{
    struct moeflux_err why;
    int rc = set_switches(c, c->thinking, word, e);
    if (rc)
        return rc;
    rc = render_probe(c, (struct probe){0}, out, &why);
    *fails = rc == ERR_UNSUPPORTED || rc == ERR_FORMAT || rc == ERR_USAGE; /* the last: by its own words */
    return rc && !*fails ? err_set(e, rc, "%s", why.text) : 0;
}
