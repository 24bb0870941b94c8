/* gemv_blocks and widen_blocks (product.h): gemv and widen for block formats, for one instruction set. */
#include "cpu/table.h"

#include "base/format.h"
#include "cpu/block_unpack.h"

enum {
    BATCH = 2,   /* vectors whose sums stay in registers */
    STAY = 16,   /* rows that stay in the cache */
    AHEAD = 4096 /* prefetch distance in bytes */
};

/* A row's blocks as gemv needs them. `type` is a constant, or BLOCK_ANY. */
struct blocks {
    int type;
    uint32_t format; /* FORMAT_* */
    uint32_t cols, bytes;
    bool has_bias;
};

/* Repeats each of 8 floats in two lanes: floats 8 i to 8 i + 7 of v. */
VEC_INLINE struct pair twice(struct pair v, uint32_t i)
{
#if defined(__AVX512F__)
    const __m512i idx = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return (struct pair){
        _mm512_permutexvar_ps(i == 0 ? idx : _mm512_or_si512(idx, _mm512_set1_epi32(8)), v.v)};
#elif defined(VEC_AVX)
    __m256 eight = i == 0 ? v.low.a : v.high.a;
    return pair_of((struct vec){_mm256_permutevar8x32_ps(eight, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))},
                   (struct vec){_mm256_permutevar8x32_ps(eight, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))});
#else
    float all[PAIR_LANES];
    pair_store(all, v);
    return pair_each(all + (size_t)8 * i, 4);
#endif
}

/* Adds the products of the first 8 lanes, then those of the others. */
VEC_INLINE struct vec fma_both(struct pair x, struct pair y, struct vec z)
{
#ifdef __AVX512F__
    z = (struct vec){_mm256_fmadd_ps(_mm512_castps512_ps256(x.v), _mm512_castps512_ps256(y.v), z.a)};
    return (struct vec){_mm256_fmadd_ps(_mm512_extractf32x8_ps(x.v, 1), _mm512_extractf32x8_ps(y.v, 1), z.a)};
#else
    return vec_fma(x.high, y.high, vec_fma(x.low, y.low, z));
#endif
}

/* Adds a unit's products to the sums of n vectors. b: the unit's first block. */
VEC_INLINE void add_unit(const struct unit *u, const struct blocks *f, size_t b, const struct cpu_vector *x,
                         int n, struct pair *acc, struct vec *mins)
{
    struct pair scales = unit_scales(u, f->type), factors[BATCH];
    for (int i = 0; i < n; i++)
        factors[i] = pair_mul(scales, pair_each(x[i].steps + b, 2));
    if (f->has_bias) {
        struct pair biases = unit_biases(u, f->type);
        for (int i = 0; i < n; i++)
            mins[i] = fma_both(biases, pair_load(x[i].sums_16 + 4 * b), mins[i]);
    }
#pragma GCC unroll 2
    for (uint32_t k = 0; k < UNIT_BLOCKS / 2; k++) {
        struct block_codes c = unit_codes(u, k, f->type);
        for (int i = 0; i < n; i++)
            acc[i] = pair_fma(block_dot(c, &x[i], b + (size_t)2 * k, block_code_type(f->type)),
                              twice(factors[i], k), acc[i]);
    }
}

/* Multiplies one row with n vectors; the codes are unpacked once. */
VEC_INLINE void one_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                        const struct blocks *f, float *y)
{
    const uint32_t cols = call->w->cols, bytes = f->bytes * (UNIT_COLS / f->cols);
    const uint8_t *p = (const uint8_t *)call->w->weight + (uint64_t)row * (cols / f->cols) * f->bytes;
    struct pair acc[BATCH];
    struct vec mins[BATCH];
    struct unit u;
    size_t b = 0;
    for (int i = 0; i < n; i++) {
        acc[i] = pair_set1(0);
        mins[i] = vec_zero();
    }
    for (; (b + UNIT_BLOCKS) * CPU_BLOCK <= cols; b += UNIT_BLOCKS, p += bytes) {
        for (uint32_t k = 0; k < bytes; k += 64)
            __builtin_prefetch(p + AHEAD + k);
        if (f->type == BLOCK_ANY)
            unit_open(&u, f->format, p, UNIT_COLS / f->cols, f->cols, f->bytes);
        else
            unit_begin(&u, p, f->type);
        add_unit(&u, f, b, x, n, acc, mins);
    }
    if (b * CPU_BLOCK < cols) { /* blocks that are not there count as zeros */
        uint8_t last[UNIT_MOST_BYTES] = {0};
        uint32_t left = (cols - (uint32_t)b * CPU_BLOCK) / f->cols;
        memcpy(last, p, (size_t)left * f->bytes);
        if (f->type == BLOCK_ANY)
            unit_open(&u, f->format, last, left, f->cols, f->bytes);
        else
            unit_begin(&u, last, f->type);
        add_unit(&u, f, b, x, n, acc, mins);
    }
    for (int i = 0; i < n; i++)
        y[(uint64_t)i * call->y_stride] = vec_sum(vec_add(pair_fold(acc[i]), mins[i]));
}

VEC_INLINE void some_rows(const struct cpu_gemv_call *call, uint32_t first, uint32_t last, uint32_t i, int n,
                          const struct blocks *f)
{
    for (uint32_t r = first; r < last; r++)
        one_row(call, r, &call->x[i], n, f, call->y + i * call->y_stride + r);
}

/* A few rows at a time stay in the cache for the next vectors, and the vectors' digits for those rows. */
VEC_INLINE void all_rows(const struct cpu_gemv_call *call, const struct blocks *f)
{
    for (uint32_t first = call->first, last; first < call->last; first = last) {
        last = call->last - first > STAY ? first + STAY : call->last;
        uint32_t i = 0;
        for (; call->n - i >= BATCH; i += BATCH)
            some_rows(call, first, last, i, BATCH, f);
        if (call->n > i)
            some_rows(call, first, last, i, 1, f);
    }
}

#define BLOCKS_OF(name, has_bias)                                                                            \
    {                                                                                                        \
        FORMAT_G_##name, FORMAT_G_##name, FORMAT_COLS_##name, FORMAT_BYTES_##name, has_bias                  \
    }
static struct blocks blocks_for(uint32_t format)
{
    switch (format) {
#define ONE_OF(name, has_bias)                                                                               \
    case FORMAT_G_##name:                                                                                    \
        return (struct blocks)BLOCKS_OF(name, has_bias);
        UNIT_KNOWN(ONE_OF)
    default: {
        const struct format *f = format_of(format);
        return (struct blocks){BLOCK_ANY, format, f->group, f->block_bytes, format_block_has_bias(format)};
    }
    }
}

/* Each type that block_unpack.h knows has a function of its own, in which everything about it is a constant.
 * With sanitizers one function does it, because their checks in each copy would take the compiler minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EACH_KNOWN(each)
#else
#define EACH_KNOWN(each) UNIT_KNOWN(each)
#endif
#define ROWS(name, has_bias)                                                                                 \
    static void rows_of_##name(const struct cpu_gemv_call *call)                                             \
    {                                                                                                        \
        const struct blocks f = BLOCKS_OF(name, has_bias);                                                   \
        all_rows(call, &f);                                                                                  \
    }
EACH_KNOWN(ROWS)

void VEC_NAME(gemv_blocks)(const struct cpu_gemv_call *call)
{
    const struct blocks any = blocks_for(call->w->format);
    switch (call->w->format) {
#define CALL(name, has_bias)                                                                                 \
    case FORMAT_G_##name:                                                                                    \
        rows_of_##name(call);                                                                                \
        break;
        EACH_KNOWN(CALL)
    default:
        all_rows(call, &any);
        break;
    }
}

/* Widens a block of 64 columns. scales, biases: the block's, in the order of the lanes. */
VEC_INLINE void widen_block(const struct unit *u, const struct blocks *f, uint32_t block, const float *scales,
                            const float *biases, float *out)
{
    uint8_t codes[CPU_BLOCK];
    unit_store(u, block, f->type, codes);
    for (uint32_t part = 0; part < CPU_BLOCK / PART_COLS; part++, out += PART_COLS) {
        uint32_t at = (part & 1) * 2 + part / 2;
        struct ipair code = ipair_add(ipair_load_bytes(codes + (size_t)part * PART_COLS), ipair_set1(-128));
        struct pair v = pair_mul(pair_from_int(code), pair_set1(scales[at]));
        pair_store(out, f->has_bias ? pair_add(v, pair_set1(biases[at])) : v);
    }
}

/* Widens blocks of 64 columns of one unit. p: the unit's bytes, n: its blocks of the format. */
VEC_INLINE void widen_unit(const uint8_t *p, uint32_t n, const struct blocks *f, uint32_t first,
                           uint32_t last, float *out)
{
    float scales[UNIT_PARTS], biases[UNIT_PARTS];
    uint8_t some[UNIT_MOST_BYTES] = {0};
    struct unit u;
    if (f->type == BLOCK_ANY)
        unit_open(&u, f->format, p, n, f->cols, f->bytes);
    else
        unit_begin(&u, n * f->cols < UNIT_COLS ? memcpy(some, p, (size_t)n * f->bytes) : p, f->type);
    pair_store(scales, unit_scales(&u, f->type));
    if (f->has_bias)
        pair_store(biases, unit_biases(&u, f->type));
    for (uint32_t b = first; b < last; b++, out += CPU_BLOCK)
        widen_block(&u, f, b, scales + (size_t)4 * b, biases + (size_t)4 * b, out);
}

VEC_INLINE void widen_all(const struct cpu_matrix *w, const struct blocks *f, uint32_t row, uint32_t col,
                          uint32_t n, float *out)
{
    const uint8_t *p = (const uint8_t *)w->weight + (uint64_t)row * (w->cols / f->cols) * f->bytes;
    for (uint32_t c = col, last; c < col + n; c = last) {
        uint32_t unit = c / UNIT_COLS * UNIT_COLS, left = w->cols - unit;
        last = col + n < unit + UNIT_COLS ? col + n : unit + UNIT_COLS;
        widen_unit(p + (uint64_t)unit / f->cols * f->bytes, (left < UNIT_COLS ? left : UNIT_COLS) / f->cols,
                   f, (c - unit) / CPU_BLOCK, (last - unit) / CPU_BLOCK, out + (c - col));
    }
}

#define WIDEN(name, has_bias)                                                                                \
    static void widen_##name(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out) \
    {                                                                                                        \
        const struct blocks f = BLOCKS_OF(name, has_bias);                                                   \
        widen_all(w, &f, row, col, n, out);                                                                  \
    }
EACH_KNOWN(WIDEN)

void VEC_NAME(widen_blocks)(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    const struct blocks any = blocks_for(w->format);
    switch (w->format) {
#define CALL_WIDEN(name, has_bias)                                                                           \
    case FORMAT_G_##name:                                                                                    \
        widen_##name(w, row, col, n, out);                                                                   \
        break;
        EACH_KNOWN(CALL_WIDEN)
    default:
        widen_all(w, &any, row, col, n, out);
        break;
    }
}
