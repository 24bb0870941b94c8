/* numpy_random.h - the whole numbers that numpy's default generator draws: PCG64, seeded by a
 * SeedSequence. */
#ifndef MOEFLUX_MODEL_NUMPY_RANDOM_H
#define MOEFLUX_MODEL_NUMPY_RANDOM_H

#include <stdint.h>

/* Writes what np.random.default_rng(seed).integers(0, below, n, np.int64) returns. below: more than 2^32, at
 * most 2^63. */
void numpy_random_integers(uint32_t seed, uint64_t below, uint32_t n, uint64_t *out);

#endif
