/* dry.h - the DRY sampler ("don't repeat yourself"): finds the ids that would continue a repetition. If the
 * last tokens of the text occur earlier in it, the token that followed them there gets a penalty. */
#ifndef MOEFLUX_SAMPLE_DRY_H
#define MOEFLUX_SAMPLE_DRY_H

#include <stdbool.h>
#include <stdint.h>

struct dry;
struct moeflux_err;
struct moeflux_sampler_options;
struct sampler_breakers;

/* Returns whether the options ask for it. */
bool dry_is_on(const struct moeflux_sampler_options *o);
/* Makes it for the options' dry_ fields. ERR_MEMORY. */
struct dry *dry_new(const struct moeflux_sampler_options *o, const struct sampler_breakers *breakers,
                    uint32_t n_ids, struct moeflux_err *e);
void dry_free(struct dry *d);

void dry_accept(struct dry *d, int32_t id);
void dry_reset(struct dry *d); /* forgets the accepted tokens */

/* Finds the ids after the accepted tokens. Returns them as a bitmap, [n_ids / 64, rounded up]; borrowed until
 * the next call of dry_find. */
const uint64_t *dry_find(struct dry *d);
/* Returns the penalty of an id that dry_find has found. */
float dry_penalty(const struct dry *d, uint32_t id);

#endif
