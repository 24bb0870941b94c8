/* channels.h - an answer in gpt-oss's form (text/chat/harmony.h) or in Kimi-K3's that must fit a constraint.
 * In the first the constraint applies to the text of one message; everything before it must have this form:
 *
 *   [<|channel|>analysis<|message|>thinking<|end|><|start|>assistant]<|channel|>final<|message|>text
 *   [...]<|channel|>commentary to=functions.f <|constrain|>json<|message|>text
 *
 * In Kimi-K3's form (text/chat/sections.h) it applies to the text of the response, or to the calls after an
 * empty one:
 *
 *   [thinking<|close|>think<|sep|><|open|>response<|sep|>]text
 *   [thinking<|close|>think<|sep|><|open|>response<|sep|>]<|close|>response<|sep|>calls
 *
 * A header consists of the tokens that the tokenizer makes of its text. The thinking is not constrained; the
 * model chooses whether there is any, at most once. */
#ifndef MOEFLUX_GENERATE_CHANNELS_H
#define MOEFLUX_GENERATE_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer_options;
struct channel_head;
struct chat_filter;
struct constraint;
struct generator;
struct moeflux_err;

struct channels { /* zeroed: the answer has another form, or no constraint; freed with channels_free */
    const struct generator *generator;
    struct constraint *constraint; /* borrowed; advanced by each token */
    enum { CHANNELS_HEADER, CHANNELS_THINKING, CHANNELS_TEXT } at;
    struct channel_head *heads; /* [n] headers that a message may have */
    size_t n;
    size_t n_done; /* tokens of the header so far */
    bool has_thought;
    bool closes;    /* sections: the tag that has begun ends one */
    uint64_t *bits; /* [vocab_size / 64, rounded up] */
};

/* Begins an answer. f: the filter, at the same place. The message is a call if o->must_call. Answers of other
 * forms leave *c zeroed. ERR_MEMORY. */
int channels_open(struct channels *c, const struct generator *s, const struct answer_options *o,
                  const struct chat_filter *f, struct moeflux_err *e);
void channels_free(struct channels *c);

static inline bool channels_are_used(const struct channels *c)
{
    return c->generator != NULL;
}

/* Sets *bits to the tokens that may come next (constraint_mask); NULL: all. */
int channels_mask(struct channels *c, const uint64_t **bits, struct moeflux_err *e);
/* Advances by a token. Errors: those of constraint_accept. */
int channels_accept(struct channels *c, int32_t id, struct moeflux_err *e);

#endif
