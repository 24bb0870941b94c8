#include "ops/linear/gemm_plan.h"

#include <stdio.h>

#include "args.h"
#include "base/format.h"
#include "exec/kernel.h"
#include "ops/linear/gemv_plan.h"

/* SIDE: invocations of a workgroup along the rows and along the tokens. MOST_SHARED: bytes of shared memory
 * of the largest tile, with a code book. */
enum { SIDE = 16, MOST_SHARED = 22 * 1024 + GEMV_BOOK_BYTES };

bool gemm_is_possible(const struct exec_caps *c)
{
    return c->max_workgroup >= SIDE * SIDE && c->max_shared_bytes >= MOST_SHARED;
}

struct gemm_plan gemm_plan_for(const struct exec *x, enum gemm_tile tile, uint64_t formats)
{
    /* An invocation's rows and tokens, and the columns of a step. */
    static const struct {
        uint32_t rows, tokens, depth;
    } shapes[GEMM_TILES] = {[GEMM_TILE_16] = {4, 1, 64},
                            [GEMM_TILE_32] = {4, 2, 32},
                            [GEMM_TILE_64] = {4, 4, 32},
                            [GEMM_TILE_128] = {8, 8, 16}};
    struct exec_caps c = exec_get_caps(x);
    uint32_t rows = shapes[tile].rows, tokens = shapes[tile].tokens;
    return (struct gemm_plan){
        .spec = {c.subgroup_size, SIDE * SIDE, rows, tokens, shapes[tile].depth, format_constant(formats), 1},
        .rows = SIDE * rows,
        .tokens = SIDE * tokens,
        .variant = gemv_suffix(formats)};
}

bool gemm_has_f16(const struct exec *x)
{
    return exec_get_caps(x).has_coopmat;
}

/* A workgroup of kernels/lib/gemm_coop.glsl: invocations, matrices of sums along rows and tokens of each
 * subgroup of 32, subgroups along the tokens. */
struct f16_shape {
    uint32_t group, rows, across, along;
};

enum { F16_DEPTH = 64 };

static uint32_t f16_rows(const struct f16_shape *h)
{
    return 16 * h->rows * (h->group / 32 / h->along);
}

static uint32_t f16_tokens(const struct f16_shape *h)
{
    return 16 * h->across * h->along;
}

static uint32_t f16_shared_bytes(const struct f16_shape *h)
{
    return (f16_rows(h) + f16_tokens(h)) * (F16_DEPTH / 8 + 1) * 16 + h->group * 32;
}

struct gemm_plan gemm_f16_plan_for(const struct exec *x, enum gemm_tile tile, uint64_t formats)
{
    /* The fastest of those that tests/bench/tiles.c lists, on an H200. */
    static const struct f16_shape shapes[GEMM_TILES] = {[GEMM_TILE_16] = {64, 2, 1, 1},
                                                        [GEMM_TILE_32] = {64, 2, 2, 1},
                                                        [GEMM_TILE_64] = {128, 2, 2, 2},
                                                        [GEMM_TILE_128] = {256, 4, 2, 4}};
    struct exec_caps c = exec_get_caps(x);
    const struct f16_shape *h = &shapes[tile];
    while (h > shapes && f16_shared_bytes(h) + GEMV_BOOK_BYTES > c.max_shared_bytes)
        h--;
    return (struct gemm_plan){.spec = {c.subgroup_size, h->group, h->rows, 8 * h->across, F16_DEPTH,
                                       format_constant(formats), h->along},
                              .rows = f16_rows(h),
                              .tokens = f16_tokens(h),
                              .variant = format_part_is_block(formats)      ? "_blkcoop"
                                         : format_part_is_extended(formats) ? "_extcoop"
                                                                            : "_coop"};
}

struct gemm_plan gemm_frag_plan_for(const struct exec *x, uint32_t tokens, uint32_t along_rows,
                                    uint32_t parts)
{
    enum { LANES = 32, ROWS = 4 }; /* rows of an invocation, in both halves of the block */
    return (struct gemm_plan){.spec = {exec_get_caps(x).subgroup_size, LANES * along_rows * parts, ROWS,
                                       tokens / 4, GEMM_FRAG_COLS, format_constant(format_set(FORMAT_Q4)),
                                       parts},
                              .rows = 8 * ROWS * along_rows,
                              .tokens = tokens,
                              .variant = "_fragcoop"};
}

int gemm_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                const struct gemm_plan *p, struct moeflux_err *e)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, p->variant);
    return exec_kernel_later(x, k, full, args_bytes, p->spec, GEMM_N_SPEC, e);
}
