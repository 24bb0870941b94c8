/* gemv (product.h), the products of one vector or a few, for one instruction set; the Makefile compiles this
 * file once for each. */
#include "cpu/table.h"

#include "base/format.h"
#include "cpu/codes.h"
#include "cpu/product.h"

enum {
    BLOCKS = 64,   /* blocks whose scales are multiplied with the steps at once */
    BATCH = 4,     /* vectors whose sums stay in registers */
    STAY = 16,     /* rows that stay in the cache */
    AHEAD = 4096,  /* prefetch distance in bytes */
    MOST_PARTS = 4 /* most groups of a block */
};

/* How a matrix is stored. `kind` and `parts` are constants where they are used, in common formats all members
 * are. */
struct form {
    int kind;       /* FORMAT_* without group and scales */
    uint32_t group; /* columns */
    uint32_t parts; /* groups of a block; 1 for larger groups */
    uint32_t scale; /* SCALE_* */
};

static struct form form_of(const struct cpu_matrix *w)
{
    const struct format *f = format_of(w->format);
    uint32_t parts = f->group < CPU_BLOCK ? CPU_BLOCK / f->group : 1;
    return (struct form){(int)(w->format & FORMAT_KIND_MASK), f->group, parts, f->scale};
}

VEC_INLINE const float *sums_of(const struct cpu_vector *x, uint32_t group)
{
    return group == CPU_BLOCK ? x->sums : group < CPU_BLOCK ? x->sums_32 : x->sums_128;
}

/* Returns the biases' part, in the accumulator of the even blocks. */
VEC_INLINE struct pair begin(const uint8_t *biases, uint32_t groups, struct form f,
                             const struct cpu_vector *x)
{
    struct vec acc = vec_zero();
    const float *sums = sums_of(x, f.group);
    for (uint32_t g = 0; g < groups; g += VEC_LANES)
        acc = vec_fma(scales_load(biases, f.scale, g, groups), vec_load(sums + g), acc);
    return pair_of(acc, vec_zero());
}

/* Loads scales i to i + 15 of n, like scales_load. */
VEC_INLINE struct pair load_scales(const uint8_t *p, uint32_t scale, uint32_t i, uint32_t n)
{
    if (n - i >= PAIR_LANES)
        return pair_load_scales(p + (uint64_t)i * scales_bytes(scale), scale);
    struct vec low = scales_load(p, scale, i, n);
    return pair_of(low, n - i > VEC_LANES ? scales_load(p, scale, i + VEC_LANES, n) : low);
}

/* Loads the next steps, each repeated for the parts of its block. parts: 1, 2 or 4. */
VEC_INLINE struct pair load_steps(const float *steps, uint32_t parts)
{
    return parts == 1 ? pair_load(steps) : pair_each(steps, parts == 2 ? 4 : 2);
}

/* Computes scale * step for the parts of blocks from .. end - 1. scales: the row's; factor: theirs, or 1.
 * Past the last steps other numbers of the vector are read; their results are not used. */
VEC_INLINE void multiply_steps(const uint8_t *scales, float factor, struct form f, uint32_t from,
                               uint32_t end, const struct cpu_vector *x, int n,
                               float factors[][BLOCKS * MOST_PARTS])
{
    uint32_t per = f.group > CPU_BLOCK ? f.group / CPU_BLOCK : 1, parts = f.parts;
    uint32_t last = end * parts / per;
    for (uint32_t k = 0; k < (end - from) * parts; k += PAIR_LANES) {
        struct pair s;
        if (per == 2) {
            float some[VEC_LANES];
            vec_store(some, scales_load(scales, f.scale, (from + k) / 2, last));
            s = pair_each(some, VEC_LANES / 2);
        } else {
            s = load_scales(scales, f.scale, from * parts + k, last);
        }
        if (f.scale == SCALE_E4M3_FACTOR)
            s = pair_mul(s, pair_set1(factor));
        if (codes_are_e2m1(f.kind))
            s = pair_mul(s, pair_set1(0.5f));
        for (int i = 0; i < n; i++)
            pair_store(&factors[i][k], pair_mul(s, load_steps(x[i].steps + from + k / parts, parts)));
    }
}

/* Multiplies one row with n vectors; the codes are unpacked once. */
VEC_INLINE void affine_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                           struct form f, float *y)
{
    const struct cpu_matrix *w = call->w;
    uint32_t blocks = w->cols / CPU_BLOCK, groups = w->cols / f.group;
    uint64_t bytes = codes_bytes(f.kind), first_scale = (uint64_t)row * groups * scales_bytes(f.scale);
    const uint8_t *codes = (const uint8_t *)w->weight + row * (blocks * bytes);
    float factor = f.scale == SCALE_E4M3_FACTOR ? scales_one(w->biases, SCALE_F32, 0) : 1;
    struct pair acc[BATCH];
    for (int i = 0; i < n; i++)
        acc[i] = codes_are_e2m1(f.kind) ? pair_set1(0)
                                        : begin((const uint8_t *)w->biases + first_scale, groups, f, &x[i]);

    for (uint32_t from = 0; from < blocks; from += BLOCKS) {
        float factors[BATCH][BLOCKS * MOST_PARTS];
        uint32_t end = blocks - from < BLOCKS ? blocks : from + BLOCKS;
        size_t b = from, whole = from + (end - from) / 2 * 2;
        multiply_steps((const uint8_t *)w->scales + first_scale, factor, f, from, end, x, n, factors);
        for (; b < whole; b += 2, codes += 2 * bytes) {
            __builtin_prefetch(codes + AHEAD);
            if (codes_bits(f.kind) > 4)
                __builtin_prefetch(codes + AHEAD + 64);
            struct codes c = codes_load(codes, f.kind);
            for (int i = 0; i < n; i++)
                acc[i] = pair_fma(codes_dot(c, &x[i], b, f.kind),
                                  pair_each(&factors[i][(b - from) * f.parts], f.parts), acc[i]);
        }
        if (b == end)
            continue;
        struct codes c = codes_load_last(codes, f.kind);
        for (int i = 0; i < n; i++)
            acc[i] = pair_fma(codes_dot(c, &x[i], b, f.kind),
                              pair_each(&factors[i][(b - from) * f.parts], f.parts), acc[i]);
    }
    for (int i = 0; i < n; i++)
        y[(uint64_t)i * call->y_stride] = vec_sum(pair_fold(acc[i]));
}

/* Loads 16 plain numbers. */
VEC_INLINE struct pair load_numbers(const uint8_t *p, int kind)
{
    return kind == FORMAT_BF16  ? pair_load_bf16(p)
           : kind == FORMAT_F16 ? pair_load_f16(p)
                                : pair_load((const float *)(const void *)p);
}

/* Multiplies one row with n vectors. */
VEC_INLINE void plain_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                          int kind, float *y)
{
    const struct cpu_matrix *w = call->w;
    uint32_t whole = w->cols / PAIR_LANES * PAIR_LANES, rest = w->cols - whole;
    uint32_t bytes = kind == FORMAT_F32 ? 4 : 2;
    const uint8_t *p = (const uint8_t *)w->weight + row * ((uint64_t)w->cols * bytes);
    struct pair acc[BATCH];
    for (int i = 0; i < n; i++)
        acc[i] = pair_set1(0);
    for (uint32_t c = 0; c < whole; c += PAIR_LANES, p += (size_t)PAIR_LANES * bytes) {
        __builtin_prefetch(p + AHEAD);
        struct pair v = load_numbers(p, kind);
        for (int i = 0; i < n; i++)
            acc[i] = pair_fma(v, pair_load(x[i].x + c), acc[i]);
    }
    uint8_t last[PAIR_LANES * sizeof(float)] = {0};
    memcpy(last, p, (size_t)rest * bytes);
    for (int i = 0; i < n; i++) {
        float last_x[PAIR_LANES] = {0};
        memcpy(last_x, x[i].x + whole, rest * sizeof *last_x);
        if (rest > 0)
            acc[i] = pair_fma(load_numbers(last, kind), pair_load(last_x), acc[i]);
        y[(uint64_t)i * call->y_stride] = vec_sum(pair_fold(acc[i]));
    }
}

/* Columns that are taken at once; a divisor of every group of such formats. */
enum { E4M3_COLS = 32 };

VEC_INLINE bool is_e4m3(int kind)
{
    return kind == FORMAT_MXFP8 || kind == FORMAT_FP8 || kind == FORMAT_FP8_32;
}

/* Multiplies 32 numbers with a power of two. If all are normal, it multiplies 2^-120 of the number with 2^120
 * times the scale: the same product, rounded once. */
VEC_INLINE void mxfp8_weights(const uint8_t *p, const uint8_t *scale, struct pair out[2])
{
#ifdef VEC_AVX
    enum { UP = 120, MOST = 254 }; /* added to the exponent; the largest exponent */
    if (*scale <= MOST - UP && e4m3_are_normal(p)) {
        struct pair s = pair_bits(ipair_set1((*scale + UP) << 23));
        out[0] = pair_mul(pair_load_e4m3_small(p), s);
        out[1] = pair_mul(pair_load_e4m3_small(p + PAIR_LANES), s);
        return;
    }
#endif
    struct pair s = pair_set1(scales_one(scale, SCALE_E8M0, 0));
    out[0] = pair_mul(pair_load_e4m3(p), s);
    out[1] = pair_mul(pair_load_e4m3(p + PAIR_LANES), s);
}

VEC_INLINE void fp8_weights(const uint8_t *p, float scale, struct pair out[2])
{
    struct pair s = pair_set1(scale);
#ifdef VEC_AVX
    if (scale < 128 && scale > -128 && e4m3_are_normal(p)) {
        s = pair_set1(scale * 0x1p120f);
        out[0] = pair_mul(pair_load_e4m3_small(p), s);
        out[1] = pair_mul(pair_load_e4m3_small(p + PAIR_LANES), s);
        return;
    }
#endif
    out[0] = pair_mul(pair_load_e4m3(p), s);
    out[1] = pair_mul(pair_load_e4m3(p + PAIR_LANES), s);
}

/* Multiplies n_rows rows of 8-bit floats with n vectors. One vector takes several rows, because the sums of
 * one row would wait for each other. */
VEC_INLINE void e4m3_rows(const struct cpu_gemv_call *call, uint32_t row, uint32_t n_rows,
                          const struct cpu_vector *x, uint32_t n, struct form f, float *y)
{
    const struct cpu_matrix *w = call->w;
    struct pair acc[BATCH];
    for (uint32_t i = 0; i < n_rows * n; i++)
        acc[i] = pair_set1(0);
    for (uint32_t c = 0; c < w->cols; c += E4M3_COLS) {
        /* The prefetch distance counts in the order in which the rows are read; at their end it reaches the
         * next rows. */
        uint64_t ahead = AHEAD / n_rows;
        ahead += c + ahead < w->cols ? 0 : (uint64_t)(n_rows - 1) * w->cols;
        for (uint32_t r = 0; r < n_rows; r++) {
            uint64_t at = (uint64_t)(row + r) * w->cols + c;
            const uint8_t *p = (const uint8_t *)w->weight + at;
            struct pair v[2];
            __builtin_prefetch(p + ahead);
            if (f.kind == FORMAT_MXFP8)
                mxfp8_weights(p, (const uint8_t *)w->scales + at / E4M3_COLS, v);
            else
                fp8_weights(p, scales_one(w->scales, SCALE_F32, at / (uint64_t)f.group), v);
            for (uint32_t k = 0; k < 2; k++)
                for (uint32_t i = 0; i < n; i++)
                    acc[r * n + i] =
                        pair_fma(v[k], pair_load(x[i].x + c + (size_t)k * PAIR_LANES), acc[r * n + i]);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[(uint64_t)i * call->y_stride + r] = vec_sum(pair_fold(acc[r * n + i]));
}

VEC_INLINE void one_row(const struct cpu_gemv_call *call, uint32_t row, uint32_t i, int n, struct form f)
{
    float *y = call->y + i * call->y_stride + row;
    if (is_e4m3((int)f.kind))
        e4m3_rows(call, row, 1, &call->x[i], (uint32_t)n, f, y);
    else if (f.kind == FORMAT_BF16 || f.kind == FORMAT_F16 || f.kind == FORMAT_F32)
        plain_row(call, row, &call->x[i], n, f.kind, y);
    else
        affine_row(call, row, &call->x[i], n, f, y);
}

VEC_INLINE void some_rows(const struct cpu_gemv_call *call, uint32_t first, uint32_t last, uint32_t i, int n,
                          struct form f)
{
    const uint32_t n_rows = BATCH / (uint32_t)n;
    for (; is_e4m3((int)f.kind) && n_rows > 1 && last - first >= n_rows; first += n_rows)
        e4m3_rows(call, first, n_rows, &call->x[i], (uint32_t)n, f, call->y + i * call->y_stride + first);
    for (uint32_t r = first; r < last; r++)
        one_row(call, r, i, n, f);
}

/* A few rows at a time stay in the cache for the next vectors, and the vectors' digits for those rows. */
VEC_INLINE void all_rows(const struct cpu_gemv_call *call, struct form f)
{
    for (uint32_t first = call->first, last; first < call->last; first = last) {
        last = call->last - first > STAY ? first + STAY : call->last;
        uint32_t i = 0;
        for (; call->n - i >= BATCH; i += BATCH)
            some_rows(call, first, last, i, BATCH, f);
        if (call->n - i >= 2) {
            some_rows(call, first, last, i, 2, f);
            i += 2;
        }
        if (call->n > i)
            some_rows(call, first, last, i, 1, f);
    }
}

typedef void rows_fn(const struct cpu_gemv_call *call, struct form f);

/* Each form has a function of its own with as many constants as the loops' speed needs: in one large function
 * gcc would keep the sums in memory. */
#define ROWS(name, ...)                                                                                      \
    static void name(const struct cpu_gemv_call *call, struct form f)                                        \
    {                                                                                                        \
        const struct form known = {__VA_ARGS__};                                                             \
        (void)f;                                                                                             \
        all_rows(call, known);                                                                               \
    }
/* One function for all instead: on the portable set, where unpacking takes the time anyway, and with
 * sanitizers, whose checks in each copy would take the compiler half a minute. */
#if defined(CPU_ISA_portable) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
ROWS(any, f.kind, f.group, f.parts, f.scale)
#define BODY(how, name) any
#define AFFINE_OF(name, scale)
#define E2M1(name, ...)
#else
#define BODY(how, name) how##_##name
#define AFFINE_OF(name, scale)                                                                               \
    ROWS(common_##name, FORMAT_##name, CPU_BLOCK, 1, SCALE_BF16)                                             \
    ROWS(whole_##name, FORMAT_##name, f.group, 1, scale)                                                     \
    ROWS(parts_##name, FORMAT_##name, CPU_BLOCK / 2, 2, scale)
#define E2M1(name, ...) ROWS(parts_##name, FORMAT_##name, __VA_ARGS__)
#endif
#define AFFINE(name) AFFINE_OF(name, f.scale)
#define THREE(name)  [FORMAT_##name] = {BODY(common, name), BODY(whole, name), BODY(parts, name)}

/* [kind][groups of 64 with bf16 scales; other groups of at least 64; groups of 32]. */
typedef rows_fn *const rows_table[FORMAT_KINDS][3];

static void run_rows(const rows_table rows, const struct cpu_gemv_call *call, struct form f)
{
    bool is_common = f.group == CPU_BLOCK && f.scale == SCALE_BF16;
    rows[f.kind][is_common ? 0 : f.group < CPU_BLOCK ? 2 : 1](call, f);
}

#ifdef CPU_ISA_avx512vbmi
/* The formats that instructions for single bytes and bits (VBMI) make faster; this part is compiled
 * separately for them. */
AFFINE_OF(Q3, SCALE_BF16)
AFFINE_OF(Q5, SCALE_BF16)
AFFINE_OF(Q6, SCALE_BF16)

void gemv_avx512vbmi(const struct cpu_gemv_call *call)
{
    static const rows_table rows = {THREE(Q3), THREE(Q5), THREE(Q6)};
    run_rows(rows, call, form_of(call->w));
}
#else
#ifdef CPU_ISA_avx512
static bool is_for_vbmi(struct form f)
{
    bool has_it = f.kind == FORMAT_Q3 || f.kind == FORMAT_Q5 || f.kind == FORMAT_Q6;
    return has_it && f.scale == SCALE_BF16 && __builtin_cpu_supports("avx512vbmi");
}
#endif

ROWS(rows_of_bf16, FORMAT_BF16, 1, 1, SCALE_NONE)
ROWS(rows_of_f16, FORMAT_F16, 1, 1, SCALE_NONE)
ROWS(rows_of_f32, FORMAT_F32, 1, 1, SCALE_NONE)
ROWS(rows_of_mxfp8, FORMAT_MXFP8, 32, 2, SCALE_E8M0)
ROWS(rows_of_fp8, FORMAT_FP8, 128, 1, SCALE_F32)
ROWS(rows_of_fp8_32, FORMAT_FP8_32, 32, 2, SCALE_F32)
AFFINE(Q4)
AFFINE(Q8)
AFFINE(Q2)
AFFINE(Q3)
AFFINE(Q5)
AFFINE(Q6)
E2M1(MXFP4, 32, 2, SCALE_E8M0)
E2M1(NVFP4, 16, 4, SCALE_E4M3)
E2M1(NVFP4_FACTOR, 16, 4, SCALE_E4M3_FACTOR)

void VEC_NAME(gemv)(const struct cpu_gemv_call *call)
{
    static const rows_table rows = {THREE(Q4),
                                    THREE(Q8),
                                    THREE(Q2),
                                    THREE(Q3),
                                    THREE(Q5),
                                    THREE(Q6),
                                    [FORMAT_MXFP4] = {NULL, NULL, BODY(parts, MXFP4)},
                                    [FORMAT_NVFP4] = {NULL, NULL, BODY(parts, NVFP4)},
                                    [FORMAT_NVFP4_FACTOR] = {NULL, NULL, BODY(parts, NVFP4_FACTOR)},
                                    [FORMAT_MXFP8] = {NULL, NULL, rows_of_mxfp8},
                                    [FORMAT_FP8] = {NULL, rows_of_fp8, NULL},
                                    [FORMAT_FP8_32] = {NULL, NULL, rows_of_fp8_32},
                                    [FORMAT_BF16] = {NULL, NULL, rows_of_bf16},
                                    [FORMAT_F16] = {NULL, NULL, rows_of_f16},
                                    [FORMAT_F32] = {NULL, NULL, rows_of_f32}};
    struct form f = form_of(call->w);
    if (format_is_block(call->w->format)) {
        VEC_NAME(gemv_blocks)(call);
        return;
    }
#ifdef CPU_ISA_avx512
    if (is_for_vbmi(f)) {
        gemv_avx512vbmi(call);
        return;
    }
#endif
    run_rows(rows, call, f);
}
#endif
