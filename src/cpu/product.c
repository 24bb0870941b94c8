#include "cpu/product.h"

#include "base/mem.h"

/* Digits of a pair of blocks: three of a byte for each column. */
enum { PAIR_BYTES = 3 * 2 * CPU_BLOCK };

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
