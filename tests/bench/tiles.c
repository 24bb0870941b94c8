#include "tiles.h"

#include <assert.h>
#include <stdio.h>

#include "exec/exec.h"

const struct tile tiles_to_try[TILES_TO_TRY] = {
    /* 16 tokens */
    {32, 2, 1, 128, 1},
    {64, 2, 1, 64, 1},
    {64, 2, 1, 128, 1},
    {64, 4, 1, 64, 1},
    {128, 2, 1, 64, 1},
    {128, 2, 1, 128, 1},
    /* 32 */
    {64, 2, 2, 64, 1},
    {64, 4, 2, 64, 1},
    {128, 2, 1, 64, 2},
    {128, 2, 2, 64, 1},
    /* 64 */
    {256, 2, 2, 64, 2},
    {128, 2, 2, 64, 2},
    {128, 4, 2, 64, 2},
    {256, 4, 2, 64, 2},
    /* 128 */
    {256, 4, 2, 64, 4},
    {128, 4, 2, 64, 4},
};

static uint32_t block_rows(const struct tile *t)
{
    return 16 * t->rows * (t->group / 32 / t->along);
}

static uint32_t tile_tokens(const struct tile *t)
{
    return 16 * t->across * t->along;
}

static bool is_legal(const struct tile *t)
{
    return (t->rows == 2 || t->rows == 4) && (t->across == 1 || t->across == 2) && t->along > 0 &&
           t->group > 0 && t->group <= 256 && t->group % (32 * t->along) == 0 &&
           (t->depth == 64 || t->depth == 128) && tile_tokens(t) * t->depth / 8 % t->group == 0 &&
           2 * block_rows(t) % t->group == 0;
}

bool tile_read(const char *text, struct tile *t)
{
    return sscanf(text, "%u,%u,%u,%u,%u", &t->group, &t->rows, &t->across, &t->depth, &t->along) == 5 &&
           is_legal(t);
}

bool tile_fits(const struct exec *x, const struct tile *t, uint32_t cols)
{
    uint32_t bytes = (block_rows(t) + tile_tokens(t)) * (t->depth / 8 + 1) * 16 + t->group * 32;
    return bytes <= exec_get_caps(x).max_shared_bytes && cols % t->depth == 0;
}

struct gemm_plan tile_plan(const struct exec *x, const struct tile *t, uint32_t formats)
{
    assert(is_legal(t));
    return (struct gemm_plan){.spec = {exec_get_caps(x).subgroup_size, t->group, t->rows, 8 * t->across,
                                       t->depth, formats, t->along},
                              .rows = block_rows(t),
                              .tokens = tile_tokens(t),
                              .variant = "_coop"};
}

void tile_name(const struct tile *t, char *text, uint64_t bytes)
{
    snprintf(text, bytes, "%ux%u (%u,%u,%u,%u,%u)", tile_tokens(t), block_rows(t), t->group, t->rows,
             t->across, t->depth, t->along);
}
