#include "text/chat/chat.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "text/chat/chat_families.h"
#include "text/chat/continue.h"
#include "text/chat/harmony.h"
#include "text/chat/probe.h"
#include "text/chat/sections.h"
#include "text/chat/tool_text.h"
#include "text/jinja/jinja.h"
#include "text/utf8.h"

static int fail_memory(struct moeflux_err *e)
{
    return err_set(e, ERR_MEMORY, "out of memory for a prompt");
}

/* --- rendering --- */

void chat_text_free(struct chat_text *t)
{
    str_free(&t->text);
    str_free(&t->authors);
}

int chat_say(struct json_t *messages, const char *role, const char *text, size_t len, size_t *n_replaced,
             struct moeflux_err *e)
{
    struct str clean = {0};
    size_t n = utf8_clean(text, len, &clean);
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", str_text(&clean), clean.len);
    bool ok = str_ok(&clean) && message && json_array_append(messages, message) == 0;
    json_decref(message);
    str_free(&clean);
    if (!ok)
        return fail_memory(e);
    if (n_replaced)
        *n_replaced += n;
    return 0;
}

/* Returns the template's variables. Later ones override earlier ones: the special tokens' texts, those of
 * tokenizer_swap_templates, the switches, the prompt's kwargs. */
static json_t *context_of(const struct chat *c, const struct chat_prompt *p)
{
    const json_t *special = tokenizer_special_texts(c->tokenizer);
    const json_t *parts[] = {special, tokenizer_variables(c->tokenizer), c->switches, p->kwargs};
    /* transformers defines `documents` too. */
    json_t *context = json_pack("{s:n}", "documents");
    bool ok = context != NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i] && json_object_update(context, (json_t *)(uintptr_t)parts[i]) < 0)
            ok = false;
    bool is_harmony = c->harmony.is_used;
    json_t *messages =
        is_harmony ? harmony_messages(p->messages) : json_incref((json_t *)(uintptr_t)p->messages);
    json_t *tools = !p->tools    ? json_null()
                    : is_harmony ? harmony_tools(p->tools)
                                 : json_incref((json_t *)(uintptr_t)p->tools);
    ok &= json_object_set_new(context, "messages", messages) == 0;
    ok &= json_object_set_new(context, "tools", tools) == 0;
    ok &= json_object_set_new(context, "add_generation_prompt", json_boolean(p->opens_answer)) == 0;
    if (ok)
        return context;
    json_decref(context);
    return NULL;
}

int chat_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                struct moeflux_err *e)
{
    const struct jinja *template = p->tools && c->tool_template ? c->tool_template : c->template;
    if (p->continues)
        return continue_render(c, p, out, e);
    if (p->tools && c->tool_list)
        return tool_text_render(c, p, out, e);
    json_t *context = context_of(c, p);
    if (!context)
        return fail_memory(e);
    int rc =
        jinja_render_authors(template, context, c->now, &jinja_default_limits, &out->text, &out->authors, e);
    json_decref(context);
    return rc;
}

/* --- tokens --- */

int chat_next_control(const struct chat *c, const struct chat_text *text, size_t from, int32_t *id,
                      size_t *start, size_t *end, struct moeflux_err *e)
{
    const char *authors = str_text(&text->authors);
    size_t len = text->text.len, to;
    for (size_t at = from; at < len; at = to) {
        for (to = at; to < len && authors[to] == authors[at]; to++)
            ;
        if (authors[at] != JINJA_TEMPLATE)
            continue;
        int found = tokenizer_next_added(c->tokenizer, str_text(&text->text), at, to, id, start, end, e);
        if (found)
            return found;
    }
    *start = *end = len;
    return 0;
}

int chat_encode(const struct chat *c, const struct chat_text *text, size_t from, struct token_list *out,
                struct moeflux_err *e)
{
    size_t n_before = out->n, start, end;
    int rc = 0;
    for (size_t at = from; rc >= 0 && at < text->text.len; at = end) {
        int32_t id = -1;
        int found = rc = chat_next_control(c, text, at, &id, &start, &end, e);
        if (rc >= 0 && start > at)
            rc = tokenizer_encode(c->tokenizer, str_text(&text->text) + at, start - at, SPECIALS_AS_TEXT, out,
                                  NULL, e);
        if (rc >= 0 && found)
            rc = token_list_add(out, id, e);
    }
    if (rc < 0)
        out->n = n_before;
    return rc < 0 ? rc : 0;
}

/* Renders the prompt with another last message. */
static int render_other(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                        struct moeflux_err *e)
{
    struct chat_prompt other = *p;
    size_t n = json_array_size(p->messages);
    json_t *messages = json_copy((json_t *)(uintptr_t)p->messages);
    json_t *last = messages ? json_copy(json_array_get(messages, n - 1)) : NULL;
    int rc = 0;
    other.messages = messages;
    if (!last || json_object_set_new(last, "content", json_string("\x1a")) < 0 ||
        json_array_set(messages, n - 1, last) < 0)
        rc = fail_memory(e);
    if (rc == 0)
        rc = chat_render(c, &other, out, e);
    json_decref(last);
    json_decref(messages);
    return rc;
}

/* Finds the last control token in the common prefix of both texts. *shared: its place, or 0. */
static int shared_end(const struct chat *c, const struct chat_text *a, const struct chat_text *b,
                      size_t *shared, struct moeflux_err *e)
{
    size_t n = 0, start, end = 0;
    int32_t id;
    int rc = 1;
    while (n < a->text.len && n < b->text.len && a->text.data[n] == b->text.data[n])
        n++;
    *shared = 0;
    while (rc > 0 && (rc = chat_next_control(c, a, end, &id, &start, &end, e)) > 0 && end <= n)
        *shared = start;
    return rc < 0 ? rc : 0;
}

int chat_prompt_tokens(const struct chat *c, const struct chat_prompt *p, struct token_list *out,
                       uint32_t *n_system, struct moeflux_err *e)
{
    struct chat_text text = {0}, other = {0};
    struct token_list rest = {0};
    size_t shared = 0, n_before = out->n;
    int rc = chat_render(c, p, &text, e);
    if (rc == 0 && p->most_bytes && text.text.len > p->most_bytes)
        rc = err_set(e, ERR_NO_FIT, "the prompt has %zu bytes, expected at most %" PRIu64, text.text.len,
                     p->most_bytes);
    if (rc == 0 && n_system)
        rc = render_other(c, p, &other, e);
    if (rc == 0 && n_system)
        rc = shared_end(c, &text, &other, &shared, e);
    if (rc == 0)
        rc = chat_encode(c, &text, 0, out, e);
    if (rc == 0 && n_system)
        rc = chat_encode(c, &text, shared, &rest, e);
    if (rc == 0 && n_system)
        *n_system = (uint32_t)(out->n - n_before - rest.n);
    if (rc < 0)
        out->n = n_before;
    token_list_free(&rest);
    chat_text_free(&text);
    chat_text_free(&other);
    return rc;
}

int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct moeflux_err *e)
{
    size_t n_before = out->n, i = 0;
    int rc = 0;
    while (ended && i < c->tail.n && c->tail.ids[i++] != c->turn_close)
        ;
    for (; rc == 0 && i < c->tail.n; i++)
        rc = token_list_add(out, c->tail.ids[i], e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

/* --- opening --- */

static int need(const struct tokenizer *t, const char *token, struct moeflux_err *e)
{
    if (tokenizer_added_id(t, token) >= 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "chat template: the tokenizer has no token %s", token);
}

/* Uses the family's template for a model without one. Checks that the tokenizer has its control tokens. */
static int use_family(struct chat *c, const struct chat_family *family, enum chat_thinking thinking,
                      struct moeflux_err *e)
{
    const struct tokenizer *t = c->tokenizer;
    bool needs_tags = thinking != CHAT_THINKING_OFF && c->tags != &chat_tags[CHAT_TAGS_OF_SECTIONS];
    if (!family)
        return err_set(e, ERR_UNSUPPORTED,
                       "chat template: there is neither chat_template.jinja nor a chat_template in "
                       "tokenizer_config.json next to "
                       "tokenizer.json (`raw` needs none)");
    int rc = need(t, family->turn_open, e);
    if (rc == 0)
        rc = need(t, family->turn_close, e);
    /* Without thinking the tags may be ordinary text of the prompt. */
    if (rc == 0 && needs_tags)
        rc = need(t, c->tags->open, e);
    if (rc == 0 && needs_tags)
        rc = need(t, c->tags->close, e);
    c->is_family = true;
    return rc ? rc : jinja_parse(&c->template, family->text, strlen(family->text), "chat template", e);
}

/* Returns the tags of thinking that the template writes. Those of sections are put together. */
static const struct chat_tags *tags_of(const char *template)
{
    if (template && strstr(template, SECTIONS_OPEN) && strstr(template, SECTIONS_END))
        return &chat_tags[CHAT_TAGS_OF_SECTIONS];
    for (size_t i = 1; template && i < CHAT_N_TAGS; i++)
        if (strstr(template, chat_tags[i].close) && !strstr(template, chat_tags[0].close))
            return &chat_tags[i];
    return &chat_tags[0];
}

int chat_open(struct chat *c, const struct tokenizer *t, const char *family, enum chat_thinking thinking,
              time_t now, struct moeflux_err *e)
{
    const char *own = tokenizer_chat_template(t), *tools = tokenizer_tool_template(t);
    const struct chat_family *known = own ? NULL : chat_family_find(family);
    const char *text = known ? known->text : own;
    *c = (struct chat){.tokenizer = t, .thinking = thinking, .now = now};
    c->tags = tags_of(text);
    c->think_open = tokenizer_added_id(t, c->tags->open);
    c->think_close = tokenizer_added_id(t, c->tags->close);
    int rc = own ? jinja_parse(&c->template, own, strlen(own), "chat template", e)
                 : use_family(c, known, thinking, e);
    if (rc == 0 && tools)
        rc = jinja_parse(&c->tool_template, tools, strlen(tools), "chat template for tools", e);
    harmony_find(&c->harmony, t, own);
    sections_find(&c->sections, t, text);
    if (rc == 0)
        rc = probe_thinking(c, e);
    if (rc == 0)
        rc = probe_tail(c, e);
    if (rc < 0)
        chat_free(c);
    return rc;
}

int chat_use_tools(struct chat *c, const struct tool_form *f, struct moeflux_err *e)
{
    int rc = c->knows_tools ? 0 : tool_text_open(c, f, e);
    c->knows_tools = rc == 0;
    return rc;
}

void chat_free(struct chat *c)
{
    jinja_free(c->template);
    jinja_free(c->tool_template);
    jinja_free(c->tool_list);
    json_decref(c->switches);
    token_list_free(&c->tail);
    *c = (struct chat){0};
}
