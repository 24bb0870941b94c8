#include "ops/gemv_plan.h"

#include "args.h"
#include "base/mem.h"
#include "exec/exec.h"

static uint32_t round_down_pow2(uint32_t n)
{
    while (n & (n - 1))
        n &= n - 1;
    return n;
}

/* Equal tiles of at most half of shared memory. */
static uint32_t tile_for(const struct exec_caps *c, uint32_t cols, uint32_t tokens)
{
    uint32_t most = (c->max_shared_bytes / 2 / tokens - 128) / 4;
    most -= most % PRODUCT_COLS;
    return (uint32_t)size_round_up(div_up(cols, div_up(cols, most)), PRODUCT_COLS);
}

/* Rows that share a subgroup save reads of the vector; subgroups that share rows make up for rows that are few, so that
 * a lane has one step or two, which it keeps in flight. */
struct gemv_plan gemv_plan_for(const struct exec *x, const struct gemv_shape *s)
{
    const struct exec_caps c = exec_get_caps(x);
    uint32_t tile = tile_for(&c, s->cols, s->tokens), subgroup = c.subgroup_size;
    uint32_t lanes = (uint32_t)size_min(tile > 4096 ? 512 : 256, c.max_workgroup);
    uint32_t subgroups = (uint32_t)size_max(1, round_down_pow2(lanes / subgroup));
    uint32_t rows = s->tokens > 1 ? 2 : 4 / s->matrices;
    uint32_t split = 1;
    if (s->rows < 4096 && s->tokens == 1)
        while (split < 4 && split < subgroups && split * subgroup < div_up(tile, 32))
            split *= 2;
    if (s->rows < 2048 && s->matrices == 1)
        rows = 2;
    return (struct gemv_plan){.spec = {[GEMV_SUBGROUP] = subgroup,
                                       [GEMV_WORKGROUP] = subgroups * subgroup,
                                       [GEMV_ROWS] = rows,
                                       [GEMV_TOKENS] = s->tokens,
                                       [GEMV_TILE] = tile,
                                       [GEMV_FORMATS] = s->formats,
                                       [GEMV_SPLIT] = split},
                              .workgroup_rows = subgroups / split * rows,
                              .workgroup = subgroups * subgroup,
                              .tokens = s->tokens};
}
