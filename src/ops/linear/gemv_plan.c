#include "ops/linear/gemv_plan.h"

#include <stdio.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/kernel.h"
#include "vulkan/pipeline.h"

/* Assumed if the device does not report its number of processors. */
enum { FEW_PROCESSORS = 32 };
/* Bytes of a kernel's name with its variant. */
enum { KERNEL_NAME = 64 };
/* MAX_SPLIT: most subgroups that share a block of rows. MAX_STEPS: most pieces of each row that a lane holds
 * at once. MAX_ROW_STEPS: the same for so few rows that a block has one or two; such rows become one tile
 * (DeepSeek-V3's router, 256 x 7,168 in bf16). */
enum { MAX_SPLIT = 8, MAX_STEPS = 2, MAX_ROW_STEPS = 4 };
/* The smallest subgroup that shares rows instead of going through its row in a loop. Adding up the sums of
 * smaller ones takes longer (lavapipe, 8 lanes: 8,192 x 2,048 in 51 ms instead of 20). */
enum { SPLIT_SUBGROUP = 16 };

static uint32_t round_down_pow2(uint32_t n)
{
    while (n & (n - 1))
        n &= n - 1;
    return n;
}

uint32_t gemv_tile_unit(uint64_t formats)
{
    uint32_t group =
        format_part_is_block(formats) ? format_of(FORMAT_WORD_NUMBER(format_constant(formats)))->group : 0;
    return (uint32_t)size_max(group, PRODUCT_COLS);
}

/* Returns the columns of equal tiles, each at most half of shared memory. */
static uint32_t tile_for(const struct exec_caps *c, const struct gemv_shape *s, uint32_t tokens)
{
    uint32_t unit = gemv_tile_unit(s->formats), most = (c->max_shared_bytes / 2 / tokens - 128) / 4;
    most -= most % unit;
    return (uint32_t)size_round_up(div_up(s->cols, div_up(s->cols, most)), unit);
}

static uint32_t processors_of(const struct exec_caps *c)
{
    return c->n_processors ? c->n_processors : c->is_software ? 1 : FEW_PROCESSORS;
}

/* How the columns of a tile are divided. */
struct share {
    uint32_t split, steps; /* steps 0: in a loop */
    uint32_t lanes;        /* lanes of a workgroup, approximately */
    bool is_full;          /* every lane has a piece */
};

/* Returns whether a part is one format that has kernels of its own: an extended or a block format. */
static bool has_own_kernel(uint64_t formats)
{
    return formats >> FORMAT_SET_EXTENDED != 0;
}

enum { BLOCK_PIECE = 32 }; /* columns of a piece of a block format */

static uint32_t piece_cols(uint32_t bits)
{
    return bits > 6 ? 128 / bits : 32;
}

/* Returns the columns of a piece of a part that is not basic. */
static uint32_t piece_cols_of(uint64_t formats)
{
    return format_part_is_block(formats) ? BLOCK_PIECE
                                         : piece_cols(FORMAT_WORD_BITS(format_constant(formats)));
}

bool gemv_has_steps(const struct exec_caps *c, uint64_t formats)
{
    return !has_own_kernel(formats) || c->has_denorm || format_part_is_block(formats);
}

/* Counts the pieces of a row in the format with the most and in the one with the fewest. */
static void count_pieces(uint32_t cols, uint64_t formats, uint32_t *most, uint32_t *fewest)
{
    *most = *fewest = has_own_kernel(formats) ? cols / piece_cols_of(formats) : 0;
    for (uint32_t i = 0; i < FORMAT_SET_EXTENDED; i++)
        if (formats >> i & 1) {
            uint32_t pieces = cols / piece_cols(format_of(i)->bits);
            *most = (uint32_t)size_max(*most, pieces);
            *fewest = *fewest ? (uint32_t)size_min(*fewest, pieces) : pieces;
        }
}

uint32_t gemv_pieces(uint32_t cols, uint64_t formats)
{
    uint32_t most, fewest;
    count_pieces(cols, formats, &most, &fewest);
    return most == fewest ? most : 0;
}

/* Shares rows that are one tile, if a lane can hold its part of some rows in registers. Up to two pieces a
 * lane, one subgroup takes a row; several subgroups share a longer row, each as little of it as possible. The
 * format with the most pieces decides. In a format with less than half as many, too few lanes would have
 * work. */
static bool share_whole(const struct exec_caps *c, uint32_t cols, uint64_t formats, uint32_t most_steps,
                        struct share *out)
{
    uint32_t pieces, fewest, best = 0, subgroup = c->subgroup_size;
    count_pieces(cols, formats, &pieces, &fewest);
    if (!gemv_has_steps(c, formats) || pieces == 0 || pieces > 2 * fewest)
        return false;
    uint32_t most = subgroup < SPLIT_SUBGROUP ? 1 : MAX_SPLIT;
    for (uint32_t split = 1; split <= most && split * subgroup <= c->max_workgroup; split++) {
        uint32_t steps = div_up(pieces, split * subgroup), filled = pieces * 256 / (steps * split * subgroup);
        if (steps > most_steps || filled < best)
            continue;
        best = filled;
        *out = (struct share){
            .split = split, .steps = steps, .lanes = split == 1 ? 128 : 256, .is_full = filled == 256};
        if (split == 1)
            break;
    }
    return best > 0;
}

/* If there are few rows, several subgroups share each, so that a lane has one or two steps, which it keeps in
 * flight. */
static struct share share_in_loops(const struct exec_caps *c, const struct gemv_shape *s, uint32_t tile)
{
    struct share h = {.split = 1, .lanes = tile > 4096 ? 512 : 256};
    if (s->rows < 4096 && s->tokens == 1)
        while (h.split < 4 && 2 * h.split * c->subgroup_size <= h.lanes &&
               h.split * c->subgroup_size < div_up(tile, 32))
            h.split *= 2;
    return h;
}

/* Returns the subgroups of a workgroup: one for each subgroup_size lanes, in whole groups of those that share
 * rows. */
static uint32_t subgroups_for(const struct exec_caps *c, uint32_t lanes, uint32_t split)
{
    uint32_t n = (uint32_t)size_min(size_max(lanes, (uint64_t)split * c->subgroup_size), c->max_workgroup) /
                 c->subgroup_size;
    return split * round_down_pow2((uint32_t)size_max(1, n / split));
}

/* STREAM_LANES: most lanes of a workgroup that streams; only few such workgroups a processor fit shared
 * memory. STREAM_SUBGROUPS: its fewest subgroups. STREAM_ROWS: fewest rows a processor that repay loading a
 * long vector on all of them. */
enum { STREAM_LANES = 512, STREAM_SUBGROUPS = 8, STREAM_ROWS = 32 };
/* The workgroups of a software device are threads, which share the machine's cores. */
enum { SOFTWARE_PROCESSORS = 8 };

uint32_t gemv_stream_processors(const struct exec_caps *c)
{
    return c->is_software ? SOFTWARE_PROCESSORS : processors_of(c);
}

/* Returns the columns that a subgroup takes at once of rows that stream: many rows in one basic format. 0:
 * not possible. */
static uint32_t stream_cols(const struct exec_caps *c, const struct gemv_shape *s)
{
    bool is_one = s->formats < 1u << FORMAT_SET_EXTENDED && (s->formats & (s->formats - 1)) == 0;
    uint32_t format = 0;
    while (is_one && s->formats >> format > 1)
        format++;
    uint32_t cols = is_one ? piece_cols(format_of(format)->bits) * c->subgroup_size : 0;
    bool is_large = s->rows >= STREAM_ROWS * gemv_stream_processors(c);
    return is_one && is_large && s->tokens == 1 && s->cols % cols == 0 ? cols : 0;
}

/* Returns a plan with at most one workgroup a processor, all of one size; only the last one of every matrix
 * may have less to do. tile: columns that fit shared memory; most: most blocks of a workgroup. */
static struct gemv_plan plan_stream(const struct exec_caps *c, const struct gemv_shape *s, uint32_t tile,
                                    uint32_t most)
{
    uint32_t processors = gemv_stream_processors(c), rows = 8 / s->matrices;
    uint32_t lanes = (uint32_t)size_min(STREAM_LANES, c->max_workgroup), blocks = 0;
    uint32_t groups = processors > 2 * s->n_apart ? processors - s->n_apart : processors;
    do {
        rows /= 2;
        blocks = div_up(div_up(s->rows, groups), rows);
    } while (rows > 1 && ((s->least && rows > s->least) || blocks < STREAM_SUBGROUPS));
    uint32_t each = (uint32_t)size_min(most, div_up(blocks, lanes / c->subgroup_size));
    uint32_t subgroups = (uint32_t)size_min(div_up(blocks, each), lanes / c->subgroup_size);
    return (struct gemv_plan){.spec = {[GEMV_SUBGROUP] = c->subgroup_size,
                                       [GEMV_WORKGROUP] = subgroups * c->subgroup_size,
                                       [GEMV_ROWS] = rows,
                                       [GEMV_TOKENS] = 1,
                                       [GEMV_TILE] = tile,
                                       [GEMV_FORMATS] = format_constant(s->formats),
                                       [GEMV_SPLIT] = 1,
                                       [GEMV_STREAM] = each,
                                       [GEMV_FEW_REGISTERS] = exec_has_few_registers(c)},
                              .workgroup_rows = each * subgroups * rows,
                              .workgroup = subgroups * c->subgroup_size,
                              .tokens = 1};
}

/* Returns the bytes of shared memory that one workgroup of a processor may take. */
static uint64_t stream_bytes(const struct exec_caps *c)
{
    return (uint64_t)c->max_shared_bytes / 4 * 3;
}

/* Plans rows that are too long for share_whole but fit shared memory once. */
static bool stream_blocks(const struct exec_caps *c, const struct gemv_shape *s, struct gemv_plan *out)
{
    uint64_t bytes = (uint64_t)s->cols * sizeof(float);
    bool can = s->n_apart > 0 && bytes <= stream_bytes(c) && stream_cols(c, s) > 0;
    if (can)
        *out = plan_stream(c, s, s->cols, UINT32_MAX);
    return can;
}

struct gemv_plan gemv_plan_parts(const struct exec *x, const struct gemv_shape *s, uint32_t cols)
{
    const struct exec_caps c = exec_get_caps(x);
    return plan_stream(&c, s, 2 * cols, 1);
}

uint32_t gemv_part_cols(const struct exec *x, const struct gemv_shape *s)
{
    const struct exec_caps c = exec_get_caps(x);
    struct gemv_plan unused;
    uint32_t least = stream_cols(&c, s), most = (uint32_t)(stream_bytes(&c) / 2 / sizeof(float)), cols = 0;
    if (least == 0 || tile_for(&c, s, 1) == s->cols || stream_blocks(&c, s, &unused))
        return 0;
    for (uint32_t n = least; n <= most; n += least)
        cols = s->cols % n == 0 ? n : cols;
    return cols;
}

/* One vector times matrices with few rows may fill more than half of shared memory if its rows are whole
 * then. With two tiles the second one's weights would be loaded only after the first (DeepSeek-V3's 2,112 x
 * 7,168: 2 us of 10 less on an H100). */
static bool is_whole(const struct exec_caps *c, const struct gemv_shape *s, struct share *out)
{
    bool fits = tile_for(c, s, s->tokens) == s->cols;
    bool may = s->tokens == 1 && s->n_apart > 0 && stream_cols(c, s) == 0 &&
               (uint64_t)s->cols * sizeof(float) <= stream_bytes(c);
    bool is_few = s->tokens == 1 && s->matrices == 1 && s->rows <= 2 * processors_of(c);
    return (fits || may) && (share_whole(c, s->cols, s->formats, MAX_STEPS, out) ||
                             (is_few && share_whole(c, s->cols, s->formats, MAX_ROW_STEPS, out)));
}

/* Streams blocks of short rows, with the next block's pieces in flight, if otherwise lanes would have no
 * piece and workgroups little to do (DeepSeek-V3's 24,576 x 1,536: a quarter of the lanes' steps; 5 us of 16
 * less on an H100). */
static bool streams_short(const struct exec_caps *c, const struct gemv_shape *s, const struct share *h,
                          struct gemv_plan *out)
{
    enum { ROWS = 2, LANES = 256, GROUPS = 4, LEAST_ROWS = 64 };
    uint32_t processors = gemv_stream_processors(c), subgroup = c->subgroup_size;
    uint32_t subgroups = (uint32_t)size_min(LANES, c->max_workgroup) / subgroup;
    bool is_one = !has_own_kernel(s->formats) && (s->formats & (s->formats - 1)) == 0;
    if (s->n_apart == 0 || s->tokens > 1 || s->matrices > 1 || !is_one || h->is_full || h->split > 1 ||
        s->rows < LEAST_ROWS * processors || (s->least && s->least < ROWS))
        return false;
    uint32_t blocks = div_up(div_up(s->rows, GROUPS * processors), ROWS * subgroups);
    *out = (struct gemv_plan){.spec = {[GEMV_SUBGROUP] = subgroup,
                                       [GEMV_WORKGROUP] = subgroups * subgroup,
                                       [GEMV_ROWS] = ROWS,
                                       [GEMV_TOKENS] = 1,
                                       [GEMV_TILE] = s->cols,
                                       [GEMV_FORMATS] = format_constant(s->formats),
                                       [GEMV_SPLIT] = 1,
                                       [GEMV_STREAM] = blocks,
                                       [GEMV_FEW_REGISTERS] = exec_has_few_registers(c)},
                              .workgroup_rows = blocks * subgroups * ROWS,
                              .workgroup = subgroups * subgroup,
                              .tokens = 1};
    return true;
}

/* Lanes of a workgroup for two matrices whose rows several subgroups share: with fewer, it loads a long
 * vector for few rows (GLM-4.5's experts, 2 x 1,536 x 5,120, H100: 12 us of 162 of a layer less). */
enum { PAIRS_LANES = 512 };

/* BLOCK_GROUPS: workgroups a processor from which on a subgroup takes more than two rows of a block format,
 * whose pieces take several times as many registers and instructions as others: heads (H200, 248,320 x
 * 2,048: Q4_K 129 us instead of 146, Q6_K 230 instead of 255). With 4 rows of every matrix 35B-A3B in Q6_K
 * decodes 283 tokens a second instead of 348: a layer's kernels no longer fit the instruction caches. */
enum { BLOCK_GROUPS = 64 };

/* Returns whether so many rows of `blocks` subgroups leave processors idle, or need too many registers. */
static bool are_too_many(const struct gemv_shape *s, uint32_t processors, uint32_t blocks, uint32_t rows)
{
    uint32_t groups = div_up(s->rows, blocks * rows);
    bool is_heavy = format_part_is_block(s->formats) && rows * s->matrices > 2;
    return groups * 16 < processors * 15 || (is_heavy && groups < BLOCK_GROUPS * processors);
}

/* Rows that share a subgroup save reads of the vector; but every processor should have a workgroup. */
struct gemv_plan gemv_plan_for(const struct exec *x, const struct gemv_shape *s)
{
    const struct exec_caps c = exec_get_caps(x);
    uint32_t tile = tile_for(&c, s, s->tokens), subgroup = c.subgroup_size;
    uint32_t processors = processors_of(&c);
    uint32_t rows = s->tokens > 1 ? 2 : 4 / s->matrices;
    struct share h;
    bool whole = is_whole(&c, s, &h);
    tile = whole ? s->cols : tile;
    if (!whole)
        h = share_in_loops(&c, s, tile);
    else if (s->rows / (h.lanes / subgroup * rows) > 16 * processors)
        h.lanes = 256;
    else if (s->matrices > 1 && h.split > 1)
        h.lanes = PAIRS_LANES;
    uint32_t subgroups = subgroups_for(&c, h.lanes, h.split), blocks = subgroups / h.split;
    while (rows > 1 && ((s->least && rows > s->least) || are_too_many(s, processors, blocks, rows)))
        rows /= 2;
    struct gemv_plan stream;
    if (whole ? streams_short(&c, s, &h, &stream) : stream_blocks(&c, s, &stream))
        return stream;
    return (struct gemv_plan){.spec = {[GEMV_SUBGROUP] = subgroup,
                                       [GEMV_WORKGROUP] = subgroups * subgroup,
                                       [GEMV_ROWS] = rows,
                                       [GEMV_TOKENS] = s->tokens,
                                       [GEMV_TILE] = tile,
                                       [GEMV_FORMATS] = format_constant(s->formats),
                                       [GEMV_SPLIT] = h.split,
                                       [GEMV_STEPS] = h.steps,
                                       [GEMV_FEW_REGISTERS] = exec_has_few_registers(&c)},
                              .workgroup_rows = blocks * rows,
                              .workgroup = subgroups * subgroup,
                              .tokens = s->tokens};
}

/* Returns the bytes of shared memory of kernels/lib/gemv.glsl for one matrix, with a code book. */
static uint64_t gemv_shared_bytes(const struct gemv_plan *p, uint32_t tokens)
{
    uint64_t book = FORMAT_WORD_SCHEME(p->spec[GEMV_FORMATS]) == SCHEME_BLOCK ? GEMV_BOOK_BYTES : 0;
    uint32_t subgroups = p->workgroup / p->spec[GEMV_SUBGROUP];
    uint64_t vectors = (uint64_t)16 * 8 * (p->spec[GEMV_TILE] / 32 + 1), sums = sizeof(float) * subgroups;
    return book + tokens * (vectors + sums + (p->spec[GEMV_SPLIT] > 1 ? sums * p->spec[GEMV_ROWS] : 0));
}

/* Subgroups that a processor has at once, CONCURRENT_FEW of them with four vectors: their sums take so many
 * registers that there is one workgroup of eight (H200: 12,352 x 2,048 with four vectors 14.6 us instead of
 * 19 with three workgroups for every two processors). */
enum { CONCURRENT_SUBGROUPS = 16, CONCURRENT_FEW = 8, CONCURRENT_VECTORS = 4 };

/* Gives a workgroup consecutive blocks of rows instead of one: loading several vectors takes as long as a
 * block. The order of a lane's pieces stays. */
static void stream_concurrent(const struct exec_caps *c, const struct gemv_shape *s, struct gemv_plan *p)
{
    uint32_t pieces = gemv_pieces(s->cols, s->formats), subgroups = p->workgroup / c->subgroup_size;
    bool is_one = !has_own_kernel(s->formats) && (s->formats & (s->formats - 1)) == 0;
    bool can = s->n_apart > 0 && p->spec[GEMV_STEPS] > 0 && is_one &&
               pieces % (p->spec[GEMV_SPLIT] * c->subgroup_size) == 0;
    uint32_t most = p->tokens < CONCURRENT_VECTORS ? CONCURRENT_SUBGROUPS : CONCURRENT_FEW;
    uint32_t groups = (uint32_t)size_max(1, (uint64_t)gemv_stream_processors(c) * most / subgroups);
    uint32_t blocks = div_up(div_up(s->rows, p->workgroup_rows), groups);
    if (!can || blocks < 2)
        return;
    p->spec[GEMV_STEPS] = 0;
    p->spec[GEMV_STREAM] = blocks;
    p->workgroup_rows *= blocks;
}

struct gemv_plan gemv_plan_longer(const struct exec *x, const struct gemv_shape *s,
                                  const struct gemv_plan *few)
{
    const struct exec_caps c = exec_get_caps(x);
    struct gemv_plan p = *few;
    stream_concurrent(&c, s, &p);
    return p;
}

/* WIDE_LANES: most lanes of widen's workgroups. WIDE_GROUPS: fewest workgroups a processor for which it pays
 * if subgroups do not share rows. */
enum { WIDE_LANES = 512, WIDE_GROUPS = 4 };

/* Doubles the rows of a workgroup if processors stay busy, so that fewer workgroups load the vector. On an
 * H200 12,352 and 9,216 rows of 2,048 columns take 0.5 us less in workgroups of 256 than of 128. 2,048 rows
 * of 4,096 columns, each shared by four subgroups, take 0.4 us less in 128 workgroups of 512 than in 256 of
 * 256. */
static void widen(const struct exec_caps *c, const struct gemv_shape *s, struct gemv_plan *p)
{
    uint32_t groups = div_up(s->rows, p->workgroup_rows), processors = processors_of(c);
    bool pays = p->spec[GEMV_SPLIT] > 1 ? groups * 8 >= processors * 15
                                        : p->workgroup < 256 && groups > WIDE_GROUPS * processors;
    if (!pays || p->spec[GEMV_STEPS] == 0 || p->workgroup > size_min(WIDE_LANES, c->max_workgroup) / 2)
        return;
    p->workgroup *= 2;
    p->workgroup_rows *= 2;
    p->spec[GEMV_WORKGROUP] = p->workgroup;
}

void gemv_plan_narrow(const struct exec_caps *c, uint32_t most, struct gemv_plan *p)
{
    uint32_t *rows = &p->spec[GEMV_ROWS];
    while (exec_has_few_registers(c) && *rows > 1 && *rows * p->tokens > most) {
        *rows /= 2;
        p->workgroup_rows /= 2;
    }
}

/* Products of a row and a vector that fit few registers (Arc A770M, compiled by Mesa 25.0: four rows with
 * four vectors spill 86 registers). FEW_HALVES: those of 4-bit codes, whose odd columns have sums of their
 * own. */
enum { FEW_PRODUCTS = 8, FEW_HALVES = 4 };

/* The workgroup's size determines the order of the sum of a norm's squares, the other constants that of a
 * product; neither depends on `tokens`. (Four and eight sequences of the 35B-A3B shape: 893 and 1,057 tok/s
 * on an H100; 828 and 950 when several tokens kept the narrow workgroups, with sums of squares as in wide
 * ones.) */
struct gemv_plan gemv_plan_concurrent(const struct exec *x, const struct gemv_shape *s,
                                      const struct gemv_plan *one, uint32_t tokens)
{
    const struct exec_caps c = exec_get_caps(x);
    struct gemv_plan p = *one;
    widen(&c, s, &p);
    while (tokens > 1 && gemv_shared_bytes(&p, tokens) > c.max_shared_bytes)
        tokens /= 2;
    p.tokens = p.spec[GEMV_TOKENS] = tokens;
    if (tokens > 1)
        gemv_plan_narrow(&c, s->formats & format_set(FORMAT_Q4) ? FEW_HALVES : FEW_PRODUCTS, &p);
    if (tokens > 1 && !exec_has_few_registers(&c))
        stream_concurrent(&c, s, &p);
    return p;
}

/* Returns the word for a basic format in the names of kernels' variants; NULL if the constant `formats` has
 * several. */
static const char *variant_of(uint32_t formats)
{
    static const char *const names[FORMAT_SET_EXTENDED] = {
        [FORMAT_Q4] = "q4", [FORMAT_Q8] = "q8", [FORMAT_BF16] = "bf16", [FORMAT_F32] = "f32"};
    for (uint32_t i = 0; i < FORMAT_SET_EXTENDED; i++)
        if (formats == 1u << i)
            return names[i];
    return NULL;
}

static void name_variant(const struct exec *x, const char *name, const uint32_t *spec, char full[KERNEL_NAME])
{
    bool has_denorm = exec_get_caps(x).has_denorm;
    uint32_t formats = spec[GEMV_FORMATS];
    bool is_word = formats >= 1u << FORMAT_SET_EXTENDED;
    bool is_block = is_word && FORMAT_WORD_SCHEME(formats) == SCHEME_BLOCK;
    const char *variant = is_block     ? has_denorm ? "blkdenorm" : "blk"
                          : is_word    ? has_denorm ? "extdenorm" : "ext"
                          : has_denorm ? "denorm"
                                       : variant_of(formats);
    snprintf(full, KERNEL_NAME, "%s_%s", name, variant ? variant : "");
    if (!pipeline_find_name(full))
        snprintf(full, KERNEL_NAME, "%s", name);
}

const char *gemv_suffix(uint64_t formats)
{
    return format_part_is_block(formats) ? "_blk" : has_own_kernel(formats) ? "_ext" : "";
}

int gemv_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e)
{
    char full[KERNEL_NAME];
    name_variant(x, name, spec, full);
    return exec_kernel(x, k, full, args_bytes, spec, n_spec, e);
}

int gemv_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    char full[KERNEL_NAME];
    name_variant(x, name, spec, full);
    return exec_kernel_later(x, k, full, args_bytes, spec, n_spec, e);
}
