/* random_blocks.h - random blocks of a block format with finite numbers of a given size. */
#ifndef MOEFLUX_SELFTEST_RANDOM_BLOCKS_H
#define MOEFLUX_SELFTEST_RANDOM_BLOCKS_H

#include <stdint.h>

/* Fills n blocks of a format from FORMAT_BLOCK_FIRST on. The root mean square of a block's numbers is 1/2 to
 * 3/2 of `spread`, within a factor of 2 in MXFP4, and within a factor of 8 in NVFP4. Float16 scales have both
 * signs. next: returns 32 random bits. */
void random_blocks_fill(uint32_t format, uint64_t n, float spread, uint32_t (*next)(void *ctx), void *ctx,
                        uint8_t *out);

#endif
