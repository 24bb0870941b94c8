#include "cpu/product.h"

#include "base/format.h"
#include "base/mem.h"

/* PAIR_BYTES: digits of a pair of blocks, three of a byte for each column. */
enum {
    PAIR_BYTES = 3 * 2 * CPU_BLOCK,
    GROUPS_AT_ONCE = 16,
    FIXED_STEP = 4,
    CODES_BYTES = 16 * CPU_BLOCK,
    LANES = 8
};

bool cpu_format_takes_fixed(uint32_t format)
{
    return format == FORMAT_Q4 || format == FORMAT_Q8;
}

bool cpu_format_takes_int16(uint32_t format)
{
    return format_is_block(format);
}

bool cpu_format_takes_digits(uint32_t format)
{
    uint32_t scheme = format_of(format)->scheme;
    return scheme == SCHEME_AFFINE || scheme == SCHEME_E2M1 || scheme == SCHEME_BLOCK;
}

static uint64_t padded_blocks(uint32_t cols)
{
    return size_round_up(div_up(cols, CPU_BLOCK), 8);
}

/* Returns the floats and integers of a vector with that many padded blocks: steps and sums of 64, of 32, of
 * 128; integers of the lanes. */
static uint64_t vector_words(uint64_t blocks)
{
    return 2 * blocks + 2 * blocks + size_round_up(blocks / 2, 8) + blocks * LANES;
}

static uint64_t vector_bytes(uint64_t blocks)
{
    return size_round_up(vector_words(blocks) * sizeof(float), 64) + blocks / 2 * PAIR_BYTES;
}

/* Returns the bytes of what block formats need in addition: sums of 16, integers of the lanes, digits. */
static uint64_t vector_block_bytes(uint64_t blocks)
{
    return (4 * blocks + 3 * blocks * LANES) * sizeof(float) + blocks / 2 * PAIR_BYTES +
           blocks * BLOCK_WIDE_DIGITS * sizeof(int16_t);
}

uint64_t cpu_vector_bytes(uint32_t cols, bool has_blocks)
{
    uint64_t blocks = padded_blocks(cols);
    return vector_bytes(blocks) + (has_blocks ? vector_block_bytes(blocks) : 0);
}

void cpu_vector_place(struct cpu_vector *v, uint32_t cols, bool has_blocks, void *memory)
{
    uint64_t blocks = padded_blocks(cols);
    float *steps = memory;
    *v = (struct cpu_vector){.cols = cols,
                             .steps = steps,
                             .sums = steps + blocks,
                             .sums_32 = steps + 2 * blocks,
                             .sums_128 = steps + 4 * blocks};
    v->shifted = (int32_t *)(void *)(v->sums_128 + size_round_up(blocks / 2, 8));
    v->digits = (int8_t *)memory + size_round_up(vector_words(blocks) * sizeof(float), 64);
    if (!has_blocks)
        return;
    v->column_digits = v->digits + blocks / 2 * PAIR_BYTES;
    v->wide_digits = (int16_t *)(void *)(v->column_digits + blocks / 2 * PAIR_BYTES);
    v->sums_16 = (float *)(void *)(v->wide_digits + blocks * BLOCK_WIDE_DIGITS);
    v->lanes_all = (int32_t *)(void *)(v->sums_16 + 4 * blocks);
    v->lanes_high = v->lanes_all + blocks * LANES;
    v->lanes_low = v->lanes_high + blocks * LANES;
}

uint32_t cpu_n_tiles(uint32_t n)
{
    return div_up(n, CPU_TILE_TOKENS);
}

uint32_t cpu_tile_begin(uint32_t n, uint32_t tile)
{
    uint32_t tiles = cpu_n_tiles(n), more = tiles > 0 ? n % tiles : 0;
    return tiles > 0 ? tile * (n / tiles) + (tile < more ? tile : more) : 0;
}

uint64_t cpu_gemm_scratch_bytes(uint32_t cols)
{
    uint64_t sums = (uint64_t)CPU_STRIP_ROWS * CPU_CHUNK_TOKENS;
    uint64_t groups = 2 * (uint64_t)CPU_STRIP_ROWS * size_round_up(div_up(cols, CPU_BLOCK), GROUPS_AT_ONCE);
    return (sums + groups + CPU_PANEL) * sizeof(float);
}

uint32_t cpu_fixed_tiles(const struct cpu_fixed *f)
{
    return div_up(f->n, f->tile_tokens);
}

static uint32_t fixed_tile_tokens(uint32_t n)
{
    return (uint32_t)size_round_up(div_up(n, div_up(n, CPU_FIXED_TILE)), FIXED_STEP);
}

uint64_t cpu_fixed_bytes(uint32_t cols, uint32_t n)
{
    uint32_t t = fixed_tile_tokens(n);
    uint64_t columns = (uint64_t)div_up(n, t) * t * (cols / CPU_BLOCK);
    return size_round_up(2 * columns * sizeof(float), 64) + columns * 3 * CPU_BLOCK;
}

void cpu_fixed_place(struct cpu_fixed *f, uint32_t cols, uint32_t n, void *memory)
{
    *f = (struct cpu_fixed){.n = n, .cols = cols, .tile_tokens = fixed_tile_tokens(n), .steps = memory};
    uint64_t columns = (uint64_t)cpu_fixed_tiles(f) * f->tile_tokens * (cols / CPU_BLOCK);
    f->sums = f->steps + columns;
    f->digits = (int8_t *)memory + size_round_up(2 * columns * sizeof(float), 64);
}

uint64_t cpu_gemm_fixed_scratch_bytes(uint32_t cols)
{
    uint64_t sums = (uint64_t)CPU_STRIP_ROWS * CPU_FIXED_TOKENS;
    uint64_t groups = 2 * (uint64_t)CPU_STRIP_ROWS * size_round_up(cols / CPU_BLOCK, GROUPS_AT_ONCE);
    return (sums + groups) * sizeof(float) + (uint64_t)CPU_STRIP_ROWS / 16 * CPU_FIXED_PANEL * CODES_BYTES;
}
