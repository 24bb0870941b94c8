/* gemm (product.h), the products of many tokens, for one instruction set; the Makefile compiles this file
 * once for each. */
#include "cpu/table.h"

#include "base/format.h"
#include "base/mem.h"
#include "cpu/pair.h"
#include "cpu/product.h"

/* A thread works with 64 rows (a strip) in four subs of 16 rows, the lanes of a pair. Some columns of one or
 * more subs are widened to floats, transposed to [sub][column][16 rows] (a panel), and used for all tokens
 * before the next columns. The number of rows that are widened at once is the number of a register's lanes;
 * the words of more rows' codes would not stay in registers. */
#ifdef __AVX512F__
#define FLOATS      struct pair
#define WORDS       struct ipair
#define FLOATS_(op) pair_##op
#define WORDS_(op)  ipair_##op
#else
#define FLOATS      struct vec
#define WORDS       struct ivec
#define FLOATS_(op) vec_##op
#define WORDS_(op)  ivec_##op
#endif
enum {
    SUB = PAIR_LANES,
    SUBS = CPU_STRIP_ROWS / SUB,
    ROWS = sizeof(FLOATS) / sizeof(float), /* rows that are widened at once */
    WORDS_A_TURN = 8,                      /* words of each row: 32 bytes */
    TURN_BYTES = 4 * WORDS_A_TURN,
    CHUNK_TILES = CPU_CHUNK_TOKENS / CPU_TILE_TOKENS,
    BLOCK_COLS = 256, /* the longest block of a block format */
#ifdef __AVX512F__
    MAX_SUMS = 24, /* pairs, next to 4 of weights in 32 registers */
    PANEL = CPU_PANEL,
#else
    MAX_SUMS = 6,          /* pairs of two registers, next to two of weights and one of x in 16 */
    PANEL = CPU_PANEL / 2, /* fits the first-level cache next to x and the sums */
#endif
};

struct strip {
    const struct cpu_gemm_call *call;
    uint32_t first, subs, groups;
    float *sums;            /* [sub][token][SUB] */
    float *scales, *biases; /* [sub][group][SUB] */
    float *panel;
};

/* A row's groups are transposed 16 at a time: 32 bytes. */
static uint64_t table_groups(uint32_t groups)
{
    return size_round_up(groups, TURN_BYTES / 2);
}

VEC_INLINE uint64_t row_bytes(const struct cpu_matrix *w, uint32_t bits)
{
    return (uint64_t)w->cols * bits / 8;
}

/* Transposes 32 bytes of each row: out[i] gets word i of all rows. */
VEC_INLINE void turn(const uint8_t *const rows[ROWS], uint64_t at, WORDS out[WORDS_A_TURN])
{
    const void *from[ROWS];
    for (int i = 0; i < ROWS; i++)
        from[i] = rows[i] + at;
#ifdef __AVX512F__
    ipair_turn(from, out);
#else
    vec_turn(from, out);
#endif
}

/* Does the same for rows that end after n bytes; zeros follow. */
static void turn_last(const uint8_t *const rows[ROWS], uint64_t at, uint64_t n, WORDS out[WORDS_A_TURN])
{
    uint8_t copy[ROWS][TURN_BYTES] = {{0}};
    const uint8_t *from[ROWS];
    for (int i = 0; i < ROWS; i++) {
        memcpy(copy[i], rows[i] + at, n);
        from[i] = copy[i];
    }
    turn(from, 0, out);
}

/* Sets pointers to ROWS rows from `first` on. Missing rows are replaced by the call's last row. */
VEC_INLINE void rows_of(const struct strip *s, uint32_t first, const void *base, uint64_t bytes,
                        const uint8_t *rows[ROWS])
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t r = s->first + first + i;
        r = r < s->call->last ? r : s->call->last - 1;
        rows[i] = (const uint8_t *)base + r * bytes;
    }
}

/* Stores the two bf16 of each word as floats, SUB floats apart. */
VEC_INLINE void store_halves(WORDS v, float *to)
{
    FLOATS_(store)(to, FLOATS_(bits)(WORDS_(left)(v, 16)));
    FLOATS_(store)(to + SUB, FLOATS_(bits)(WORDS_(and)(v, WORDS_(set1)((int32_t)0xffff0000))));
}

/* Turns bf16 [row][group] into float [group][SUB] for ROWS rows. */
static void turn_groups(const struct strip *s, uint32_t first, const void *values, float *to)
{
    const uint8_t *rows[ROWS];
    uint64_t bytes = (uint64_t)s->groups * 2;
    rows_of(s, first, values, bytes, rows);
    for (uint64_t at = 0; at < bytes; at += TURN_BYTES) {
        WORDS v[WORDS_A_TURN];
        if (bytes - at >= TURN_BYTES)
            turn(rows, at, v);
        else
            turn_last(rows, at, bytes - at, v);
        for (int i = 0; i < WORDS_A_TURN; i++, to += (size_t)2 * SUB)
            store_halves(v[i], to);
    }
}

static void turn_all_groups(const struct strip *s)
{
    for (uint32_t row = 0; row < s->subs * SUB; row += ROWS) {
        uint64_t at = row / SUB * table_groups(s->groups) * SUB + row % SUB;
        turn_groups(s, row, s->call->w->scales, s->scales + at);
        turn_groups(s, row, s->call->w->biases, s->biases + at);
    }
}

/* Widens the codes of one word of each row. A code is not shifted down but masked in place, so it counts 2^(k
 * bits) times, and scales[k] is the scale divided by that, which is exact. The topmost code would be a
 * negative number there and is shifted. With 4 bits and k = 2:
 *   word                77776666555544443333222211110000
 *   & 0x00000f00        ....................2222........ = 256 * code 2;   scales[2] = scale / 256 */
VEC_INLINE void widen_word(WORDS v, const FLOATS *scales, FLOATS bias, uint32_t bits, float *to)
{
    uint32_t n = 32 / bits;
#pragma GCC unroll 8
    for (uint32_t k = 0; k < n; k++, to += SUB) {
        int32_t mask = (int32_t)(((1u << bits) - 1) << (k * bits % 32));
        WORDS code = k + 1 < n ? WORDS_(and)(v, WORDS_(set1)(mask)) : WORDS_(right)(v, (int)(k * bits));
        FLOATS_(store)(to, FLOATS_(fma)(FLOATS_(from_int)(code), scales[k + 1 < n ? k : 0], bias));
    }
}

/* Widens columns from .. from + n of ROWS rows. Prefetches the bytes that are needed next: those of the next
 * columns, or at the end of the rows the first ones of the next strip. */
VEC_INLINE void widen_affine(const struct strip *s, uint32_t first, uint32_t from, uint32_t n, uint32_t bits,
                             float *to)
{
    const struct cpu_matrix *w = s->call->w;
    const uint8_t *rows[ROWS];
    uint64_t bytes = row_bytes(w, bits), begin = (uint64_t)from * bits / 8,
             group_bytes = (uint64_t)CPU_BLOCK / 8 * bits;
    uint64_t next = from + n < w->cols ? (uint64_t)n * bits / 8 : CPU_STRIP_ROWS * bytes - begin;
    uint64_t table = (first / SUB * table_groups(s->groups) + from / CPU_BLOCK) * SUB + first % SUB;
    rows_of(s, first, w->weight, bytes, rows);
    for (uint32_t c = 0; c < n; c += CPU_BLOCK, begin += group_bytes, table += SUB) {
        FLOATS scales[8], bias = FLOATS_(load)(s->biases + table);
        scales[0] = FLOATS_(load)(s->scales + table);
        for (uint32_t k = 1; k < 32 / bits; k++)
            scales[k] = FLOATS_(mul)(scales[k - 1], FLOATS_(set1)(1.0f / (float)(1u << bits)));
        for (int i = 0; i < ROWS && begin % 64 == 0; i++)
            __builtin_prefetch(rows[i] + begin + next);
        for (uint64_t at = begin; at < begin + group_bytes; at += TURN_BYTES) {
            WORDS v[WORDS_A_TURN];
            turn(rows, at, v);
            for (int i = 0; i < WORDS_A_TURN; i++, to += (size_t)32 / bits * SUB)
                widen_word(v[i], scales, bias, bits, to);
        }
    }
}

VEC_INLINE void widen_plain(const struct strip *s, uint32_t first, uint32_t from, uint32_t n, uint32_t bits,
                            float *to)
{
    const struct cpu_matrix *w = s->call->w;
    const uint8_t *rows[ROWS];
    uint64_t end = (uint64_t)(from + n) * bits / 8;
    rows_of(s, first, w->weight, row_bytes(w, bits), rows);
    for (uint64_t at = (uint64_t)from * bits / 8; at < end; at += TURN_BYTES) {
        WORDS v[WORDS_A_TURN];
        if (end - at >= TURN_BYTES)
            turn(rows, at, v);
        else
            turn_last(rows, at, end - at, v);
        for (int i = 0; i < WORDS_A_TURN; i++, to += (size_t)32 / bits * SUB) {
            if (bits == 32)
                FLOATS_(store)(to, FLOATS_(bits)(v[i]));
            else
                store_halves(v[i], to);
        }
    }
}

/* Prefetches so many bytes of ROWS rows. */
VEC_INLINE void prefetch_rows(const uint8_t *const rows[ROWS], uint64_t at, uint64_t bytes)
{
    for (int i = 0; i < ROWS; i++)
        for (uint64_t k = 0; k < bytes + 1; k += 64)
            __builtin_prefetch(rows[i] + at + k);
}

#ifdef VEC_AVX
/* Widens columns from .. from + n of a sub of a block format. Prefetches like widen_affine. */
static void widen_blocks(const struct strip *s, uint32_t sub, uint32_t from, uint32_t n, float *to)
{
    const struct cpu_matrix *w = s->call->w;
    uint64_t bytes = format_code_bytes(format_of(w->format), w->cols), begin = bytes * from / w->cols;
    uint64_t part = bytes * n / w->cols, next = from + n < w->cols ? part : CPU_STRIP_ROWS * bytes - begin;
    uint32_t rows[SUB];
    for (uint32_t i = 0; i < SUB; i++) {
        uint32_t r = s->first + sub * SUB + i;
        rows[i] = r < s->call->last ? r : s->call->last - 1;
        for (uint64_t k = 0; k < part + 1; k += 64)
            __builtin_prefetch((const uint8_t *)w->weight + rows[i] * bytes + begin + next + k);
    }
    SHARED_NAME(panel_blocks)(w, rows, from, n, to);
}
#endif

/* Widens columns from .. from + n of ROWS rows of any format, one row at a time. Prefetches like
 * widen_affine. */
static void widen_rows(const struct strip *s, uint32_t first, uint32_t from, uint32_t n, float *to)
{
    const struct cpu_matrix *w = s->call->w;
    const struct format *f = format_of(w->format);
    const uint32_t at_once = format_is_block(w->format) ? BLOCK_COLS : CPU_BLOCK;
    uint64_t bytes = format_code_bytes(f, w->cols), begin = bytes * from / w->cols;
    uint64_t next = from + n < w->cols ? bytes * n / w->cols : CPU_STRIP_ROWS * bytes - begin;
    float wide[ROWS][BLOCK_COLS];
    const uint8_t *rows[ROWS], *codes[ROWS];
    rows_of(s, first, w->weight, bytes, codes);
    for (int i = 0; i < ROWS; i++)
        rows[i] = (const uint8_t *)wide[i];
    for (uint32_t c = from; c < from + n; c += at_once) {
        uint32_t part = from + n - c < at_once ? from + n - c : at_once;
        uint32_t padded = (part + WORDS_A_TURN - 1) / WORDS_A_TURN * WORDS_A_TURN;
        prefetch_rows(codes, bytes * c / w->cols + next, (uint64_t)part * f->bits / 8);
        for (uint32_t i = 0; i < ROWS; i++) {
            uint32_t r = s->first + first + i;
            memset(wide[i] + part, 0, (padded - part) * sizeof *wide[i]);
            VEC_NAME(widen)(w, r < s->call->last ? r : s->call->last - 1, c, part, wide[i]);
        }
        for (uint32_t k = 0; k < part; k += WORDS_A_TURN) {
            WORDS v[WORDS_A_TURN];
            turn(rows, k * sizeof(float), v);
            for (int i = 0; i < WORDS_A_TURN; i++, to += SUB)
                FLOATS_(store)(to, FLOATS_(bits)(v[i]));
        }
    }
}

/* The format constant for formats whose words cannot be transposed as they lie in memory. */
enum { ANY_FORMAT = FORMAT_NONE };

/* Widens columns from .. from + n of one sub. */
VEC_INLINE void widen(const struct strip *s, uint32_t sub, uint32_t from, uint32_t n, uint32_t format,
                      float *to)
{
#ifdef VEC_AVX
    if (format == ANY_FORMAT && format_is_block(s->call->w->format)) {
        widen_blocks(s, sub, from, n, to);
        return;
    }
#endif
    for (uint32_t row = 0; row < SUB; row += ROWS) {
        uint32_t first = sub * SUB + row;
        switch (format) {
        case FORMAT_Q4:
            widen_affine(s, first, from, n, 4, to + row);
            break;
        case FORMAT_Q8:
            widen_affine(s, first, from, n, 8, to + row);
            break;
        case FORMAT_BF16:
            widen_plain(s, first, from, n, 16, to + row);
            break;
        case FORMAT_F32:
            widen_plain(s, first, from, n, 32, to + row);
            break;
        default:
            widen_rows(s, first, from, n, to + row);
            break;
        }
    }
}

/* Multiplies t tokens with `subs` subs over n columns. x: [column][t]. next: the x that is needed next, which
 * is prefetched, because a chunk's x does not fit the second-level cache. sums: the first token's, `stride`
 * apart between subs; they begin at zero if from_zero. */
VEC_INLINE void tile(const float *panel, uint64_t panel_stride, const float *x, const float *next, uint32_t n,
                     float *sums, uint64_t stride, bool from_zero, int t, int subs)
{
    struct pair acc[CPU_TILE_TOKENS][SUBS];
#pragma GCC unroll 6
    for (int i = 0; i < t; i++)
#pragma GCC unroll 4
        for (int k = 0; k < subs; k++)
            acc[i][k] = from_zero ? pair_set1(0) : pair_load(sums + (uint64_t)k * stride + (uint64_t)i * SUB);
    for (uint32_t c = 0; c < n; c++, panel += SUB, x += t, next += t) {
        struct pair w[SUBS];
        __builtin_prefetch(next);
#pragma GCC unroll 4
        for (int k = 0; k < subs; k++)
            w[k] = pair_load(panel + (uint64_t)k * panel_stride);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++) {
            struct pair v = pair_set1(x[i]);
#pragma GCC unroll 4
            for (int k = 0; k < subs; k++)
                acc[i][k] = pair_fma(w[k], v, acc[i][k]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < t; i++)
#pragma GCC unroll 4
        for (int k = 0; k < subs; k++)
            pair_store(sums + (uint64_t)k * stride + (uint64_t)i * SUB, acc[i][k]);
}

/* A panel, the tokens of a chunk and their sums. */
struct part {
    const float *panel, *x; /* x: column `from` of the chunk's first tile, as if the tile had one token */
    float *sums;
    uint64_t panel_stride, sums_stride;
    uint32_t from, n; /* columns */
    uint32_t n_tokens, first_tile, last_tile;
};

VEC_INLINE void one_tile(const struct part *p, const float *x, const float *next, float *sums, uint32_t t,
                         int subs)
{
    switch (t) {
#define TILE(T)                                                                                              \
    case T:                                                                                                  \
        if ((T)*subs <= MAX_SUMS)                                                                            \
            tile(p->panel, p->panel_stride, x, next, p->n, sums, p->sums_stride, p->from == 0, T, subs);     \
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

/* Returns column `col` of a tile, and its number of tokens. */
VEC_INLINE const float *tile_at(const struct part *p, uint32_t i, uint32_t cols, uint32_t col, uint32_t *t)
{
    uint32_t begin = cpu_tile_begin(p->n_tokens, i);
    *t = cpu_tile_begin(p->n_tokens, i + 1) - begin;
    return p->x + (uint64_t)begin * cols + (uint64_t)col * *t;
}

VEC_INLINE void all_tiles(const struct part *p, uint32_t cols, int subs)
{
    float *sums = p->sums;
    uint32_t t, next_t, then = p->from + p->n < cols ? p->from + p->n : p->from;
    const float *x = tile_at(p, p->first_tile, cols, p->from, &t), *next;
    for (uint32_t i = p->first_tile; i < p->last_tile; i++, x = next, t = next_t) {
        if (i + 1 < p->last_tile)
            next = tile_at(p, i + 1, cols, p->from, &next_t);
        else
            next = tile_at(p, p->first_tile, cols, then, &next_t);
        one_tile(p, x, next, sums, t, subs);
        sums += (uint64_t)t * SUB;
    }
}

static void tiles_of_1(const struct part *p, uint32_t cols)
{
    all_tiles(p, cols, 1);
}

static void tiles_of_2(const struct part *p, uint32_t cols)
{
    all_tiles(p, cols, 2);
}

static void tiles_of_4(const struct part *p, uint32_t cols)
{
    all_tiles(p, cols, 4);
}

/* Returns the subs of a panel: more for few tokens, so that enough sums are in flight. A panel has whole
 * blocks of a block format, so that each is unpacked once. */
static uint32_t subs_at_once(const struct cpu_gemm_call *call)
{
    uint32_t t = call->n < CPU_TILE_TOKENS ? call->n : CPU_TILE_TOKENS;
    uint32_t most = format_is_block(call->w->format) ? PANEL / SUB / BLOCK_COLS : SUBS;
    return (uint32_t)size_min(most, t * 4 <= MAX_SUMS ? 4 : t * 2 <= MAX_SUMS ? 2 : 1);
}

static void store(const struct strip *s, uint32_t begin, uint32_t end)
{
    const struct cpu_gemm_call *call = s->call;
    const float *from = s->sums;
    for (uint32_t sub = 0; sub < s->subs; sub++)
        for (uint32_t i = begin; i < end; i++, from += SUB) {
            uint32_t row = s->first + sub * SUB, n = call->last - row;
            float *to = call->y + i * call->y_stride + row;
            if (n >= SUB)
                pair_store(to, pair_load(from));
            else
                memcpy(to, from, n * sizeof *to);
        }
}

/* Multiplies the strip's rows with the tokens of tiles first to last - 1. */
VEC_INLINE void chunk(const struct strip *s, uint32_t first, uint32_t last, uint32_t format)
{
    const struct cpu_gemm_call *call = s->call;
    uint32_t cols = call->w->cols, most = subs_at_once(call), block = PANEL / SUB / most;
    uint32_t begin = cpu_tile_begin(call->n, first), end = cpu_tile_begin(call->n, last);
    uint64_t stride = (uint64_t)(end - begin) * SUB;
    for (uint32_t from = 0; from < cols; from += block) {
        uint32_t n = cols - from < block ? cols - from : block, take;
        for (uint32_t sub = 0; sub < s->subs; sub += take) {
            for (take = most; take > s->subs - sub;)
                take /= 2;
            for (uint32_t k = 0; k < take; k++)
                widen(s, sub + k, from, n, format, s->panel + (uint64_t)k * block * SUB);
            const struct part p = {.panel = s->panel,
                                   .x = call->packed,
                                   .sums = s->sums + sub * stride,
                                   .panel_stride = (uint64_t)block * SUB,
                                   .sums_stride = stride,
                                   .from = from,
                                   .n = n,
                                   .n_tokens = call->n,
                                   .first_tile = first,
                                   .last_tile = last};
            (take == 4 ? tiles_of_4 : take == 2 ? tiles_of_2 : tiles_of_1)(&p, cols);
        }
    }
    store(s, begin, end);
}

VEC_INLINE void strips(const struct cpu_gemm_call *call, uint32_t format)
{
    struct strip s = {.call = call, .groups = call->w->cols / CPU_BLOCK, .sums = call->scratch};
    s.panel = s.sums + (uint64_t)CPU_STRIP_ROWS * CPU_CHUNK_TOKENS;
    s.scales = s.panel + CPU_PANEL;
    s.biases = s.scales + (uint64_t)CPU_STRIP_ROWS * table_groups(s.groups);
    for (s.first = call->first; s.first < call->last; s.first += CPU_STRIP_ROWS) {
        uint32_t left = call->last - s.first, tiles = cpu_n_tiles(call->n);
        s.subs = left < CPU_STRIP_ROWS ? (left + SUB - 1) / SUB : SUBS;
        if (format == FORMAT_Q4 || format == FORMAT_Q8)
            turn_all_groups(&s);
        for (uint32_t i = 0; i < tiles; i += CHUNK_TILES)
            chunk(&s, i, tiles - i < CHUNK_TILES ? tiles : i + CHUNK_TILES, format);
    }
}

void VEC_NAME(gemm)(const struct cpu_gemm_call *call)
{
    switch (call->w->format) {
    case FORMAT_Q4:
        strips(call, FORMAT_Q4);
        break;
    case FORMAT_Q8:
        strips(call, FORMAT_Q8);
        break;
    case FORMAT_BF16:
        strips(call, FORMAT_BF16);
        break;
    case FORMAT_F32:
        strips(call, FORMAT_F32);
        break;
    default:
        strips(call, ANY_FORMAT);
        break;
    }
}
