#include "ops/gemv_plan.h"

#include <stdio.h>

#include "args.h"
#include "base/mem.h"
#include "exec/kernel.h"

static uint32_t round_down_pow2(uint32_t n)
{
    while (n & (n - 1))
        n &= n - 1;
    return n;
}

/* Rows on lanes: the subgroups of a workgroup share the copy of the vector, so many; but a software device has a few
 * cores and wants several workgroups for each. Two numbers only, because every other one is a pipeline more to make. */
static void plan_wide(struct gemv_plan *p, const struct exec_caps *c, uint32_t n_rows)
{
    uint32_t block = 4 * c->subgroup_size;
    uint32_t subgroups = n_rows >= 32 * block ? 8 : 2;
    subgroups = (uint32_t)size_min(subgroups, c->max_workgroup / c->subgroup_size);
    p->spec[GEMV_ROWS] = 4;
    p->spec[GEMV_SPLIT] = 1;
    /* The tile of vectors may take half of shared memory (16 bytes hold four columns, one in 32 is padding). */
    p->spec[GEMV_TILE] = round_down_pow2(c->max_shared_bytes / 2 / (4 * p->tokens) - 64 / p->tokens);
    p->workgroup = subgroups * c->subgroup_size;
    p->workgroup_rows = subgroups * block;
}

/* Equal tiles of at most half of shared memory. */
static uint32_t tile_for(const struct exec_caps *c, uint32_t cols, uint32_t tokens)
{
    uint32_t most = (c->max_shared_bytes / 2 / tokens - 128) / 4;
    most -= most % PRODUCT_COLS;
    return (uint32_t)size_round_up(div_up(cols, div_up(cols, most)), PRODUCT_COLS);
}

/* Columns on lanes: rows that share a subgroup save reads of the vector; subgroups that share rows make up for rows
 * that are few, so that a lane has one step or two, which it keeps in flight. */
static void plan_lanes(struct gemv_plan *p, const struct exec_caps *c, uint32_t n_rows, uint32_t cols)
{
    uint32_t tile = tile_for(c, cols, p->tokens), subgroup = c->subgroup_size;
    uint32_t lanes = (uint32_t)size_min(tile > 4096 ? 512 : 256, c->max_workgroup);
    uint32_t subgroups = (uint32_t)size_max(1, round_down_pow2(lanes / subgroup));
    uint32_t rows = p->tokens > 1 ? 2 : 4 / p->matrices;
    uint32_t split = 1;
    if (n_rows < 4096 && p->tokens == 1)
        while (split < 4 && split < subgroups && split * subgroup < div_up(tile, 32))
            split *= 2;
    if (n_rows < 2048 && p->matrices == 1)
        rows = 2;
    p->spec[GEMV_ROWS] = rows;
    p->spec[GEMV_SPLIT] = split;
    p->spec[GEMV_TILE] = tile;
    p->workgroup = subgroups * subgroup;
    p->workgroup_rows = subgroups / split * rows;
}

struct gemv_plan gemv_plan_for(const struct exec *x, const struct gemv_shape *shape)
{
    struct exec_caps c = exec_get_caps(x);
    struct gemv_plan p = {.tokens = shape->tokens, .matrices = shape->matrices, .wide = c.has_wide};
    if (p.wide)
        plan_wide(&p, &c, shape->rows);
    else
        plan_lanes(&p, &c, shape->rows, shape->cols);
    p.spec[GEMV_SUBGROUP] = c.subgroup_size;
    p.spec[GEMV_WORKGROUP] = p.workgroup;
    p.spec[GEMV_TOKENS] = shape->tokens;
    p.spec[GEMV_FORMATS] = shape->formats;
    return p;
}

int gemv_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                const struct gemv_plan *p, struct moeflux_err *e)
{
    char wide[64];
    snprintf(wide, sizeof wide, "%s_wide", name);
    return exec_kernel(x, k, p->wide ? wide : name, args_bytes, p->spec, GEMV_N_SPEC, e);
}
