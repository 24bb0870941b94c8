/* pack (product.h), the tiles of gemm, for one instruction set. */
#include "cpu/table.h"

#include "cpu/product.h"

static const float *token(const struct cpu_pack_call *call, uint32_t i)
{
    return call->x + (call->pick ? call->pick[i] : i) * call->x_stride;
}

/* Packs t tokens of one tile, 8 columns at a time. A store writes past its t tokens; the next column
 * overwrites that. */
static void pack_tile(const struct cpu_pack_call *call, uint32_t begin, uint32_t t, float *to)
{
    const float *rows[VEC_LANES];
    for (uint32_t i = 0; i < VEC_LANES; i++)
        rows[i] = token(call, begin + (i < t ? i : 0));
    uint32_t c = 0;
    for (; c + 2 * VEC_LANES <= call->cols; c += VEC_LANES) {
        const void *from[VEC_LANES];
        struct ivec column[VEC_LANES];
        for (uint32_t i = 0; i < VEC_LANES; i++)
            from[i] = rows[i] + c;
        vec_turn(from, column);
        for (uint32_t i = 0; i < VEC_LANES; i++, to += t)
            ivec_store(to, column[i]);
    }
    for (; c < call->cols; c++)
        for (uint32_t i = 0; i < t; i++)
            *to++ = rows[i][c];
}

void VEC_NAME(pack)(const struct cpu_pack_call *call)
{
    for (uint32_t i = call->first; i < call->last; i++) {
        uint32_t begin = cpu_tile_begin(call->n, i), end = cpu_tile_begin(call->n, i + 1);
        pack_tile(call, begin, end - begin, call->packed + (uint64_t)begin * call->cols);
    }
}
