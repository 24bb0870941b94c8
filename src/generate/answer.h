/* answer.h - the generation loop: sampled ids become parts of text until something ends the answer. */
#ifndef MOEFLUX_GENERATE_ANSWER_H
#define MOEFLUX_GENERATE_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

struct moeflux_err;
struct constraint;
struct generator;

/* Where the text goes as it comes. */
struct answer_sink {
    /* A sampled id (-1: the end of the answer) and the whole characters that it completes, which may be none. */
    int (*token)(void *ctx, int32_t id, enum chat_part part, const char *text, size_t len,
                 struct moeflux_err *e);
    void *ctx;
};

struct answer_options {
    int64_t limit; /* tokens; negative: none */
    bool ignore_eos;
    bool chat; /* the template's parts are told apart; else all text is answer */
    struct constraint
        *constraint; /* what the answer, without its thinking, must fit; NULL: nothing. It is moved on. */
    struct answer_sink sink;
};

enum answer_stop { ANSWER_EOS, ANSWER_LENGTH, ANSWER_CONTEXT, ANSWER_INTERRUPTED };

struct answer { /* zeroed at first; freed with answer_free */
    struct str text, thinking;
    struct token_list tokens; /* every sampled id, the end-of-text one included */
    enum answer_stop stop;
    bool last_pending;       /* the last of `tokens` is not part of the sequence yet */
    uint64_t first_token_ns; /* clock_ns() when the first id was there; 0: none */
    uint64_t decode_ns;      /* from then to the end */
    uint32_t n_decoded;      /* tokens evaluated in that time */
};

/* The prompt has been evaluated. A failure leaves in `a` what there was before it. */
int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e);

/* "eos", "length", "context" or "interrupted". */
const char *answer_stop_name(enum answer_stop stop);

void answer_free(struct answer *a);

#endif
