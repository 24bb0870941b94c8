/* setup.h - a generator as the flags ask for it. */
#ifndef MOEFLUX_CLI_SETUP_H
#define MOEFLUX_CLI_SETUP_H

#include <stdint.h>

#include "moeflux.h"

struct bar;
struct moeflux_err;
struct options;
struct generator;

/* Opens the model and its tokenizer; the bar shows loading and, later, prompts. */
int setup_open(struct generator *s, const struct options *o, struct bar *bar, struct moeflux_err *e);

/* The same with another progress than the bar's, and memory kept free for the contexts of several sequences.
 * With --replicate there is a copy for each device, which has its part of them. */
int setup_open_for(struct generator *s, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e);

/* How many devices --device names; nothing is opened. ERR_USAGE, ERR_DEVICE. */
int setup_n_devices(const struct options *o, uint32_t *n, struct moeflux_err *e);

/* Makes the chat template usable. ERR_USAGE when there is no tokenizer (`what` names what needs it),
 * ERR_UNSUPPORTED when the template is not known or the tokenizer lacks its tokens. */
int setup_chat(struct generator *s, const struct options *o, const char *what, struct moeflux_err *e);

/* Makes the sequence and the sampler; draws a seed if none is given. max_context 0: the default. */
int setup_start(struct generator *s, const struct options *o, uint32_t max_context, struct moeflux_err *e);

/* After a run that ended with `rc`: writes the files of --usage and --trace, as far as they were given and
 * the model was opened, unless the run failed (an interruption is no failure). With --stats the trace's
 * replay is told. Returns rc, or ERR_IO with `e` filled by the first that failed. */
int setup_save_usage(const struct generator *s, const struct options *o, int rc, struct moeflux_err *e);

#endif
