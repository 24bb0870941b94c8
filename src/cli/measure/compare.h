/* compare.h - --perplexity with --compare: evaluates one text with several models or settings, one at a time,
 * and measures how far the logits of each are from those of the first. The logits of the first are kept in a
 * row_file. */
#ifndef MOEFLUX_CLI_MEASURE_COMPARE_H
#define MOEFLUX_CLI_MEASURE_COMPARE_H

#include <stdint.h>

#include "cli/options/options.h"
#include "cli/measure/scoring.h"
#include "cli/options/words.h"
#include "moeflux.h"

struct json_t;
struct moeflux_err;
struct output;
struct term;

struct compared {       /* one setting, and its result */
    const char *name;   /* the setting's text; the first one's: the model's directory */
    struct words words; /* `options` points into them */
    struct options options;
    struct moeflux_needs needs;
    char device[256];
    double n_experts;   /* average for a token and layer; NaN: it varies and was not counted */
    double hit_rate;    /* share of chosen experts that were in memory; NaN: none was looked up */
    double read_bytes;  /* bytes of experts read from files for each token */
    struct average nll; /* -ln p of the tokens */
    /* KL(first || this) in nats; n 0: this is the first */
    struct average kl;
    uint64_t n_agreed;     /* tokens for which both have the same likeliest one */
    uint64_t n_tokens, ns; /* evaluated tokens, and the time for them */
};

/* Runs and prints the comparison. ERR_USAGE: settings or tokenizers that cannot be compared. */
int compare_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* Returns KL(p || q) = sum of p (ln p - ln q), in nats, for the softmax of two rows of n logits. log_sum: ln
 * of the sum of their exponentials. Its error is about 1e-14. */
double compare_divergence(const float *p, double p_log_sum, const float *q, double q_log_sum, uint32_t n);

#endif
