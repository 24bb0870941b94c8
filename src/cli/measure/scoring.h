/* scoring.h - a text's tokens, each foretold from those before it, in windows that begin anew. */
#ifndef MOEFLUX_CLI_MEASURE_SCORING_H
#define MOEFLUX_CLI_MEASURE_SCORING_H

#include <stdint.h>

#include "generate/generator.h"

struct moeflux_err;
struct options;
struct prompt;

/* The mean of numbers that come one by one, and how far it may be off. */
struct average {
    uint64_t n;
    double mean, squares; /* summed squares of the distances to the mean */
};
void average_add(struct average *a, double x);
/* The standard error of the mean; NaN below two numbers. */
double average_error(const struct average *a);

/* The text of --perplexity as it is. */
int scoring_read(struct prompt *p, const struct options *o, struct moeflux_err *e);

/* Its ids; of the generator the tokenizer and the directory are used. ERR_USAGE: no tokenizer, fewer than two
 * tokens. */
int scoring_encode(const struct prompt *p, const struct generator *g, const struct options *o,
                   struct token_list *ids, struct moeflux_err *e);

/* How many of n tokens are scored in windows of `context`: all but the first one of each. */
uint64_t scoring_count(size_t n, uint32_t context);

struct scored_row {
    uint64_t idx;        /* from 0, over all windows */
    const float *logits; /* [vocab_size], finite */
    double log_sum;      /* ln of the sum of their exponentials */
};

struct scoring {
    struct generator *generator; /* started; its max_context is the window */
    const struct token_list *tokens;
    /* one after the other, as an answer is generated: their experts depend on it (prefer_resident) */
    bool by_token;
    /* Told of each row that a token is scored by; NULL: nobody. A negative result ends the scoring. */
    int (*row)(void *ctx, const struct scored_row *r, struct moeflux_err *e);
    void *ctx;
    /* The result. */
    struct average nll; /* -ln p of the scored tokens */
    uint64_t n_windows, ns;  /* ns: of the evaluations, without the scoring */
    const int32_t *window;   /* ids of the window being evaluated */
    uint32_t n_window;
};

/* ERR_USAGE: windows of one token. ERR_DEVICE: logits that are not finite. */
int scoring_run(struct scoring *s, struct moeflux_err *e);

#endif
