/* model_sampling.h - takes settings of the sampler from the model's file. */
#ifndef MOEFLUX_GENERATE_MODEL_SAMPLING_H
#define MOEFLUX_GENERATE_MODEL_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct sampler_options;

/* Sets the options that `given` [SAMPLER_N_FIELDS] (NULL: none) does not mark from the keys
 * general.sampling.* of a GGUF file. Other models change nothing, nor do files that cannot be opened. As
 * in llama.cpp, a negative temp or top_k is 0, and a penalty_last_n of -1 is the whole context.
 * ERR_FORMAT: a value is no number or out of range; the message names the key, and *failed is the option's
 * index in sampler_fields. */
int model_sampling_take(struct sampler_options *o, const bool *given, const char *model, size_t *failed,
                        struct moeflux_err *e);

#endif
