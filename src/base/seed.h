/* seed.h - draws random seeds. */
#ifndef MOEFLUX_BASE_SEED_H
#define MOEFLUX_BASE_SEED_H

#include <stdint.h>

struct moeflux_err;

/* Draws a random seed of 32 bits. ERR_IO. */
int seed_draw(uint64_t *seed, struct moeflux_err *e);

#endif
