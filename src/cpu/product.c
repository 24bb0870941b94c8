#include "cpu/product.h"

#include "base/mem.h"

/* Digits of a pair of blocks: three of a byte for each column. */
enum { PAIR_BYTES = 3 * 2 * CPU_BLOCK, GROUPS_AT_ONCE = 16 };

static uint64_t padded_blocks(uint32_t cols)
{
    return size_round_up(div_up(cols, CPU_BLOCK), 8);
}

uint64_t cpu_vector_bytes(uint32_t cols)
{
    uint64_t blocks = padded_blocks(cols);
    return blocks / 2 * PAIR_BYTES + 2 * blocks * sizeof(float);
}

void cpu_vector_place(struct cpu_vector *v, uint32_t cols, void *memory)
{
    uint64_t blocks = padded_blocks(cols);
    float *steps = memory;
    *v = (struct cpu_vector){
        .cols = cols, .steps = steps, .sums = steps + blocks, .digits = (int8_t *)(steps + 2 * blocks)};
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
