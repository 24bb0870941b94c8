/* model_defaults.h - takes settings of the sampler from the model's file. */
#ifndef MOEFLUX_CLI_OPTIONS_MODEL_DEFAULTS_H
#define MOEFLUX_CLI_OPTIONS_MODEL_DEFAULTS_H

struct moeflux_err;
struct options;

/* Sets what neither the command line nor the user's file gives from the keys general.sampling.* of a GGUF
 * file. Other models change nothing, nor do files that cannot be opened. As in llama.cpp, a negative temp
 * or top_k is 0, and a penalty_last_n of -1 is the whole context. ERR_FORMAT: a value is no number or out of
 * range; the message names the key and the option. */
int model_defaults_take(struct options *o, struct moeflux_err *e);

#endif
