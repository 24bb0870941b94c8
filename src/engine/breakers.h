/* breakers.h - the tokens of DRY's sequence breakers, which end a repetition, from their texts. */
#ifndef MOEFLUX_ENGINE_BREAKERS_H
#define MOEFLUX_ENGINE_BREAKERS_H

#include "base/str.h"
#include "sample/sampler.h"

struct moeflux_err;
struct tokenizer;

/* Finds the tokens that contain one of o->dry_sequence_breakers, and those that end with its first bytes.
 * Makes nothing if DRY is off or t is NULL. ERR_MEMORY and errors of tokenizer_encode; breakers_free is legal
 * after a failure, too. */
int breakers_make(const struct tokenizer *t, const struct moeflux_sampler_options *o,
                  struct sampler_breakers *out, struct moeflux_err *e);
void breakers_free(struct sampler_breakers *b);

/* The breakers of the last texts: making them reads the whole vocabulary. Not locked. Zeroed at first;
 * breakers_cache_free frees it. */
struct breakers_cache {
    struct str key; /* the texts, each with its NUL */
    struct sampler_breakers made;
};

/* Sets *out to what breakers_make makes, borrowed until the next call. o has passed sampler_check. */
int breakers_cache_get(struct breakers_cache *c, const struct tokenizer *t,
                       const struct moeflux_sampler_options *o, const struct sampler_breakers **out,
                       struct moeflux_err *e);
void breakers_cache_free(struct breakers_cache *c);

#endif
