/* pack_int16 and gemm_int16 (product.h) for avx512: block formats times tokens in 16-bit fixed point, by
 * products of bytes that are added four at a time (VNNI).
 *
 * A thread unpacks the codes of 256 columns (a unit) of 32 rows and uses them for all tokens of a chunk, then
 * those of the next unit. Tokens come in the tiles of gemm. A tile's place in the packed inputs is that of
 * its floats, of which it needs less than two thirds:
 *     digits  [32 columns][2][4 columns][token][column]   bytes of x / step + 32768, the high one first
 *     sums    [32 columns][first 16, last 16, all][token] floats, of x / step
 *     steps   [unit][token]                               floats */
#include "cpu/table.h"

#ifdef __AVX512VNNI__
#include <float.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/pair.h"

enum {
    UNIT = CPU_CODE_PARTS * CPU_CODE_COLS, /* columns */
    PART = CPU_CODE_COLS,
    QUADS = PART / 4,
    SUB = CPU_CODE_ROWS,
    SUBS = 2,   /* subs that share the loads of tokens */
    N_SUMS = 3, /* a part of 32 columns has three */
    TOP = 32767,
    CHUNK_TILES = CPU_CHUNK_TOKENS / CPU_TILE_TOKENS,
    INFINITE = 0x7f800000
};

/* One tile of packed tokens. */
struct tokens {
    uint8_t *digits;
    float *sums, *steps;
    uint32_t n;
};

static struct tokens tokens_of(float *packed, uint32_t n, uint32_t cols, uint32_t tile)
{
    uint32_t begin = cpu_tile_begin(n, tile), t = cpu_tile_begin(n, tile + 1) - begin;
    struct tokens p = {.digits = (uint8_t *)(packed + (uint64_t)begin * cols), .n = t};
    p.sums = (float *)(void *)(p.digits + (uint64_t)2 * cols * t);
    p.steps = p.sums + (uint64_t)cols / PART * N_SUMS * t;
    return p;
}

/* ---- tokens ---- */

/* Returns a unit's step: 0 for zeros, NaN if a number is infinite or a NaN. n: columns. */
static float step_of(const float *x, uint32_t n, float *inverse)
{
    __m512i most = _mm512_setzero_si512();
    for (uint32_t c = 0; c < n; c += PAIR_LANES) {
        __m512i v = _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7fffffff));
        most = _mm512_max_epi32(most, v);
    }
    /* The bits of positive floats are ordered as the floats are. */
    int32_t bits = _mm512_reduce_max_epi32(most);
    float largest, step;
    memcpy(&largest, &bits, sizeof largest);
    *inverse = 0;
    if (bits == 0)
        return 0;
    if (bits >= INFINITE)
        return NAN;
    step = largest / TOP;
    *inverse = step < FLT_MIN ? 1 / FLT_MIN : TOP / largest;
    return step < FLT_MIN ? FLT_MIN : step;
}

/* Packs a part of 32 columns of one of t tokens. */
static void pack_part(const float *x, float inverse, uint32_t t, uint8_t *digits, float *sums)
{
    uint32_t fours[2][QUADS];
    __m256i halves[2];
    int32_t sum[2];
    for (int i = 0; i < 2; i++) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i * SUB), _mm512_set1_ps(inverse));
        __m512i whole = _mm512_cvtps_epi32(v);
        sum[i] = _mm512_reduce_add_epi32(whole);
        sums[(uint64_t)i * t] = (float)sum[i];
        halves[i] = _mm512_cvtepi32_epi16(whole);
    }
    sums[(uint64_t)2 * t] = (float)(sum[0] + sum[1]);
    __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1);
    all = _mm512_xor_si512(all, _mm512_set1_epi16((int16_t)0x8000));
    _mm256_storeu_si256((__m256i *)(void *)fours[0], _mm512_cvtepi16_epi8(_mm512_srli_epi16(all, 8)));
    _mm256_storeu_si256((__m256i *)(void *)fours[1], _mm512_cvtepi16_epi8(all));
    for (int d = 0; d < 2; d++)
        for (uint32_t q = 0; q < QUADS; q++, digits += (size_t)4 * t)
            memcpy(digits, &fours[d][q], 4);
}

static void pack_token(const float *x, uint32_t cols, const struct tokens *to, uint32_t i)
{
    for (uint32_t c = 0; c < cols; c += UNIT) {
        uint32_t n = cols - c < UNIT ? cols - c : UNIT;
        float inverse;
        to->steps[(uint64_t)c / UNIT * to->n + i] = step_of(x + c, n, &inverse);
        for (uint32_t at = c; at < c + n; at += PART)
            pack_part(x + at, inverse, to->n, to->digits + (uint64_t)2 * at * to->n + (size_t)4 * i,
                      to->sums + (uint64_t)at / PART * N_SUMS * to->n + i);
    }
}

void VEC_NAME(pack_int16)(const struct cpu_pack_call *call)
{
    for (uint32_t tile = call->first; tile < call->last; tile++) {
        struct tokens to = tokens_of(call->packed, call->n, call->cols, tile);
        uint32_t begin = cpu_tile_begin(call->n, tile);
        for (uint32_t i = 0; i < to.n; i++) {
            uint32_t from = call->pick ? call->pick[begin + i] : begin + i;
            pack_token(call->x + from * call->x_stride, call->cols, &to, i);
        }
    }
}

/* ---- products ---- */

/* A unit of SUBS subs. */
struct panels {
    struct cpu_code_panel of[SUBS];
    int32_t begin[SUBS][2 * CPU_CODE_PARTS][SUB]; /* -128 times the sum of a group's codes */
    uint32_t parts;                               /* 32 columns each */
};

/* One tile of tokens times a unit. x: the unit's; sums [token][SUB] of each sub, `stride` apart. */
struct product {
    const struct panels *panels;
    const struct tokens *x;
    float *sums;
    uint64_t stride;
    bool from_zero;
};

/* Adds the products of a group with a digit. first: its first four columns in the part; t: tokens. */
VEC_INLINE void add_digit(const struct panels *p, const uint8_t *digits, uint32_t part, uint32_t first,
                          uint32_t quads, int t, int subs, __m512i acc[CPU_TILE_TOKENS][SUBS])
{
#pragma GCC unroll 8
    for (uint32_t q = first; q < first + quads; q++) {
        __m512i w[SUBS];
#pragma GCC unroll 2
        for (int s = 0; s < subs; s++)
            w[s] = _mm512_loadu_si512(p->of[s].codes[part][q]);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++) {
            int32_t four;
            memcpy(&four, digits + ((size_t)q * (size_t)t + (size_t)i) * 4, sizeof four);
            __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 2
            for (int s = 0; s < subs; s++)
                acc[i][s] = _mm512_dpbusd_epi32(acc[i][s], x, w[s]);
        }
    }
}

/* Computes sum of code * x / step of group k of a part. The digits have 32768 = 128 * 256 in excess. */
VEC_INLINE void dot_group(const struct panels *p, const uint8_t *digits, uint32_t part, uint32_t k,
                          uint32_t groups, int t, int subs, __m512i acc[CPU_TILE_TOKENS][SUBS])
{
    const uint32_t quads = QUADS / groups;
#pragma GCC unroll 2
    for (int s = 0; s < subs; s++) {
        __m512i begin = _mm512_load_si512(p->begin[s][part * groups + k]);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++)
            acc[i][s] = begin;
    }
    add_digit(p, digits, part, k * quads, quads, t, subs, acc);
#pragma GCC unroll 6
    for (int i = 0; i < t; i++)
#pragma GCC unroll 2
        for (int s = 0; s < subs; s++)
            acc[i][s] = _mm512_slli_epi32(acc[i][s], 8);
    add_digit(p, digits + (size_t)4 * QUADS * (size_t)t, part, k * quads, quads, t, subs, acc);
}

/* groups: of a part, 1 or 2; n_biases: of a part, 0 to 2. */
VEC_INLINE void run_tile(const struct product *c, int t, int subs, uint32_t groups, uint32_t n_biases)
{
    const struct panels *p = c->panels;
    const uint8_t *digits = c->x->digits;
    const float *x_sums = c->x->sums;
    __m512 f[CPU_TILE_TOKENS][SUBS];
#pragma GCC unroll 6
    for (int i = 0; i < t; i++)
#pragma GCC unroll 2
        for (int s = 0; s < subs; s++)
            f[i][s] = _mm512_setzero_ps();
    for (uint32_t part = 0; part < p->parts; part++, digits += (size_t)2 * PART * (size_t)t) {
        for (uint32_t k = 0; k < groups; k++) {
            __m512i acc[CPU_TILE_TOKENS][SUBS];
            dot_group(p, digits, part, k, groups, t, subs, acc);
#pragma GCC unroll 2
            for (int s = 0; s < subs; s++) {
                __m512 scale = _mm512_load_ps(p->of[s].scales[2 * part + k]);
#pragma GCC unroll 6
                for (int i = 0; i < t; i++)
                    f[i][s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[i][s]), scale, f[i][s]);
            }
        }
        for (uint32_t k = 0; k < n_biases; k++)
#pragma GCC unroll 2
            for (int s = 0; s < subs; s++) {
                __m512 bias = _mm512_load_ps(p->of[s].biases[2 * part + k]);
                const float *of = x_sums + (size_t)((n_biases == 1 ? 2 : k) * (uint32_t)t);
#pragma GCC unroll 6
                for (int i = 0; i < t; i++)
                    f[i][s] = _mm512_fmadd_ps(bias, _mm512_set1_ps(of[i]), f[i][s]);
            }
        x_sums += (size_t)N_SUMS * (size_t)t;
    }
    for (int s = 0; s < subs; s++) {
        float *to = c->sums + (uint64_t)s * c->stride;
#pragma GCC unroll 6
        for (int i = 0; i < t; i++, to += SUB) {
            __m512 sum = c->from_zero ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
            _mm512_storeu_ps(to, _mm512_fmadd_ps(f[i][s], _mm512_set1_ps(c->x->steps[i]), sum));
        }
    }
}

VEC_INLINE void any_tile(const struct product *c, int subs, uint32_t groups, uint32_t n_biases)
{
    switch (c->x->n) {
#define TILE(T)                                                                                              \
    case T:                                                                                                  \
        run_tile(c, T, subs, groups, n_biases);                                                              \
        break;
        TILE(1)
        TILE(2)
        TILE(3)
        TILE(4)
        TILE(5)
        TILE(6)
#undef TILE
    default:
        break;
    }
}

/* One function for each number of subs, of groups and of biases of a part. */
#define TILES(subs, groups, n_biases)                                                                        \
    static void tiles_##subs##_##groups##_##n_biases(const struct product *c)                                \
    {                                                                                                        \
        any_tile(c, subs, groups, n_biases);                                                                 \
    }
TILES(1, 1, 0)
TILES(1, 1, 1)
TILES(1, 2, 0)
TILES(1, 2, 2)
TILES(2, 1, 0)
TILES(2, 1, 1)
TILES(2, 2, 0)
TILES(2, 2, 2)
#undef TILES

typedef void tile_fn(const struct product *c);
/* [groups of a part - 1][has biases]. Types with biases have one for each group. */
static tile_fn *const tiles_of_1[2][2] = {{tiles_1_1_0, tiles_1_1_1}, {tiles_1_2_0, tiles_1_2_2}};
static tile_fn *const tiles_of_2[2][2] = {{tiles_2_1_0, tiles_2_1_1}, {tiles_2_2_0, tiles_2_2_2}};

/* Sets what the sums of a sub's groups begin at. */
static void begin_groups(struct panels *p, uint32_t sub)
{
    const struct cpu_code_panel *c = &p->of[sub];
    uint32_t groups = PART / c->group, quads = QUADS / groups;
    for (uint32_t part = 0; part < p->parts; part++)
        for (uint32_t k = 0; k < groups; k++) {
            __m512i sum = _mm512_setzero_si512();
            for (uint32_t q = k * quads; q < (k + 1) * quads; q++)
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128),
                                          _mm512_load_si512(c->codes[part][q]));
            _mm512_store_si512(p->begin[sub][part * groups + k],
                               _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
}

/* Unpacks columns col to col + n - 1 of `subs` subs from row `first` on; prefetches what follows. */
static void open_panels(struct panels *p, const struct cpu_gemm_call *call, uint32_t first, uint32_t subs,
                        uint32_t col, uint32_t n)
{
    const struct cpu_matrix *w = call->w;
    uint64_t bytes = format_code_bytes(format_of(w->format), w->cols), part = bytes * n / w->cols;
    p->parts = n / PART;
    for (uint32_t s = 0; s < subs; s++) {
        uint32_t rows[SUB];
        for (uint32_t i = 0; i < SUB; i++) {
            uint32_t r = first + s * SUB + i;
            rows[i] = r < call->last ? r : call->last - 1;
            const uint8_t *next = (const uint8_t *)w->weight + rows[i] * bytes + bytes * col / w->cols + part;
            for (uint64_t k = 0; k < part; k += 64)
                __builtin_prefetch(next + k);
        }
        SHARED_NAME(panel_codes)(w, rows, col, n, &p->of[s]);
        begin_groups(p, s);
    }
}

static void store_sub(const struct cpu_gemm_call *call, const float *from, uint32_t row, uint32_t begin,
                      uint32_t end)
{
    uint32_t n = call->last - row;
    for (uint32_t i = begin; i < end; i++, from += SUB) {
        float *to = call->y + i * call->y_stride + row;
        if (n >= SUB)
            _mm512_storeu_ps(to, _mm512_loadu_ps(from));
        else
            memcpy(to, from, n * sizeof *to);
    }
}

/* Multiplies `subs` subs from row `first` on with the tokens of tiles from .. to - 1. */
static void run_chunk(const struct cpu_gemm_call *call, uint32_t first, uint32_t subs, uint32_t from,
                      uint32_t to)
{
    uint32_t cols = call->w->cols, begin = cpu_tile_begin(call->n, from), end = cpu_tile_begin(call->n, to);
    float *sums = call->scratch;
    uint64_t stride = (uint64_t)(end - begin) * SUB;
    for (uint32_t col = 0; col < cols; col += UNIT) {
        struct panels p;
        open_panels(&p, call, first, subs, col, cols - col < UNIT ? cols - col : UNIT);
        tile_fn *run = (subs == 2 ? tiles_of_2 : tiles_of_1)[PART / p.of[0].group - 1][p.of[0].has_biases];
        for (uint32_t i = from; i < to; i++) {
            struct tokens x = tokens_of((float *)call->packed, call->n, cols, i);
            uint64_t at = cpu_tile_begin(call->n, i) - begin;
            x.digits += (uint64_t)2 * col * x.n;
            x.sums += (uint64_t)col / PART * N_SUMS * x.n;
            x.steps += (uint64_t)col / UNIT * x.n;
            run(&(struct product){&p, &x, sums + at * SUB, stride, col == 0});
        }
    }
    for (uint32_t s = 0; s < subs; s++)
        store_sub(call, sums + s * stride, first + s * SUB, begin, end);
}

void VEC_NAME(gemm_int16)(const struct cpu_gemm_call *call)
{
    uint32_t tiles = cpu_n_tiles(call->n);
    for (uint32_t first = call->first; first < call->last; first += SUBS * SUB)
        for (uint32_t i = 0; i < tiles; i += CHUNK_TILES)
            run_chunk(call, first, call->last - first > SUB ? 2 : 1, i,
                      tiles - i < CHUNK_TILES ? tiles : i + CHUNK_TILES);
}
#endif
