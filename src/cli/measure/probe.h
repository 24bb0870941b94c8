/* probe.h - --logits, --logits-all and --hidden: writes numbers of the prompt's evaluation to files as they
 * come. Holds nothing larger than a row of logits. */
#ifndef MOEFLUX_CLI_MEASURE_PROBE_H
#define MOEFLUX_CLI_MEASURE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/measure/tensor_file.h"

struct moeflux_err;
struct moeflux_model_info;
struct moeflux_outputs;
struct options;
struct output;
struct token_list;

struct probe {
    bool logits, all, hidden;
    struct output *text; /* --logits -: rows of decimal numbers go here; else NULL */
    struct tensor_file logits_file, hidden_file;
    uint32_t n_tokens, vocab_size, width; /* width: elements of a hidden state */
};

/* Creates the files that the options name, as temporary ones. ERR_IO. */
int probe_open(struct probe *p, const struct options *o, struct output *out, struct moeflux_err *e);

/* Writes headers and tokens of the prompt, and fills the outputs for its evaluation, which the probe must
 * outlive. The evaluation ends with ERR_DEVICE at the first number that is not finite. */
int probe_begin(struct probe *p, const struct moeflux_model_info *info, const struct token_list *prompt,
                struct moeflux_outputs *outputs, struct moeflux_err *e);

/* Ends the files after the evaluation and gives them their names. last [vocab_size]: the logits after the
 * prompt. ERR_DEVICE: one of them is not finite. */
int probe_finish(struct probe *p, const float *last, struct moeflux_err *e);

/* Removes files that were not finished. A zeroed struct is legal. */
void probe_close(struct probe *p);

#endif
