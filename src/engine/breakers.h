/* breakers.h - the tokens that end a repetition, from the texts of DRY's options. */
#ifndef MOEFLUX_ENGINE_BREAKERS_H
#define MOEFLUX_ENGINE_BREAKERS_H

#include "sample/sampler.h"

struct moeflux_err;
struct tokenizer;

/* Finds the tokens that contain one of o->dry_breakers or end with its beginning. Makes nothing if DRY is off
 * or t is NULL. ERR_MEMORY and errors of tokenizer_encode; breakers_free is legal after a failure, too. */
int breakers_make(const struct tokenizer *t, const struct sampler_options *o, struct sampler_breakers *out,
                  struct moeflux_err *e);
void breakers_free(struct sampler_breakers *b);

#endif
