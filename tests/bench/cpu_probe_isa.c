/* The probes of cpu_probe.h, compiled once for each instruction set. */
#include "cpu_probe.h"

#include "cpu/pair.h"

extern const struct cpu_probe VEC_NAME(cpu_probe);

static float read_all(const void *p, uint64_t n)
{
    const uint8_t *at = p, *end = at + n;
    struct ivec sum[4] = {ivec_set1(0), ivec_set1(0), ivec_set1(0), ivec_set1(0)};
    for (; at < end; at += 256) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            __builtin_prefetch(at + 1024 + 64 * i);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sum[i % 4] = ivec_add(sum[i % 4], ivec_load(at + 32 * i));
    }
    return (float)ivec_largest(ivec_add(ivec_add(sum[0], sum[1]), ivec_add(sum[2], sum[3])));
}

/* Keeps as many sums as fit the registers, so that none waits for another. */
static float peak(uint64_t n)
{
#ifdef __AVX512F__
    enum { CHAINS = 12 };
#else
    enum { CHAINS = 6 };
#endif
    struct pair x[CHAINS], factor = pair_set1(0.9999f), more = pair_set1(1e-9f);
    struct vec sum = vec_zero();
    for (int i = 0; i < CHAINS; i++)
        x[i] = pair_set1((float)i);
    for (n = n * 12 / CHAINS; n > 0; n--)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            x[i] = pair_fma(x[i], factor, more);
    for (int i = 0; i < CHAINS; i++)
        sum = vec_add(sum, pair_fold(x[i]));
    return vec_sum(sum);
}

const struct cpu_probe VEC_NAME(cpu_probe) = {.read = read_all, .peak = peak};
