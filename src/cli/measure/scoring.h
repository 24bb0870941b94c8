/* scoring.h - scores how well a model predicts each token of a text from those before it, in independent
 * windows. */
#ifndef MOEFLUX_CLI_MEASURE_SCORING_H
#define MOEFLUX_CLI_MEASURE_SCORING_H

#include <stdint.h>

#include "base/token_list.h"
#include "moeflux.h"

struct loaded;
struct options;
struct prompt;

/* The running mean of numbers, and its error. */
struct average {
    uint64_t n;
    double mean, squares; /* summed squares of the distances to the mean */
};
void average_add(struct average *a, double x);
/* Returns the standard error of the mean; NaN: fewer than two numbers. */
double average_error(const struct average *a);

/* Reads the text of --perplexity. ERR_IO, ERR_USAGE: it is empty. */
int scoring_read(struct prompt *p, const struct options *o, struct moeflux_err *e);

/* Opens the tokenizer of a model. progress: of encoding. ERR_USAGE: there is none; else as
 * moeflux_tokenizer_open. */
int scoring_open_tokenizer(struct moeflux_tokenizer **out, const char *path, const char *model,
                           const struct moeflux_progress *progress, struct moeflux_err *e);
/* Encodes the text. ERR_USAGE: fewer than two tokens. */
int scoring_encode(const struct prompt *p, const struct moeflux_tokenizer *t, const struct options *o,
                   struct token_list *ids, struct moeflux_err *e);

/* Returns how many of n tokens are scored in windows of `context` tokens: all except the first of each. */
uint64_t scoring_count(size_t n, uint32_t context);

struct scored_row {
    uint64_t idx;        /* index over all windows, the first is 0 */
    const float *logits; /* [vocab_size], finite */
    double log_sum;      /* ln of the sum of their exponentials */
};

struct scoring {
    const struct loaded *loaded; /* started; its max_context is the window */
    struct moeflux_progress progress;
    const struct token_list *tokens;
    /* tokens are evaluated one at a time, as in an answer: with prefer_resident the experts depend on it */
    bool by_token;
    /* Gets each row that scores a token; NULL: nobody does. A negative result ends the scoring. */
    int (*row)(void *ctx, const struct scored_row *r, struct moeflux_err *e);
    void *ctx;
    /* the result */
    struct average nll;     /* -ln p of the scored tokens */
    uint64_t n_windows, ns; /* ns: the evaluations, without the scoring */
    const int32_t *window;  /* [n_window] ids of the current window */
    uint32_t n_window;
};

/* Scores the tokens. ERR_USAGE: windows of one token. ERR_DEVICE: logits that are not finite. */
int scoring_run(struct scoring *s, struct moeflux_err *e);

#endif
