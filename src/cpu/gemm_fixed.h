/* gemm_fixed.h - the body of gemm_fixed (product.h), over the tile registers of amx.h.
 *
 * A block of 64 columns is one step of the tile registers: 16 tokens x 64 digits times 64 codes x 16 rows,
 * once for each of the three digits. The integers then go through memory to the vector units, which add them
 * up as floats. */
#ifndef MOEFLUX_CPU_GEMM_FIXED_H
#define MOEFLUX_CPU_GEMM_FIXED_H

#include "args.h"
#include "cpu/amx.h"
#include "cpu/pair.h"
#include "cpu/product.h"

enum {
    FIXED_SUB = PAIR_LANES, /* rows: a register's columns */
    FIXED_SUBS = CPU_STRIP_ROWS / FIXED_SUB,
    FIXED_TURN = 32, /* bytes of each row that are transposed at once */
#ifdef __AVX512F__
    FIXED_UNROLL = 16, /* so that the sums of 16 tokens stay in registers */
#else
    FIXED_UNROLL = 1,
#endif
};

struct fixed_strip {
    const struct cpu_gemm_fixed_call *call;
    uint32_t first, subs, groups;
    float *sums;            /* [sub][token of the chunk][FIXED_SUB] */
    float *scales, *biases; /* [sub][group][FIXED_SUB] */
    uint8_t *codes;         /* [sub][block of the panel][AMX_BYTES] */
};

VEC_INLINE uint64_t fixed_table(uint32_t groups)
{
    return (uint64_t)(groups + FIXED_TURN / 2 - 1) / (FIXED_TURN / 2) * (FIXED_TURN / 2);
}

/* ---- codes and scales, transposed ---- */

/* Sets pointers to the rows of a sub. Missing rows are replaced by the call's last row. */
VEC_INLINE void fixed_rows(const struct fixed_strip *s, uint32_t sub, const void *base, uint64_t bytes,
                           const void *rows[FIXED_SUB])
{
    for (uint32_t i = 0; i < FIXED_SUB; i++) {
        uint32_t r = s->first + sub * FIXED_SUB + i;
        r = r < s->call->last ? r : s->call->last - 1;
        rows[i] = (const uint8_t *)base + r * bytes;
    }
}

/* Transposes bytes at .. at + FIXED_TURN of each row: out[i] gets word i of all rows. n: bytes left in the
 * rows; zeros follow. */
VEC_INLINE void fixed_turn(const void *const rows[FIXED_SUB], uint64_t at, uint64_t n,
                           struct ipair out[VEC_LANES])
{
    uint8_t copy[FIXED_SUB][FIXED_TURN];
    const void *from[FIXED_SUB];
    for (int i = 0; i < FIXED_SUB; i++) {
        from[i] = (const uint8_t *)rows[i] + at;
        if (n >= FIXED_TURN)
            continue;
        memset(copy[i], 0, FIXED_TURN);
        memcpy(copy[i], from[i], n);
        from[i] = copy[i];
    }
    ipair_turn(from, out);
}

/* Turns bf16 [row][group] into float [group][FIXED_SUB] for the rows of a sub. */
static void fixed_turn_groups(const struct fixed_strip *s, uint32_t sub, const void *values, float *to)
{
    const void *rows[FIXED_SUB];
    uint64_t bytes = (uint64_t)s->groups * 2;
    fixed_rows(s, sub, values, bytes, rows);
    to += sub * fixed_table(s->groups) * FIXED_SUB;
    for (uint64_t at = 0; at < bytes; at += FIXED_TURN) {
        struct ipair v[VEC_LANES];
        fixed_turn(rows, at, bytes - at, v);
        for (int i = 0; i < VEC_LANES; i++, to += (size_t)2 * FIXED_SUB) {
            ipair_store(to, ipair_left(v[i], 16));
            ipair_store(to + FIXED_SUB, ipair_and(v[i], ipair_set1((int32_t)0xffff0000)));
        }
    }
}

/* Separates even and odd columns of two words of 4 one-byte codes. Codes as bytes, highest first:
 *   a, b                    3210  7654
 *   & 00ff00ff              .2.0  .6.4
 *   | itself >> 8           .220  .664
 *   lower half of each      6420            the even columns; >> 8 at first gives the odd ones */
VEC_INLINE void fixed_part_bytes(struct ipair a, struct ipair b, struct ipair *even, struct ipair *odd)
{
    const struct ipair low = ipair_set1(0x00ff00ff), half = ipair_set1(0xffff);
    struct ipair of[2][2] = {{ipair_and(a, low), ipair_and(b, low)},
                             {ipair_and(ipair_right(a, 8), low), ipair_and(ipair_right(b, 8), low)}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            of[i][k] = ipair_or(of[i][k], ipair_right(of[i][k], 8));
    *even = ipair_or(ipair_and(of[0][0], half), ipair_left(of[0][1], 16));
    *odd = ipair_or(ipair_and(of[1][0], half), ipair_left(of[1][1], 16));
}

/* Unpacks one block of a sub. Row i of the register holds the codes of the even columns from 8 i on, row 8 +
 * i those of the odd ones: the order of a vector's digits. */
VEC_INLINE void fixed_unpack(const void *const rows[FIXED_SUB], uint64_t at, int bits, uint8_t *to)
{
    struct ipair v[2 * VEC_LANES];
    fixed_turn(rows, at, FIXED_TURN, v);
    if (bits == 8)
        fixed_turn(rows, at + FIXED_TURN, FIXED_TURN, v + VEC_LANES);
    for (size_t i = 0; i < VEC_LANES; i++) {
        const struct ipair low = ipair_set1(0x0f0f0f0f);
        struct ipair even = ipair_and(v[i], low), odd = ipair_and(ipair_right(v[i], 4), low);
        if (bits == 8)
            fixed_part_bytes(v[2 * i], v[2 * i + 1], &even, &odd);
        ipair_store(to + i * AMX_ROW_BYTES, even);
        ipair_store(to + (VEC_LANES + i) * AMX_ROW_BYTES, odd);
    }
}

/* Unpacks blocks from .. from + n of all subs, and prefetches the bytes that are needed next. */
VEC_INLINE void fixed_unpack_panel(const struct fixed_strip *s, uint32_t from, uint32_t n, int bits)
{
    const struct cpu_matrix *w = s->call->w;
    uint64_t block_bytes = (uint64_t)bits * CPU_BLOCK / 8, bytes = s->groups * block_bytes;
    uint64_t next = from + n < s->groups ? n * block_bytes : CPU_STRIP_ROWS * bytes - from * block_bytes;
    for (uint32_t sub = 0; sub < s->subs; sub++) {
        const void *rows[FIXED_SUB];
        uint8_t *to = s->codes + (uint64_t)sub * CPU_FIXED_PANEL * AMX_BYTES;
        fixed_rows(s, sub, w->weight, bytes, rows);
        for (uint32_t b = from; b < from + n; b++, to += AMX_BYTES) {
            uint64_t at = b * block_bytes;
            for (int i = 0; i < FIXED_SUB && at % 64 == 0; i++)
                __builtin_prefetch((const uint8_t *)rows[i] + at + next);
            fixed_unpack(rows, at, bits, to);
        }
    }
}

/* ---- products ---- */

/* Some blocks of one sub and one tile of tokens. */
struct fixed_part {
    const uint8_t *codes;
    const int8_t *digits;
    const float *scales, *biases; /* [block][FIXED_SUB] */
    const float *steps, *x_sums;  /* [block][token] */
    float *sums;                  /* [token][FIXED_SUB] */
    uint32_t n;                   /* blocks */
    bool from_zero;
};

/* The integers of a block: [digit][token][FIXED_SUB]. */
struct fixed_sums {
    _Alignas(64) int32_t of[3][AMX_ROWS][FIXED_SUB];
};

VEC_INLINE void fixed_add(const struct fixed_part *p, const struct fixed_sums *c, uint32_t block, int t,
                          struct pair *acc)
{
    struct pair scale = pair_load(p->scales + (uint64_t)block * FIXED_SUB),
                bias = pair_load(p->biases + (uint64_t)block * FIXED_SUB), by = pair_set1(256);
    const float *steps = p->steps + (uint64_t)block * (uint32_t)t,
                *x_sums = p->x_sums + (uint64_t)block * (uint32_t)t;
#pragma GCC unroll FIXED_UNROLL
    for (int i = 0; i < t; i++) {
        struct pair f = pair_from_int(ipair_load(c->of[0][i]));
        f = pair_fma(f, by, pair_from_int(ipair_load(c->of[1][i])));
        f = pair_fma(f, by, pair_from_int(ipair_load(c->of[2][i])));
        acc[i] = pair_fma(f, pair_mul(scale, pair_set1(steps[i])), acc[i]);
        acc[i] = pair_fma(bias, pair_set1(x_sums[i]), acc[i]);
    }
}

/* Stores the sum of digit d of block g - 1 from register r, then starts that of block g in it. a: a register
 * for the digits. */
#define FIXED_DIGIT(d, r, a)                                                                                 \
    do {                                                                                                     \
        if (g > 0 && g <= p->n)                                                                              \
            AMX_STORE(r, c[(g - 1) % 2].of[d]);                                                              \
        if (g < p->n) {                                                                                      \
            AMX_LOAD(a, digits + (d)*digit_bytes);                                                           \
            AMX_ZERO(r);                                                                                     \
            AMX_ADD_PRODUCT(r, a, 6);                                                                        \
        }                                                                                                    \
    } while (0)

/* t: tokens, the configured rows of the registers. Each turn multiplies block g, stores g - 1 and adds g - 2,
 * so that none of them waits for another. */
VEC_INLINE void fixed_run(const struct fixed_part *p, int t)
{
    struct fixed_sums c[2];
    struct pair acc[AMX_ROWS];
    const uint64_t digit_bytes = (uint64_t)t * AMX_ROW_BYTES;
    const int8_t *digits = p->digits;
#pragma GCC unroll FIXED_UNROLL
    for (int i = 0; i < t; i++)
        acc[i] = p->from_zero ? pair_set1(0) : pair_load(p->sums + (uint64_t)i * FIXED_SUB);
    for (uint32_t g = 0; g < p->n + 2; g++, digits += 3 * digit_bytes) {
        if (g < p->n)
            AMX_LOAD(6, p->codes + (uint64_t)g * AMX_BYTES);
        FIXED_DIGIT(0, 0, 3);
        FIXED_DIGIT(1, 1, 4);
        FIXED_DIGIT(2, 2, 5);
        if (g >= 2)
            fixed_add(p, &c[g % 2], g - 2, t, acc);
    }
#pragma GCC unroll FIXED_UNROLL
    for (int i = 0; i < t; i++)
        pair_store(p->sums + (uint64_t)i * FIXED_SUB, acc[i]);
}
#undef FIXED_DIGIT

static void fixed_run_4(const struct fixed_part *p)
{
    fixed_run(p, 4);
}

static void fixed_run_8(const struct fixed_part *p)
{
    fixed_run(p, 8);
}

static void fixed_run_12(const struct fixed_part *p)
{
    fixed_run(p, 12);
}

static void fixed_run_16(const struct fixed_part *p)
{
    fixed_run(p, 16);
}

/* Multiplies blocks from .. from + n of the strip with the tokens of tiles first to last - 1. */
static void fixed_panel(const struct fixed_strip *s, uint32_t from, uint32_t n, uint32_t first, uint32_t last)
{
    static void (*const runs[])(const struct fixed_part *) = {fixed_run_4, fixed_run_8, fixed_run_12,
                                                              fixed_run_16};
    const struct cpu_fixed *x = s->call->x;
    uint64_t t = x->tile_tokens, sub_sums = (last - first) * t * FIXED_SUB;
    for (uint32_t i = first; i < last; i++) {
        uint64_t block = (uint64_t)i * s->groups + from;
        for (uint32_t sub = 0; sub < s->subs; sub++) {
            uint64_t table = (sub * fixed_table(s->groups) + from) * FIXED_SUB;
            const struct fixed_part p = {.codes = s->codes + (uint64_t)sub * CPU_FIXED_PANEL * AMX_BYTES,
                                         .digits = x->digits + block * 3 * t * AMX_ROW_BYTES,
                                         .scales = s->scales + table,
                                         .biases = s->biases + table,
                                         .steps = x->steps + block * t,
                                         .x_sums = x->sums + block * t,
                                         .sums = s->sums + sub * sub_sums + (i - first) * t * FIXED_SUB,
                                         .n = n,
                                         .from_zero = from == 0};
            runs[t / 4 - 1](&p);
        }
    }
}

/* Stores token by token: if the distance of y's rows is a power of two, all tokens' lines share few places of
 * the cache. */
static void fixed_store(const struct fixed_strip *s, uint32_t first, uint32_t last)
{
    const struct cpu_gemm_fixed_call *call = s->call;
    uint32_t t = call->x->tile_tokens, begin = first * t, n_tokens = (last - first) * t;
    for (uint32_t i = 0; i < n_tokens && begin + i < call->x->n; i++)
        for (uint32_t sub = 0; sub < s->subs; sub++) {
            const float *from = s->sums + ((uint64_t)sub * n_tokens + i) * FIXED_SUB;
            uint32_t row = s->first + sub * FIXED_SUB, n = call->last - row;
            float *to = call->y + (begin + i) * call->y_stride + row;
            if (n >= FIXED_SUB)
                pair_store(to, pair_load(from));
            else
                memcpy(to, from, n * sizeof *to);
        }
}

/* Configures the registers: 0 to 2 receive the sums, 3 to 5 hold the digits, 6 the codes. */
static void fixed_configure(uint32_t tokens)
{
    struct amx_config c = {.palette = 1};
    for (int i = 0; i < 7; i++) {
        c.row_bytes[i] = AMX_ROW_BYTES;
        c.rows[i] = (uint8_t)(i < 6 ? tokens : AMX_ROWS);
    }
    AMX_CONFIGURE(&c);
}

VEC_INLINE void fixed_strips(const struct cpu_gemm_fixed_call *call, int bits)
{
    struct fixed_strip s = {.call = call, .groups = call->w->cols / CPU_BLOCK, .codes = call->scratch};
    uint32_t t = call->x->tile_tokens, tiles = cpu_fixed_tiles(call->x), most = CPU_FIXED_TOKENS / t;
    s.sums = (float *)(void *)(s.codes + (uint64_t)FIXED_SUBS * CPU_FIXED_PANEL * AMX_BYTES);
    s.scales = s.sums + (uint64_t)CPU_STRIP_ROWS * CPU_FIXED_TOKENS;
    s.biases = s.scales + CPU_STRIP_ROWS * fixed_table(s.groups);
    fixed_configure(t);
    for (s.first = call->first; s.first < call->last; s.first += CPU_STRIP_ROWS) {
        uint32_t left = call->last - s.first;
        s.subs = left < CPU_STRIP_ROWS ? (left + FIXED_SUB - 1) / FIXED_SUB : FIXED_SUBS;
        for (uint32_t sub = 0; sub < s.subs; sub++) {
            fixed_turn_groups(&s, sub, call->w->scales, s.scales);
            fixed_turn_groups(&s, sub, call->w->biases, s.biases);
        }
        for (uint32_t i = 0; i < tiles; i += most) {
            uint32_t last = tiles - i < most ? tiles : i + most;
            for (uint32_t from = 0; from < s.groups; from += CPU_FIXED_PANEL) {
                uint32_t n = s.groups - from < CPU_FIXED_PANEL ? s.groups - from : CPU_FIXED_PANEL;
                fixed_unpack_panel(&s, from, n, bits);
                fixed_panel(&s, from, n, i, last);
            }
            fixed_store(&s, i, last);
        }
    }
    AMX_RELEASE();
}

static void fixed_gemm(const struct cpu_gemm_fixed_call *call)
{
    if (call->w->format == FORMAT_Q4)
        fixed_strips(call, 4);
    else
        fixed_strips(call, 8);
}

#endif
