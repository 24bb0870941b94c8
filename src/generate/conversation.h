/* conversation.h - questions and answers as texts and as the tokens that the model is given. The sequence is
 * brought in line with the tokens before each answer.
 *
 * Each question renders the whole conversation by the template. The tokens that agree with it stay, answers
 * as they were sampled; where the template leaves something out that was there (old thinking), the tokens are
 * the rendering's from there on. */
#ifndef MOEFLUX_GENERATE_CONVERSATION_H
#define MOEFLUX_GENERATE_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "generate/answer.h"
#include "text/tokenizer/tokenizer.h"

struct chat;
struct moeflux_err;
struct generator;

struct turn {
    uint32_t at; /* tokens before the question; the system text counts to the first question */
    /* tokens with it and the opening of the answer. Both: at most those that a later rendering kept */
    uint32_t asked;
    bool answered;
    enum answer_stop stop;
    struct str question, thinking, answer;
};

struct conversation {  /* zeroed at first; freed with conversation_free */
    struct str system; /* empty: none */
    struct token_list tokens;
    struct turn *turns;
    size_t n_turns, cap;
};

/* NULL: nothing was asked. */
struct turn *conversation_last(const struct conversation *c);

/* Adds an empty turn at the end of the tokens. NULL with `e` filled. */
struct turn *conversation_add(struct conversation *c, struct moeflux_err *e);

/* Appends a question and renders the conversation. A last question without an answer leaves. On failure there
 * is no new question. *n_replaced as in tokenizer_encode. */
int conversation_ask(struct conversation *c, const struct chat *chat, const char *text, size_t *n_replaced,
                     struct moeflux_err *e);

/* On failure *to is empty. */
int conversation_copy(struct conversation *to, const struct conversation *from, struct moeflux_err *e);

/* Appends the answer to the last question and what the template puts between it and the next question. */
int conversation_answer(struct conversation *c, const struct generator *s, const struct answer *a,
                        struct moeflux_err *e);

/* Takes the last answer away and renders up to the opening of another. */
int conversation_ask_again(struct conversation *c, const struct chat *chat, struct moeflux_err *e);
/* Takes the last answer away; its question stays. */
void conversation_unanswer(struct conversation *c);
/* Takes the last question away, with its answer. */
void conversation_undo(struct conversation *c);
/* Takes all away but the system text. */
void conversation_clear(struct conversation *c);
void conversation_free(struct conversation *c);

#endif
