/* perplexity.h - --perplexity: how well the model predicts a text, as a measure of quantisations and kernels.
 * */
#ifndef MOEFLUX_CLI_MEASURE_PERPLEXITY_H
#define MOEFLUX_CLI_MEASURE_PERPLEXITY_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Evaluates the file in windows of the context (-c), each from an empty state, and scores every token but a
 * window's first by the logits before it: perplexity = exp(mean of -ln p), its standard error, and bits per
 * byte of the text, which models with different tokenizers can be compared by. Holds one row of logits. */
int perplexity_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
