/* channels.h - an answer in gpt-oss's form (text/chat/harmony.h) that has to fit a constraint. The constraint
 * is of one message's text; what stands before it is held to the form:
 *
 *   [<|channel|>analysis<|message|>thinking<|end|><|start|>assistant]<|channel|>final<|message|>text
 *   [...]<|channel|>commentary to=functions.f <|constrain|>json<|message|>text
 *
 * Headers are the tokens that the tokenizer makes of them. The thinking is free; there is one at most, and
 * the model chooses. */
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
    struct constraint *constraint; /* borrowed; moved on */
    enum { CHANNELS_HEADER, CHANNELS_THINKING, CHANNELS_TEXT } at;
    struct channel_head *heads; /* [n] that a message may have */
    size_t n;
    size_t n_done; /* tokens of the header that have come */
    bool has_thought;
    uint64_t *bits; /* [vocab_size / 64, rounded up] */
};

/* At the beginning of an answer; the filter is there, too. What is asked for is a call if o->must_call.
 * Nothing is opened for answers of other forms. ERR_MEMORY. */
int channels_open(struct channels *c, const struct generator *s, const struct answer_options *o,
                  const struct chat_filter *f, struct moeflux_err *e);
void channels_free(struct channels *c);

static inline bool channels_are_used(const struct channels *c)
{
    return c->generator != NULL;
}

/* The tokens that may come next (constraint_mask); *bits NULL: all. */
int channels_mask(struct channels *c, const uint64_t **bits, struct moeflux_err *e);
/* The token has come. Errors as constraint_accept. */
int channels_accept(struct channels *c, int32_t id, struct moeflux_err *e);

#endif
