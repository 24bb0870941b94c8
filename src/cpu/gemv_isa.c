#include "cpu/table.h"

#include "cpu/codes.h"
#include "cpu/product.h"

enum {
    GROUPS = 64,  /* whose scales are multiplied with the steps at once */
    TOGETHER = 4, /* vectors whose sums stay in registers */
    STAY = 16,    /* rows */
    AHEAD = 4096, /* bytes that are asked for before they are needed */
};

/* Values g to g + 7 of n bf16; zeros for those that are not there. */
VEC_INLINE struct vec load_groups(const uint8_t *p, uint32_t g, uint32_t n)
{
    p += (uint64_t)g * 2;
    if (n - g >= VEC_LANES)
        return vec_load_bf16(p);
    uint16_t some[VEC_LANES] = {0};
    for (uint32_t i = 0; i < n - g; i++, p += 2)
        memcpy(&some[i], p, 2);
    return vec_load_bf16(some);
}

/* The biases' part, in the accumulator of the even blocks. */
VEC_INLINE struct pair begin(const uint8_t *biases, uint32_t groups, const struct cpu_vector *x)
{
    struct vec acc = vec_zero();
    for (uint32_t g = 0; g < groups; g += VEC_LANES)
        acc = vec_fma(load_groups(biases, g, groups), vec_load(x->sums + g), acc);
    return pair_of(acc, vec_zero());
}

/* One row times n vectors, the codes unpacked once. */
VEC_INLINE void affine_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                           int bits, float *y)
{
    const struct cpu_matrix *w = call->w;
    uint32_t groups = w->cols / CPU_BLOCK;
    const uint8_t *codes = (const uint8_t *)w->weight + row * (groups * codes_bytes(bits));
    const uint8_t *scales = (const uint8_t *)w->scales + (uint64_t)row * groups * 2;
    struct pair acc[TOGETHER];
    for (int i = 0; i < n; i++)
        acc[i] = begin((const uint8_t *)w->biases + (uint64_t)row * groups * 2, groups, &x[i]);

    for (uint32_t from = 0; from < groups; from += GROUPS) {
        float factors[TOGETHER][GROUPS];
        uint32_t end = groups - from < GROUPS ? groups : from + GROUPS;
        for (uint32_t g = from; g < end; g += VEC_LANES) {
            struct vec s = load_groups(scales, g, end);
            for (int i = 0; i < n; i++)
                vec_store(&factors[i][g - from], vec_mul(s, vec_load(x[i].steps + g)));
        }
        for (uint32_t b = from; b < end; b += 2, codes += 2 * codes_bytes(bits)) {
            __builtin_prefetch(codes + AHEAD);
            if (bits > 4)
                __builtin_prefetch(codes + AHEAD + 64);
            struct codes c = b + 1 < end ? codes_load(codes, bits) : codes_load_last(codes, bits);
            for (int i = 0; i < n; i++)
                acc[i] = pair_fma(codes_dot(c, x[i].digits + (uint64_t)b / 2 * PAIR_DIGITS, bits),
                                  pair_set2(&factors[i][b - from]), acc[i]);
        }
    }
    for (int i = 0; i < n; i++)
        y[(uint64_t)i * call->y_stride] = vec_sum(pair_fold(acc[i]));
}

VEC_INLINE struct pair load_numbers(const uint8_t *p, uint32_t bytes)
{
    return bytes == 2 ? pair_load_bf16(p) : pair_load((const float *)(const void *)p);
}

/* One row times n vectors. */
VEC_INLINE void plain_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                          uint32_t bytes, float *y)
{
    const struct cpu_matrix *w = call->w;
    uint32_t whole = w->cols / PAIR_LANES * PAIR_LANES, rest = w->cols - whole;
    const uint8_t *p = (const uint8_t *)w->weight + row * ((uint64_t)w->cols * bytes);
    struct pair acc[TOGETHER];
    for (int i = 0; i < n; i++)
        acc[i] = pair_set1(0);
    for (uint32_t c = 0; c < whole; c += PAIR_LANES, p += (size_t)PAIR_LANES * bytes) {
        __builtin_prefetch(p + AHEAD);
        struct pair v = load_numbers(p, bytes);
        for (int i = 0; i < n; i++)
            acc[i] = pair_fma(v, pair_load(x[i].x + c), acc[i]);
    }
    uint8_t last[PAIR_LANES * sizeof(float)] = {0};
    memcpy(last, p, (size_t)rest * bytes);
    for (int i = 0; i < n; i++) {
        float last_x[PAIR_LANES] = {0};
        memcpy(last_x, x[i].x + whole, rest * sizeof *last_x);
        if (rest > 0)
            acc[i] = pair_fma(load_numbers(last, bytes), pair_load(last_x), acc[i]);
        y[(uint64_t)i * call->y_stride] = vec_sum(pair_fold(acc[i]));
    }
}

VEC_INLINE void one_row(const struct cpu_gemv_call *call, uint32_t row, uint32_t i, int n,
                        enum cpu_format format)
{
    float *y = call->y + i * call->y_stride + row;
    if (format == CPU_Q4 || format == CPU_Q8)
        affine_row(call, row, &call->x[i], n, format == CPU_Q4 ? 4 : 8, y);
    else
        plain_row(call, row, &call->x[i], n, format == CPU_BF16 ? 2 : 4, y);
}

VEC_INLINE void some_rows(const struct cpu_gemv_call *call, uint32_t first, uint32_t last, uint32_t i, int n,
                          enum cpu_format format)
{
    for (uint32_t r = first; r < last; r++)
        one_row(call, r, i, n, format);
}

/* A few rows at a time stay in the cache for the next vectors, whose digits then stay there for those rows. */
VEC_INLINE void all_rows(const struct cpu_gemv_call *call, enum cpu_format format)
{
    for (uint32_t first = call->first, last; first < call->last; first = last) {
        last = call->last - first > STAY ? first + STAY : call->last;
        uint32_t i = 0;
        for (; call->n - i >= TOGETHER; i += TOGETHER)
            some_rows(call, first, last, i, TOGETHER, format);
        if (call->n - i >= 2) {
            some_rows(call, first, last, i, 2, format);
            i += 2;
        }
        if (call->n > i)
            some_rows(call, first, last, i, 1, format);
    }
}

void VEC_NAME(gemv)(const struct cpu_gemv_call *call)
{
    switch (call->w->format) {
    case CPU_Q4:
        all_rows(call, CPU_Q4);
        break;
    case CPU_Q8:
        all_rows(call, CPU_Q8);
        break;
    case CPU_BF16:
        all_rows(call, CPU_BF16);
        break;
    case CPU_F32:
        all_rows(call, CPU_F32);
        break;
    }
}
