/* cpu_bits.h - results that must have the same bits on every processor: tests/lib/cpu_bits.txt holds a hash
 * of each. */
#ifndef MOEFLUX_TESTS_CPU_BITS_H
#define MOEFLUX_TESTS_CPU_BITS_H

#include <stdint.h>

#include "cpu/isa.h"

/* Numbers that hash alike on every processor: SplitMix64. */
struct cpu_random {
    uint64_t state;
};
uint64_t cpu_random_next(struct cpu_random *r);
/* -1 to 1, 24 bits. */
float cpu_random_float(struct cpu_random *r);

/* The next instruction set that this processor has, from *idx on, which moves past
 * it; NULL after the last. */
const struct cpu_isa *cpu_next_isa(uint32_t *idx);

/* Fails the test when the n floats of `what` do not have the bits that the file has
 * for it. A NaN is a NaN. */
void cpu_bits_check(const char *what, const char *isa, const float *v, uint64_t n);

/* Fails where two results differ in a bit, naming the first. */
void cpu_bits_equal(const char *what, const char *isa, const float *v, const float *want, uint64_t n);

#endif
