#include "generate/conversation.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "text/chat/chat.h"
#include "text/utf8.h"

struct turn *conversation_last(const struct conversation *c)
{
    return c->n_turns ? &c->turns[c->n_turns - 1] : NULL;
}

struct turn *conversation_add(struct conversation *c, struct moeflux_err *e)
{
    if (mem_grow((void **)&c->turns, &c->cap, c->n_turns + 1, sizeof *c->turns, e))
        return NULL;
    struct turn *t = &c->turns[c->n_turns++];
    *t = (struct turn){.at = (uint32_t)c->tokens.n, .asked = (uint32_t)c->tokens.n};
    return t;
}

/* Makes the template's messages. They include the thinking of past answers, which the template may leave out.
 * A family's built-in form gets it even if it is empty. */
static int add_messages(const struct conversation *c, const struct chat *chat, json_t *messages,
                        struct moeflux_err *e)
{
    int rc = c->system.len ? chat_say(messages, "system", c->system.data, c->system.len, NULL, e) : 0;
    for (size_t i = 0; !rc && i < c->n_turns; i++) {
        const struct turn *t = &c->turns[i];
        rc = chat_say(messages, "user", str_text(&t->question), t->question.len, NULL, e);
        if (rc || !t->answered)
            continue;
        rc = chat_say(messages, "assistant", str_text(&t->answer), t->answer.len, NULL, e);
        json_t *answer = json_array_get(messages, json_array_size(messages) - 1);
        json_t *thinking = json_stringn(str_text(&t->thinking), t->thinking.len);
        if (!rc && (t->thinking.len || chat->is_family) &&
            (!thinking || json_object_set(answer, "reasoning_content", thinking) ||
             json_object_set(answer, "thinking", thinking)))
            rc = err_set(e, ERR_MEMORY, "out of memory for the conversation");
        json_decref(thinking);
    }
    return rc;
}

/* Returns the answers that are in the tokens as they were sampled. */
static struct chat_span *spans_of(const struct conversation *c, size_t *n, struct moeflux_err *e)
{
    struct chat_span *spans = mem_new(c->n_turns + 1, sizeof *spans, e);
    *n = 0;
    for (size_t i = 0; spans && i < c->n_turns; i++) {
        uint32_t end = i + 1 < c->n_turns ? c->turns[i + 1].at : (uint32_t)c->tokens.n;
        if (c->turns[i].answered && end > c->turns[i].asked)
            spans[(*n)++] = (struct chat_span){c->turns[i].asked, end};
    }
    return spans;
}

/* Renders the questions and answers to tokens, up to the opening of the answer to the last question. */
static int render(struct conversation *c, const struct chat *chat, struct moeflux_err *e)
{
    json_t *messages = json_array();
    struct chat_prompt prompt = {.messages = messages, .opens_answer = true};
    struct chat_text text = {0};
    size_t n_spans;
    uint32_t n_kept = 0;
    struct chat_span *spans = spans_of(c, &n_spans, e);
    int rc = spans && messages ? 0 : err_set(e, ERR_MEMORY, "out of memory for the conversation");
    if (!rc)
        rc = add_messages(c, chat, messages, e);
    if (!rc)
        rc = chat_render(chat, &prompt, &text, e);
    if (!rc)
        rc = chat_extend(chat, &text, spans, n_spans, &c->tokens, &n_kept, e);
    /* Sampled tokens that the template left out are gone. */
    for (size_t i = 0; !rc && i < c->n_turns; i++) {
        struct turn *t = &c->turns[i];
        t->at = t->at < n_kept ? t->at : n_kept;
        t->asked = t->asked < n_kept ? t->asked : n_kept;
    }
    if (!rc)
        conversation_last(c)->asked = (uint32_t)c->tokens.n;
    free(spans);
    chat_text_free(&text);
    json_decref(messages);
    return rc;
}

int conversation_ask(struct conversation *c, const struct chat *chat, const char *text, size_t *n_replaced,
                     struct moeflux_err *e)
{
    struct turn *t = conversation_last(c);
    struct str system = {0};
    int rc = 0;
    if (t && !t->answered)
        conversation_undo(c);
    bool is_first = c->tokens.n == 0;
    if (!(t = conversation_add(c, e)))
        return ERR_MEMORY;
    *n_replaced += utf8_clean(text, strlen(text), &t->question);
    *n_replaced += is_first ? utf8_clean(str_text(&c->system), c->system.len, &system) : 0;
    if (!str_ok(&t->question) || !str_ok(&system))
        rc = err_set(e, ERR_MEMORY, "out of memory for the question");
    if (!rc)
        rc = render(c, chat, e);
    if (rc)
        conversation_undo(c);
    str_free(&system);
    return rc;
}

int conversation_ask_again(struct conversation *c, const struct chat *chat, struct moeflux_err *e)
{
    conversation_unanswer(c);
    return render(c, chat, e);
}

static int copy_text(struct str *to, const struct str *from, struct moeflux_err *e)
{
    str_clear(to);
    str_add(to, str_text(from), from->len);
    return str_ok(to) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the conversation");
}

int conversation_copy(struct conversation *to, const struct conversation *from, struct moeflux_err *e)
{
    *to = (struct conversation){0};
    int rc = copy_text(&to->system, &from->system, e);
    for (size_t i = 0; !rc && i < from->tokens.n; i++)
        rc = token_list_add(&to->tokens, from->tokens.ids[i], e);
    for (size_t i = 0; !rc && i < from->n_turns; i++) {
        const struct turn *t = &from->turns[i];
        struct turn *own = conversation_add(to, e);
        if (!own)
            rc = ERR_MEMORY;
        else
            *own = (struct turn){.at = t->at, .asked = t->asked, .answered = t->answered, .stop = t->stop};
        rc = rc ? rc : copy_text(&own->question, &t->question, e);
        rc = rc ? rc : copy_text(&own->thinking, &t->thinking, e);
        rc = rc ? rc : copy_text(&own->answer, &t->answer, e);
    }
    if (rc)
        conversation_free(to);
    return rc;
}

static int append_text(struct str *to, const struct str *more, struct moeflux_err *e)
{
    str_add(to, str_text(more), more->len);
    return str_ok(to) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the conversation");
}

/* Appends the answer's tokens and what the template puts after them. */
static int take_tokens(struct conversation *c, const struct generator *s, const struct answer *a,
                       struct moeflux_err *e)
{
    int32_t last = a->tokens.n ? a->tokens.ids[a->tokens.n - 1] : -1;
    bool end_of_turn = a->tokens.n && last == s->chat.turn_close;
    /* A control token that ended the answer and is not the end of a turn must not stand in the middle of a
     * conversation. */
    bool is_token = a->stop == MOEFLUX_STOP_TEXT && a->tokens.n && tokenizer_is_added(s->tokenizer, last);
    bool keep = end_of_turn || (a->stop != MOEFLUX_STOP_EOS && a->stop != MOEFLUX_STOP_CALLS && !is_token);
    size_t n = a->tokens.n && !keep ? a->tokens.n - 1 : a->tokens.n;
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = token_list_add(&c->tokens, a->tokens.ids[i], e);
    return rc ? rc : chat_end_answer(&s->chat, end_of_turn, &c->tokens, e);
}

int conversation_answer(struct conversation *c, const struct generator *s, const struct answer *a,
                        struct moeflux_err *e)
{
    struct turn *t = conversation_last(c);
    int rc = copy_text(&t->answer, &a->text, e);
    if (!rc)
        rc = copy_text(&t->thinking, &a->thinking, e);
    if (!rc)
        rc = take_tokens(c, s, a, e);
    t->stop = a->stop;
    t->answered = rc == 0;
    if (rc)
        conversation_unanswer(c);
    return rc;
}

bool conversation_reopen(struct conversation *c, const struct chat *chat, bool *in_thinking)
{
    const struct turn *t = conversation_last(c);
    size_t n_tail = chat->tail.n;
    bool was_cut =
        t && t->answered && (t->stop == MOEFLUX_STOP_LENGTH || t->stop == MOEFLUX_STOP_INTERRUPTED);
    *in_thinking = t && t->thinking.len > 0 && t->answer.len == 0;
    if (!was_cut || c->tokens.n < t->asked + n_tail)
        return false;
    c->tokens.n -= n_tail;
    for (size_t i = t->asked; i < c->tokens.n && chat->think_close >= 0; i++)
        *in_thinking = *in_thinking && c->tokens.ids[i] != chat->think_close;
    return true;
}

int conversation_continue(struct conversation *c, const struct generator *s, const struct answer *a,
                          struct moeflux_err *e)
{
    struct turn *t = conversation_last(c);
    int rc = append_text(&t->answer, &a->text, e);
    if (!rc)
        rc = append_text(&t->thinking, &a->thinking, e);
    if (!rc)
        rc = take_tokens(c, s, a, e);
    t->stop = a->stop;
    return rc;
}

void conversation_unanswer(struct conversation *c)
{
    struct turn *t = conversation_last(c);
    if (!t)
        return;
    c->tokens.n = t->asked;
    t->answered = false;
    str_clear(&t->answer);
    str_clear(&t->thinking);
}

void conversation_undo(struct conversation *c)
{
    struct turn *t = conversation_last(c);
    if (!t)
        return;
    c->tokens.n = t->at;
    str_free(&t->question);
    str_free(&t->thinking);
    str_free(&t->answer);
    c->n_turns--;
}

void conversation_clear(struct conversation *c)
{
    while (c->n_turns)
        conversation_undo(c);
    c->tokens.n = 0;
}

void conversation_free(struct conversation *c)
{
    conversation_clear(c);
    free(c->turns);
    token_list_free(&c->tokens);
    str_free(&c->system);
    *c = (struct conversation){0};
}
