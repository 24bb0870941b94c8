/* conversation.h - questions and answers, as texts and as the tokens that the model gets. Before each answer
 * the sequence is brought in line with the tokens.
 *
 * Each question renders the whole conversation with the template. The tokens of the common prefix stay;
 * answers stay as they were sampled. If the template now leaves something out (old thinking), the tokens from
 * there on are those of the new rendering. */
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
    /* Tokens before the question (the system text is part of the first question), and tokens up to the
     * opening of the answer. A later rendering that keeps fewer tokens lowers both. */
    uint32_t at;
    uint32_t asked;
    bool answered;
    enum moeflux_stop stop;
    struct str question, thinking, answer;
};

struct conversation {  /* zeroed at first; freed with conversation_free */
    struct str system; /* empty: none */
    struct token_list tokens;
    struct turn *turns;
    size_t n_turns, cap;
};

/* Returns the last turn; NULL: there is none. */
struct turn *conversation_last(const struct conversation *c);

/* Adds an empty turn at the end of the tokens. NULL with `e` filled. */
struct turn *conversation_add(struct conversation *c, struct moeflux_err *e);

/* Appends a question and renders the conversation. It replaces a last question without an answer. On failure
 * there is no new question. *n_replaced as in tokenizer_encode. */
int conversation_ask(struct conversation *c, const struct chat *chat, const char *text, size_t *n_replaced,
                     struct moeflux_err *e);

/* Copies a conversation. On failure *to is empty. */
int conversation_copy(struct conversation *to, const struct conversation *from, struct moeflux_err *e);

/* Appends the answer to the last question, and the text that the template puts before the next question. */
int conversation_answer(struct conversation *c, const struct generator *s, const struct answer *a,
                        struct moeflux_err *e);

/* Opens the last answer again: removes what conversation_answer put after its tokens. False: there is none
 * that was stopped before its end. *in_thinking: it ends within its thinking. */
bool conversation_reopen(struct conversation *c, const struct chat *chat, bool *in_thinking);
/* Appends more tokens to an answer that was opened again, and closes it. */
int conversation_continue(struct conversation *c, const struct generator *s, const struct answer *a,
                          struct moeflux_err *e);

/* Removes the last answer and renders up to the opening of a new one. */
int conversation_ask_again(struct conversation *c, const struct chat *chat, struct moeflux_err *e);
/* Removes the last answer; its question stays. */
void conversation_unanswer(struct conversation *c);
/* Removes the last question and its answer. */
void conversation_undo(struct conversation *c);
/* Removes all questions and answers; the system text stays. */
void conversation_clear(struct conversation *c);
void conversation_free(struct conversation *c);

#endif
