/* generator.h - an opened model with what a conversation needs beside it: tokenizer, template, sampler,
 * sequence. */
#ifndef MOEFLUX_GENERATE_GENERATOR_H
#define MOEFLUX_GENERATE_GENERATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "moeflux.h"
#include "text/chat/chat.h"
#include "sample/sampler.h"
#include "text/tokenizer/tokenizer.h"

enum { GENERATOR_DEFAULT_CONTEXT = 8192 };

struct generator;

/* For those who evaluate the tokens of several sequences together. token: appends a token to the generator's
 * sequence and puts the logits after it into its `logits`. step: in place of generator_step, and may go on
 * with generator_step_alone. */
struct generator_evaluator {
    int (*token)(void *ctx, struct generator *s, int32_t id, struct moeflux_err *e);
    int (*step)(void *ctx, struct generator *s, int32_t id, bool more, int32_t *next, struct moeflux_err *e);
    void *ctx;
};

struct generator {
    struct moeflux_model *model;
    const char *dir;                  /* the model's; borrowed */
    struct moeflux_progress progress; /* of loading and prompts; asked before each token whether to go on */
    struct moeflux_model_info info;
    struct tokenizer *tokenizer; /* NULL: the directory has none */
    bool has_chat;               /* `chat` is usable */
    struct chat chat;
    struct moeflux_session *sequence; /* NULL until generator_start */
    struct sampler *sampler;
    struct constrain *constrain; /* NULL until an answer is to fit a grammar */
    uint8_t *allowed;            /* bitmap of the ids that may be sampled; NULL: all */
    float *logits;               /* [vocab_size], after the last token of generator_eval */
    uint32_t max_context;        /* tokens */
    uint64_t seed;
    uint64_t load_ns;
    struct generator_evaluator evaluator; /* of single tokens; zeros: nobody else */
    /* The same model on other devices, for sequences of their own. */
    struct moeflux_model *copies[MOEFLUX_MAX_DEVICES - 1];
    uint32_t n_copies;
};

/* Opens the model and its tokenizer. The directory's name and the context of `o->progress` must outlive it.
 * */
int generator_open(struct generator *s, const struct moeflux_options *o, struct moeflux_err *e);

/* Opens the model once more, for sequences of its own: with the options of generator_open but for the device.
 * */
int generator_add_copy(struct generator *s, const struct moeflux_options *o, struct moeflux_err *e);
/* The model, idx 0, and its copies behind it. */
struct moeflux_model *generator_copy(const struct generator *s, uint32_t idx);
/* Of all of them together, with a row for each device. */
void generator_get_stats(const struct generator *s, struct moeflux_stats *out);

/* Makes the chat template usable. ERR_USAGE when there is no tokenizer (`what` names what needs it),
 * ERR_UNSUPPORTED when there is no template, or it cannot be run or has no such thinking. */
int generator_use_chat(struct generator *s, enum chat_thinking thinking, const char *what,
                       struct moeflux_err *e);

/* The ids of a text without template: before it the token that the model's files put before every text,
 * unless the text begins with it. Appends to `out`, which is empty; the rest as tokenizer_encode. */
int generator_encode(const struct generator *s, const char *text, size_t len, enum token_specials specials,
                     struct token_list *out, size_t *n_replaced, struct moeflux_err *e);

/* What every sequence needs: their context (0: the smaller of the model's own and GENERATOR_DEFAULT_CONTEXT),
 * the ids that may be sampled, room for logits. ERR_USAGE: more than the model's own. */
int generator_prepare(struct generator *s, uint32_t max_context, struct moeflux_err *e);

/* generator_prepare, and makes the sequence and the sampler. */
int generator_start(struct generator *s, uint32_t max_context, const struct sampler_options *o,
                    struct moeflux_err *e);

/* Another generator on the same model, or on copy `copy` of it, for a request beside others: its template,
 * logits and sampler are its own, and not there yet, the rest is `of`'s, which was prepared and must outlive
 * it. For an evaluation logits [vocab_size] (malloc) and a sequence have to be set; the sequence stays the
 * caller's. */
void generator_share(struct generator *s, const struct generator *of, uint32_t copy);
/* A zeroed one is legal. */
void generator_unshare(struct generator *s);

/* A random seed of 32 bits. ERR_IO. */
int generator_draw_seed(uint64_t *seed, struct moeflux_err *e);

/* Evaluates the ids and tells the sampler of them; `outputs` may be NULL, its `logits` is set here. */
int generator_eval(struct generator *s, const int32_t *ids, size_t n, const struct moeflux_outputs *outputs,
                   struct moeflux_err *e);

/* Evaluates one token, tells the sampler of it, and lets it choose the next one; s->logits are no longer
 * those of the last token. more: the next one will be wanted, as far as is known (moeflux_session_step). */
int generator_step(struct generator *s, int32_t id, bool more, int32_t *next, struct moeflux_err *e);
int generator_step_alone(struct generator *s, int32_t id, bool more, int32_t *next, struct moeflux_err *e);
/* The sampler's choice from s->logits, which are those of the last token. */
int generator_choose(struct generator *s, int32_t *id, struct moeflux_err *e);

/* generator_eval without logits: for a part of the prompt that more follows. */
int generator_feed(struct generator *s, const int32_t *ids, size_t n, struct moeflux_err *e);

/* A sampler of its own for what comes: with these options (their seed becomes the generator's), told of the
 * tokens that the text begins with. On failure the old one stays. */
int generator_new_sampler(struct generator *s, const struct sampler_options *o, const int32_t *ids, size_t n,
                          struct moeflux_err *e);

bool generator_is_eos(const struct generator *s, int32_t id);

/* A zeroed or half-built generator is legal. */
void generator_close(struct generator *s);

#endif
