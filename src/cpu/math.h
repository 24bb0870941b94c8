/* math.h - exp, log, tanh and their relatives over 8 lanes.
 *
 * They are SLEEF's deterministic functions: the same bits on every processor with a fused multiply-add, in 8
 * lanes, 4 or one. Errors: at most 1 unit in the last place for exp, log, log1p (up to 1e38) and tanh, at
 * most 4 for what is made of them. */
#ifndef MOEFLUX_CPU_MATH_H
#define MOEFLUX_CPU_MATH_H

#include <sleef.h>

#include "cpu/vec.h"

/* The same for one value. Without a fused multiply-add they are SLEEF's other functions, whose bits differ
 * (cpu_common_bits). */
float math_exp_1(float x);
float math_log_1(float x);
float math_log1p_1(float x);
float math_tanh_1(float x);

#if defined(VEC_AVX)
#define MATH_LANES(name, sleef)                                                                              \
    VEC_INLINE struct vec math_##name(struct vec x)                                                          \
    {                                                                                                        \
        return (struct vec){Sleef_finz_##sleef##f8_u10avx2(x.a)};                                            \
    }
#elif defined(VEC_NEON)
#define MATH_LANES(name, sleef)                                                                              \
    VEC_INLINE struct vec math_##name(struct vec x)                                                          \
    {                                                                                                        \
        return (struct vec){Sleef_finz_##sleef##f4_u10advsimd(x.a), Sleef_finz_##sleef##f4_u10advsimd(x.b)}; \
    }
#else
#define MATH_LANES(name, sleef)                                                                              \
    VEC_INLINE struct vec math_##name(struct vec x)                                                          \
    {                                                                                                        \
        float lanes[VEC_LANES];                                                                              \
        vec_store(lanes, x);                                                                                 \
        for (int l = 0; l < VEC_LANES; l++)                                                                  \
            lanes[l] = math_##name##_1(lanes[l]);                                                            \
        return vec_load(lanes);                                                                              \
    }
#endif

MATH_LANES(exp, exp)
MATH_LANES(log, log)
MATH_LANES(log1p, log1p)
MATH_LANES(tanh, tanh)
#undef MATH_LANES

/* 1 / (1 + exp(-x)); 0 below -88.7. */
VEC_INLINE struct vec math_sigmoid(struct vec x)
{
    struct vec one = vec_set1(1);
    return vec_div(one, vec_add(one, math_exp(vec_neg(x))));
}

/* x / (1 + exp(-x)); 0 below -88.7. */
VEC_INLINE struct vec math_silu(struct vec x)
{
    return vec_div(x, vec_add(vec_set1(1), math_exp(vec_neg(x))));
}

/* log(1 + exp(x)) without overflow: max(x, 0) + log1p(exp(-|x|)) */
VEC_INLINE struct vec math_softplus(struct vec x)
{
    return vec_add(vec_max(x, vec_zero()), math_log1p(math_exp(vec_neg(vec_abs(x)))));
}

#endif
