/* probe.h - --logits, --logits-all and --hidden: numbers of the prompt's evaluation, streamed into files.
 * Nothing larger than a row of logits is held here. */
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
    uint32_t n_tokens, vocab_size, width; /* width: of a hidden state */
};

/* Creates the files that the options name (as temporary ones). */
int probe_open(struct probe *p, const struct options *o, struct output *out, struct moeflux_err *e);

/* The prompt is known: writes headers and tokens, and fills the outputs. The probe must outlive the
 * evaluation, which ends with ERR_DEVICE at the first number that is not finite. */
int probe_begin(struct probe *p, const struct moeflux_model_info *info, const struct token_list *prompt,
                struct moeflux_outputs *outputs, struct moeflux_err *e);

/* The prompt was evaluated; `last` [vocab_size] are the logits after it. Gives the files their names.
 * ERR_DEVICE: one of them is not finite. */
int probe_finish(struct probe *p, const float *last, struct moeflux_err *e);

/* Drops what was not finished. A zeroed struct is legal. */
void probe_close(struct probe *p);

#endif
