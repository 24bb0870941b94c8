#include "generate/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "text/chat.h"

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

int conversation_ask(struct conversation *c, const struct chat *chat, const char *text, size_t *n_replaced,
                     struct moeflux_err *e)
{
    struct turn *t = conversation_last(c);
    int rc = 0;
    if (t && !t->answered)
        conversation_undo(c);
    if (!(t = conversation_add(c, e)))
        return ERR_MEMORY;
    str_add_text(&t->question, text);
    if (!str_ok(&t->question))
        rc = err_set(e, ERR_MEMORY, "out of memory for the question");
    if (!rc && c->tokens.n == 0)
        rc = chat_begin(chat, str_text(&c->system), c->system.len, &c->tokens, n_replaced, e);
    if (!rc)
        rc = chat_user(chat, text, strlen(text), &c->tokens, n_replaced, e);
    t->asked = (uint32_t)c->tokens.n;
    if (rc)
        conversation_undo(c);
    return rc;
}

static int copy_text(struct str *to, const struct str *from, struct moeflux_err *e)
{
    str_clear(to);
    str_add(to, str_text(from), from->len);
    return str_ok(to) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the answer");
}

int conversation_answer(struct conversation *c, const struct generator *s, const struct answer *a,
                        struct moeflux_err *e)
{
    struct turn *t = conversation_last(c);
    int32_t last = a->tokens.n ? a->tokens.ids[a->tokens.n - 1] : -1;
    bool end_of_turn = a->tokens.n && last == s->chat.turn_close;
    /* Another end-of-text token does not belong into the middle of a conversation. */
    bool keep = end_of_turn || (a->stop != ANSWER_EOS && a->stop != ANSWER_TOOLS);
    size_t n = a->tokens.n && !keep ? a->tokens.n - 1 : a->tokens.n;
    int rc = copy_text(&t->answer, &a->text, e);
    if (!rc)
        rc = copy_text(&t->thinking, &a->thinking, e);
    for (size_t i = 0; !rc && i < n; i++)
        rc = token_list_add(&c->tokens, a->tokens.ids[i], e);
    if (!rc)
        rc = chat_end_answer(&s->chat, end_of_turn, &c->tokens, e);
    t->stop = a->stop;
    t->answered = rc == 0;
    if (rc)
        conversation_unanswer(c);
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
