/* gemv_blocks, widen_blocks (product.h), panel_blocks and panel_codes (table.h): gemv, widen and the panels
 * of products of many tokens for block formats, for one instruction set. */
#include "cpu/table.h"

#include "base/format.h"
#include "cpu/block_unpack.h"

enum {
    BATCH = 2, /* vectors whose sums stay in registers */
    STAY = 16, /* rows that stay in the cache */
    UNITS = 8, /* units whose scales are multiplied with the steps at once */
    FACTORS = UNITS * UNIT_PARTS,
    AHEAD = 4096 /* prefetch distance in bytes */
};

/* A row's blocks as gemv needs them. `type` is a constant, or BLOCK_ANY. */
struct blocks {
    int type;
    uint32_t format; /* FORMAT_* */
    uint32_t cols, bytes;
    uint32_t n_biases; /* 0; 8 in a unit, each of 32 columns; 16 */
};

/* Loads 8 floats and repeats each in two lanes. */
VEC_INLINE struct pair load_twice(const float *p)
{
#if defined(__AVX512F__)
    __m512 eight = _mm512_castps256_ps512(_mm256_loadu_ps(p));
    return (struct pair){
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), eight)};
#elif defined(VEC_AVX)
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 low = _mm256_broadcast_ps((const __m128 *)(const void *)p),
           high = _mm256_broadcast_ps((const __m128 *)(const void *)(p + 4));
    return pair_of((struct vec){_mm256_permutevar_ps(low, order)},
                   (struct vec){_mm256_permutevar_ps(high, order)});
#else
    return pair_each(p, 4);
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

/* Loads 4 floats of groups of 32 columns and repeats them in the order of the lanes of two blocks. */
VEC_INLINE struct pair load_groups(const float *p)
{
#if defined(__AVX512F__)
    __m512 four = _mm512_castps128_ps512(_mm_loadu_ps(p));
    return (struct pair){
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3), four)};
#elif defined(VEC_AVX)
    __m256 low = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)p)),
           high = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)(p + 2)));
    return pair_of((struct vec){_mm256_permute_ps(low, 0x50)}, (struct vec){_mm256_permute_ps(high, 0x50)});
#else
    return pair_each(p, 4); /* no type has groups */
#endif
}

/* Sets scale * step of a unit's groups, or else of its lots, for n vectors and adds the biases' part to their
 * sums. b: the unit's first block. factors: the unit's of the first vector. */
VEC_INLINE void begin_unit(const struct unit *u, const struct blocks *f, size_t b, const struct cpu_vector *x,
                           int n, float *factors, struct vec *mins)
{
    if (unit_has_groups(f->type)) {
        struct vec scales = unit_group_scales(u->p, f->type);
        for (int i = 0; i < n; i++)
            vec_store(factors + (size_t)i * FACTORS, vec_mul(scales, vec_each(x[i].steps + b, 4)));
    } else {
        struct pair scales = unit_scales(u, f->type);
        for (int i = 0; i < n; i++)
            pair_store(factors + (size_t)i * FACTORS, pair_mul(scales, pair_each(x[i].steps + b, 2)));
    }
    if (f->n_biases == UNIT_GROUPS) {
        struct vec biases = unit_biases_32(u, f->type);
        for (int i = 0; i < n; i++)
            mins[i] = vec_fma(biases, vec_load(x[i].sums_32 + 2 * b), mins[i]);
    }
    if (f->n_biases < UNIT_PARTS)
        return;
    struct pair biases = unit_biases(u, f->type);
    for (int i = 0; i < n; i++)
        mins[i] = fma_both(biases, pair_load(x[i].sums_16 + 4 * b), mins[i]);
}

/* Adds a unit's products to the sums of n vectors. */
VEC_INLINE void add_unit(const struct unit *u, const struct blocks *f, size_t b, const struct cpu_vector *x,
                         int n, const float *factors, struct pair *acc)
{
#pragma GCC unroll 2
    for (uint32_t k = 0; k < UNIT_BLOCKS / 2; k++) {
        struct block_codes c = unit_codes(u, k, f->type);
        for (int i = 0; i < n; i++, factors += FACTORS) {
            struct pair by = unit_has_groups(f->type) ? load_groups(factors + (size_t)4 * k)
                                                      : load_twice(factors + (size_t)8 * k);
            acc[i] = pair_fma(block_dot(c, &x[i], b + (size_t)2 * k, block_code_type(f->type)), by, acc[i]);
        }
        factors -= (size_t)n * FACTORS;
    }
}

/* Opens a unit of n blocks at p. last: room for a copy of one that is not whole; blocks that are not there
 * count as zeros. */
VEC_INLINE void open_unit(struct unit *u, const struct blocks *f, const uint8_t *p, uint32_t n,
                          uint8_t last[UNIT_MOST_BYTES])
{
    if (n < UNIT_COLS / f->cols) {
        memset(last, 0, UNIT_MOST_BYTES);
        p = memcpy(last, p, (size_t)n * f->bytes);
    }
    if (f->type == BLOCK_ANY)
        unit_open(u, f->format, p, n, f->cols, f->bytes);
    else
        unit_begin(u, p, f->type);
}

/* Multiplies one row with n vectors; the codes are unpacked once. The scales of some units come first:
 * products would wait for theirs. */
VEC_INLINE void one_row(const struct cpu_gemv_call *call, uint32_t row, const struct cpu_vector *x, int n,
                        const struct blocks *f, float *y)
{
    const uint32_t n_blocks = call->w->cols / f->cols, a_unit = UNIT_COLS / f->cols,
                   bytes = f->bytes * a_unit;
    const uint8_t *p = (const uint8_t *)call->w->weight + (uint64_t)row * n_blocks * f->bytes;
    struct pair acc[BATCH];
    struct vec mins[BATCH];
    for (int i = 0; i < n; i++) {
        acc[i] = pair_set1(0);
        mins[i] = vec_zero();
    }
    for (uint32_t done = 0; done < n_blocks; done += UNITS * a_unit) {
        struct unit units[UNITS];
        float factors[BATCH][FACTORS];
        uint8_t last[UNIT_MOST_BYTES];
        uint32_t left = n_blocks - done,
                 n_units = left < UNITS * a_unit ? (left + a_unit - 1) / a_unit : UNITS;
        size_t b = (size_t)done * f->cols / CPU_BLOCK;
        for (uint32_t k = 0; k < n_units; k++, left -= a_unit) {
            open_unit(&units[k], f, p + (size_t)k * bytes, left < a_unit ? left : a_unit, last);
            begin_unit(&units[k], f, b + (size_t)k * UNIT_BLOCKS, x, n, factors[0] + (size_t)k * UNIT_PARTS,
                       mins);
        }
        for (uint32_t k = 0; k < n_units; k++, p += bytes) {
            for (uint32_t i = 0; i < bytes; i += 64)
                __builtin_prefetch(p + AHEAD + i);
            add_unit(&units[k], f, b + (size_t)k * UNIT_BLOCKS, x, n, factors[0] + (size_t)k * UNIT_PARTS,
                     acc);
        }
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

#define BLOCKS_OF(name, n_biases)                                                                            \
    {                                                                                                        \
        FORMAT_G_##name, FORMAT_G_##name, FORMAT_COLS_##name, FORMAT_BYTES_##name, n_biases                  \
    }
static struct blocks blocks_for(uint32_t format)
{
    switch (format) {
#define ONE_OF(name, n_biases)                                                                               \
    case FORMAT_G_##name:                                                                                    \
        return (struct blocks)BLOCKS_OF(name, n_biases);
        UNIT_KNOWN(ONE_OF)
    default: {
        const struct format *f = format_of(format);
        uint32_t n_biases = !format_block_has_bias(format) ? 0 : format == FORMAT_G_Q2_K ? 16 : 8;
        return (struct blocks){BLOCK_ANY, format, f->group, f->block_bytes, n_biases};
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
#define ROWS(name, n_biases)                                                                                 \
    static void rows_of_##name(const struct cpu_gemv_call *call)                                             \
    {                                                                                                        \
        const struct blocks f = BLOCKS_OF(name, n_biases);                                                   \
        all_rows(call, &f);                                                                                  \
    }
EACH_KNOWN(ROWS)

void VEC_NAME(gemv_blocks)(const struct cpu_gemv_call *call)
{
    const struct blocks any = blocks_for(call->w->format);
    switch (call->w->format) {
#define CALL(name, n_biases)                                                                                 \
    case FORMAT_G_##name:                                                                                    \
        rows_of_##name(call);                                                                                \
        break;
        EACH_KNOWN(CALL)
    default:
        all_rows(call, &any);
        break;
    }
}

/* Returns the place of a block's lot of 16 columns in the order of the lanes. */
VEC_INLINE uint32_t lane_lot(uint32_t lot)
{
    return lot / 4 * 4 + lot % 2 * 2 + lot % 4 / 2;
}

/* Widens a block of 64 columns. codes: 128 more than the block's. scales, biases: the block's, in the order
 * of the lanes. */
VEC_INLINE void widen_block(const uint8_t *codes, const struct blocks *f, const float *scales,
                            const float *biases, float *out)
{
    for (uint32_t part = 0; part < CPU_BLOCK / PART_COLS; part++, out += PART_COLS) {
        uint32_t at = lane_lot(part);
        struct ipair code = ipair_add(ipair_load_bytes(codes + (size_t)part * PART_COLS), ipair_set1(-128));
        struct pair v = pair_mul(pair_from_int(code), pair_set1(scales[at]));
        pair_store(out, f->n_biases > 0 ? pair_add(v, pair_set1(biases[at])) : v);
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
    uint8_t codes[UNIT_COLS];
    unit_store(&u, f->type, 128, codes);
    pair_store(scales, unit_scales(&u, f->type));
    if (f->n_biases)
        pair_store(biases, unit_biases(&u, f->type));
    for (size_t b = first; b < last; b++, out += CPU_BLOCK)
        widen_block(codes + b * CPU_BLOCK, f, scales + 4 * b, biases + 4 * b, out);
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

#define WIDEN(name, n_biases)                                                                                \
    static void widen_##name(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out) \
    {                                                                                                        \
        const struct blocks f = BLOCKS_OF(name, n_biases);                                                   \
        widen_all(w, &f, row, col, n, out);                                                                  \
    }
EACH_KNOWN(WIDEN)

void VEC_NAME(widen_blocks)(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    const struct blocks any = blocks_for(w->format);
    switch (w->format) {
#define CALL_WIDEN(name, n_biases)                                                                           \
    case FORMAT_G_##name:                                                                                    \
        widen_##name(w, row, col, n, out);                                                                   \
        break;
        EACH_KNOWN(CALL_WIDEN)
    default:
        widen_all(w, &any, row, col, n, out);
        break;
    }
}

#ifdef VEC_AVX
enum { PANEL_ROWS = CPU_CODE_ROWS, TURN_ROWS = VEC_LANES, TURN_COLS = CPU_CODE_COLS };

/* A unit of some rows: signed codes, and the lots' scales and biases in the order of the lanes. */
struct rows_of_units {
    int8_t codes[PANEL_ROWS][UNIT_COLS];
    float scales[PANEL_ROWS][UNIT_PARTS], biases[PANEL_ROWS][UNIT_PARTS];
};

VEC_INLINE void open_rows(struct rows_of_units *r, const struct cpu_matrix *w, const struct blocks *f,
                          const uint32_t rows[PANEL_ROWS], uint32_t col, uint32_t n)
{
    for (uint32_t i = 0; i < PANEL_ROWS; i++) {
        uint64_t block = ((uint64_t)rows[i] * w->cols + col) / f->cols;
        uint8_t last[UNIT_MOST_BYTES];
        struct unit u;
        open_unit(&u, f, (const uint8_t *)w->weight + block * f->bytes, n / f->cols, last);
        unit_store(&u, f->type, 0, (uint8_t *)r->codes[i]);
        pair_store(r->scales[i], unit_scales(&u, f->type));
        if (f->n_biases > 0)
            pair_store(r->biases[i], unit_biases(&u, f->type));
    }
}

#define OPEN_ROWS(name, n_biases)                                                                            \
    static void open_rows_##name(struct rows_of_units *r, const struct cpu_matrix *w,                        \
                                 const uint32_t rows[PANEL_ROWS], uint32_t col, uint32_t n)                  \
    {                                                                                                        \
        const struct blocks f = BLOCKS_OF(name, n_biases);                                                   \
        open_rows(r, w, &f, rows, col, n);                                                                   \
    }
EACH_KNOWN(OPEN_ROWS)

/* Opens columns col to col + n - 1 of some rows; n: at most a unit. */
static void open_any_rows(struct rows_of_units *r, const struct cpu_matrix *w, const struct blocks *f,
                          const uint32_t rows[PANEL_ROWS], uint32_t col, uint32_t n)
{
    const struct blocks any = *f;
    switch (w->format) {
#define CALL_OPEN(name, n_biases)                                                                            \
    case FORMAT_G_##name:                                                                                    \
        open_rows_##name(r, w, rows, col, n);                                                                \
        break;
        EACH_KNOWN(CALL_OPEN)
    default:
        open_rows(r, w, &any, rows, col, n);
        break;
    }
}

/* Transposes the lots' numbers: out[lot][row], lots in the order of the columns. */
VEC_INLINE void turn_lots(const float (*rows)[UNIT_PARTS], float (*out)[PANEL_ROWS])
{
    const void *from[TURN_ROWS];
    struct ivec turned[VEC_LANES];
    for (uint32_t row = 0; row < PANEL_ROWS; row += TURN_ROWS)
        for (uint32_t at = 0; at < UNIT_PARTS; at += VEC_LANES) {
            for (uint32_t i = 0; i < TURN_ROWS; i++)
                from[i] = rows[row + i] + at;
            vec_turn(from, turned);
            for (uint32_t i = 0; i < VEC_LANES; i++) /* lane_lot is its own inverse */
                vec_store(out[lane_lot(at + i)] + row, vec_bits(turned[i]));
        }
}

/* Transposes the codes of 32 columns: words[i] has four columns of each row. */
VEC_INLINE void turn_codes(const struct rows_of_units *r, uint32_t col, struct ipair words[TURN_COLS / 4])
{
    const void *rows[PANEL_ROWS];
    for (uint32_t i = 0; i < PANEL_ROWS; i++)
        rows[i] = r->codes[i] + col;
    ipair_turn(rows, words);
}

/* Stores four columns of codes, which are the bytes of the words, times `scale` and plus `bias`. */
VEC_INLINE void panel_words(struct ipair words, struct pair scale, struct pair bias, bool has_bias,
                            float *out)
{
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++, out += PANEL_ROWS) {
        struct ipair code = ipair_right_signed(k < 3 ? ipair_left(words, 24 - 8 * k) : words, 24);
        struct pair v = pair_mul(pair_from_int(code), scale);
        pair_store(out, has_bias ? pair_add(v, bias) : v);
    }
}

VEC_INLINE void panel_unit(const struct rows_of_units *r, bool has_bias, uint32_t n, float *out)
{
    float scales[UNIT_PARTS][PANEL_ROWS], biases[UNIT_PARTS][PANEL_ROWS];
    turn_lots(r->scales, scales);
    if (has_bias)
        turn_lots(r->biases, biases);
    for (uint32_t col = 0; col < n; col += TURN_COLS) {
        struct ipair words[TURN_COLS / 4];
        turn_codes(r, col, words);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < TURN_COLS; c += 4, out += (size_t)4 * PANEL_ROWS) {
            uint32_t at = (col + c) / PART_COLS;
            panel_words(words[c / 4], pair_load(scales[at]), has_bias ? pair_load(biases[at]) : pair_set1(0),
                        has_bias, out);
        }
    }
}

static void panel_with_biases(const struct rows_of_units *r, uint32_t n, float *out)
{
    panel_unit(r, true, n, out);
}

static void panel_without(const struct rows_of_units *r, uint32_t n, float *out)
{
    panel_unit(r, false, n, out);
}

void VEC_NAME(panel_blocks)(const struct cpu_matrix *w, const uint32_t rows[PANEL_ROWS], uint32_t col,
                            uint32_t n, float *out)
{
    const struct blocks f = blocks_for(w->format);
    for (uint32_t c = 0; c < n; c += UNIT_COLS, out += (size_t)UNIT_COLS * PANEL_ROWS) {
        struct rows_of_units r;
        uint32_t part = n - c < UNIT_COLS ? n - c : UNIT_COLS;
        open_any_rows(&r, w, &f, rows, col + c, part);
        (f.n_biases > 0 ? panel_with_biases : panel_without)(&r, part, out);
    }
}

#ifdef __AVX512VNNI__
void VEC_NAME(panel_codes)(const struct cpu_matrix *w, const uint32_t rows[PANEL_ROWS], uint32_t col,
                           uint32_t n, struct cpu_code_panel *to)
{
    const struct blocks f = blocks_for(w->format);
    struct rows_of_units r;
    open_any_rows(&r, w, &f, rows, col, n);
    turn_lots(r.scales, to->scales);
    to->has_biases = f.n_biases > 0;
    if (to->has_biases)
        turn_lots(r.biases, to->biases);
    to->group = unit_has_groups((int)f.format) ? 2 * PART_COLS : PART_COLS;
    for (uint32_t c = 0; c < n; c += TURN_COLS) {
        struct ipair words[TURN_COLS / 4];
        turn_codes(&r, c, words);
        for (uint32_t i = 0; i < TURN_COLS / 4; i++)
            ipair_store(to->codes[c / TURN_COLS][i], words[i]);
    }
}
#endif
#endif
