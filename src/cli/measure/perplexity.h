/* perplexity.h - --perplexity: how well the model predicts a text, to judge quantisations and kernels. */
#ifndef MOEFLUX_CLI_MEASURE_PERPLEXITY_H
#define MOEFLUX_CLI_MEASURE_PERPLEXITY_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Evaluates the file in windows of the context (-c), each from an empty state. Every token except a window's
 * first is scored by the logits before it. Prints perplexity = exp(mean of -ln p), its standard error, and
 * bits per byte of the text, by which models with different tokenizers can be compared. Holds one row of
 * logits. */
int perplexity_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
