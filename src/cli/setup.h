/* setup.h - opens a model and makes a generator as the flags ask for it. */
#ifndef MOEFLUX_CLI_SETUP_H
#define MOEFLUX_CLI_SETUP_H

#include <stdint.h>

#include "moeflux.h"

struct bar;
struct moeflux_err;
struct options;
struct generator;

/* Opens the model and its tokenizer. The bar shows loading and, later, prefill. */
int setup_open(struct generator *s, const struct options *o, struct bar *bar, struct moeflux_err *e);

/* Opens the model with `progress` instead of the bar's, and keeps memory free for the contexts of
 * n_sequences. With --replicate there is a copy for each device, and the sequences are divided among them. */
int setup_open_for(struct generator *s, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e);

/* Counts the devices that --device names. Opens nothing. ERR_USAGE, ERR_DEVICE. */
int setup_n_devices(const struct options *o, uint32_t *n, struct moeflux_err *e);

/* Prepares the chat template. ERR_USAGE: no tokenizer (`what` says in the message what needs it);
 * ERR_UNSUPPORTED: an unknown template, or the tokenizer lacks its tokens. */
int setup_chat(struct generator *s, const struct options *o, const char *what, struct moeflux_err *e);

/* Makes the sequence and the sampler, with a random seed if none is given. max_context: tokens; 0: the
 * default. */
int setup_start(struct generator *s, const struct options *o, uint32_t max_context, struct moeflux_err *e);

/* Writes the files of --usage and --trace after a run that ended with `rc`, if the model was opened and the
 * run did not fail (an interruption is no failure). With --stats and --trace it prints the trace's replay.
 * Returns rc, or ERR_IO with `e` filled by the first file that failed. */
int setup_save_usage(const struct generator *s, const struct options *o, int rc, struct moeflux_err *e);

#endif
