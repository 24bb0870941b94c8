/* vec_probe.h - cpu/vec.h and cpu/math.h as each instruction set compiles them. */
#ifndef MOEFLUX_TESTS_VEC_PROBE_H
#define MOEFLUX_TESTS_VEC_PROBE_H

#include <stdint.h>

/* x, y, z are the arguments. turn, sums, bf16 and f16 read 64 values of x at a time; sum gives 8 times the
 * sum of 8, sums 8 times the 8 sums of 8. */
#define VEC_PROBES(each)                                                                                     \
    each(add) each(sub) each(mul) each(div) each(neg) each(fma) each(sqrt) each(max) each(min) each(abs)     \
        each(select) each(nearest) each(largest) each(sum) each(sums) each(bits) each(turn) each(bf16)       \
            each(f16) each(f16_wide) each(exp) each(log) each(log1p) each(tanh) each(sigmoid) each(silu)     \
                each(softplus)

enum vec_probe {
#define VEC_PROBE_OF(name) PROBE_##name,
    VEC_PROBES(VEC_PROBE_OF)
#undef VEC_PROBE_OF
        N_PROBES
};

/* out[i] for n values, a multiple of 64. */
typedef void vec_probe_fn(enum vec_probe what, const float *x, const float *y, const float *z, float *out,
                          uint64_t n);

/* Returns the probe of the instruction set with this idx. */
vec_probe_fn *vec_probe(uint32_t isa_idx);

#endif
