/* compare.h - --perplexity with --compare: the same text through several models or settings, one after the
 * other, and how far the logits of each are from those of the first one. One model is open at a time; the
 * logits of the first one wait in a row_file. */
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
    const char *name;   /* as the user wrote it; of the first one: the model's directory */
    struct words words; /* that `options` points into */
    struct options options;
    struct moeflux_needs needs;
    char device[256];
    double n_experts;        /* of a token, on average; NaN: it varies and cannot be seen */
    double hit_rate;         /* chosen experts that were in memory; NaN: none had to be looked for */
    double read_bytes;       /* of experts, from files, a token */
    struct average nll; /* -ln p of the tokens */
    /* KL divergence of the first one's probabilities from its own, in nats; n 0: the first */
    struct average kl;
    uint64_t n_agreed;     /* tokens for which both have the same likeliest one */
    uint64_t n_tokens, ns; /* of its evaluations */
};

int compare_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

/* KL(p || q) = sum of p (ln p - ln q), in nats, of the softmax of two rows of n logits whose log_sum are
 * given. Good for some 1e-14. */
double compare_divergence(const float *p, double p_log_sum, const float *q, double q_log_sum, uint32_t n);

#endif
