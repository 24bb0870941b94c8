/* The probes of vec_probe.h, compiled once for each instruction set. */
#include "vec_probe.h"

#include "cpu/math.h"

vec_probe_fn VEC_NAME(vec_probe);

static struct vec each(enum vec_probe what, struct vec x, struct vec y, struct vec z)
{
    switch (what) {
    case PROBE_add:
        return vec_add(x, y);
    case PROBE_sub:
        return vec_sub(x, y);
    case PROBE_mul:
        return vec_mul(x, y);
    case PROBE_div:
        return vec_div(x, y);
    case PROBE_neg:
        return vec_neg(x);
    case PROBE_fma:
        return vec_fma(x, y, z);
    case PROBE_sqrt:
        return vec_sqrt(x);
    case PROBE_max:
        return vec_max(x, y);
    case PROBE_min:
        return vec_min(x, y);
    case PROBE_abs:
        return vec_abs(x);
    case PROBE_select:
        return vec_select(vec_greater(x, y), y, z);
    case PROBE_nearest:
        return vec_from_int(ivec_nearest(x));
    case PROBE_largest:
        return vec_set1(vec_largest(x) + (float)ivec_largest(ivec_nearest(x)));
    case PROBE_sum:
        return vec_set1(vec_sum(x));
    case PROBE_bits: { /* what the integer operations make of the lanes' bits, as numbers */
        struct ivec a = ivec_bits(x), b = ivec_bits(y);
        struct ivec s = ivec_add(ivec_left(a, 3), ivec_sub(ivec_right(b, 5), ivec_right_signed(a, 7)));
        s = ivec_or(ivec_and(s, b), ivec_select(ivec_equal(a, b), a, ivec_max(a, s)));
        return vec_from_int(ivec_select(ivec_greater(a, b), s, ivec_sub(s, ivec_set1(77))));
    }
    case PROBE_exp:
        return math_exp(x);
    case PROBE_log:
        return math_log(x);
    case PROBE_log1p:
        return math_log1p(x);
    case PROBE_tanh:
        return math_tanh(x);
    case PROBE_sigmoid:
        return math_sigmoid(x);
    case PROBE_silu:
        return math_silu(x);
    case PROBE_softplus:
        return math_softplus(x);
    default:
        return vec_zero();
    }
}

static void square(enum vec_probe what, const float *x, float *out)
{
    const void *rows[VEC_LANES];
    struct ivec turned[VEC_LANES];
    uint16_t half[VEC_LANES];
    struct vec all[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++) {
        rows[i] = x + VEC_LANES * i;
        all[i] = vec_load(x + VEC_LANES * i);
    }
    vec_turn(rows, turned);
    for (int i = 0; i < VEC_LANES; i++) {
        float *to = out + VEC_LANES * i;
        struct vec v = vec_load(x + VEC_LANES * i);
        if (what == PROBE_sums)
            vec_store(to, vec_sums(all));
        if (what == PROBE_turn)
            ivec_store(to, turned[i]);
        if (what == PROBE_bf16) {
            vec_store_bf16(half, v);
            vec_store(to, vec_load_bf16(half));
        }
        if (what == PROBE_f16) {
            vec_store_f16(half, v);
            vec_store(to, vec_load_f16(half));
        }
        if (what == PROBE_f16_wide) /* the bits of 8 of 16 float16 numbers */
            vec_store(to, vec_load_f16(x + VEC_LANES * i));
    }
}

void VEC_NAME(vec_probe)(enum vec_probe what, const float *x, const float *y, const float *z, float *out,
                         uint64_t n)
{
    if (what == PROBE_turn || what == PROBE_sums || what == PROBE_bf16 || what == PROBE_f16 ||
        what == PROBE_f16_wide) {
        for (uint64_t i = 0; i < n; i += 64)
            square(what, x + i, out + i);
        return;
    }
    for (uint64_t i = 0; i < n; i += VEC_LANES)
        vec_store(out + i, each(what, vec_load(x + i), vec_load(y + i), vec_load(z + i)));
}
