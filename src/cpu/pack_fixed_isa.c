/* pack_fixed (product.h), the tiles of gemm_fixed, for one instruction set. */
#include "cpu/table.h"

#include "cpu/codes.h"
#include "cpu/product.h"

enum { HALF = CPU_BLOCK / 2 };

/* Fills a token's place i in its tile; v NULL: with zeros. */
static void pack_token(const struct cpu_fixed *to, uint32_t tile, uint32_t i, const struct cpu_vector *v)
{
    uint32_t blocks = to->cols / CPU_BLOCK, t = to->tile_tokens;
    uint64_t at = (uint64_t)tile * blocks * t + i;
    int8_t *digits = to->digits + (uint64_t)tile * blocks * 3 * t * CPU_BLOCK + (uint64_t)i * CPU_BLOCK;
    for (uint32_t b = 0; b < blocks; b++, at += t) {
        to->steps[at] = v ? v->steps[b] : 0;
        to->sums[at] = v ? v->sums[b] : 0;
        const int8_t *from = v ? v->digits + (uint64_t)b / 2 * PAIR_DIGITS + (uint64_t)b % 2 * HALF : NULL;
        for (uint32_t k = 0; k < 3; k++, digits += (uint64_t)t * CPU_BLOCK) {
            struct ivec even = ivec_set1(0), odd = even;
            if (from) {
                even = ivec_load(from + (uint64_t)k * DIGIT_BYTES);
                odd = ivec_load(from + (uint64_t)k * DIGIT_BYTES + CPU_BLOCK);
            }
            ivec_store(digits, even);
            ivec_store(digits + HALF, odd);
        }
    }
}

void VEC_NAME(pack_fixed)(const struct cpu_pack_fixed_call *call)
{
    const struct cpu_fixed *to = call->to;
    for (uint32_t tile = call->first; tile < call->last; tile++)
        for (uint32_t i = 0; i < to->tile_tokens; i++) {
            uint32_t token = tile * to->tile_tokens + i;
            bool is_there = token < to->n;
            const struct cpu_vector *v = is_there ? &call->x[call->pick ? call->pick[token] : token] : NULL;
            pack_token(to, tile, i, v);
        }
}
