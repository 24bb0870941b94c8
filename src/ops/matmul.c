#include "ops/matmul.h"

#include <stdio.h>

#include "args.h"
#include "ops/exec.h"

/* Invocations of a workgroup along the rows and along the tokens, on a GPU. */
enum { SIDE = 16 };

bool matmul_is_possible(const struct exec *x)
{
    struct exec_caps c = exec_get_caps(x);
    return c.is_cpu ? c.has_wide || c.is_reference : c.max_workgroup >= SIDE * SIDE;
}

struct matmul_plan matmul_plan_for(const struct exec *x, enum matmul_tile tile, uint32_t formats)
{
    /* Of an invocation, and the columns of a step: at most 22 KiB of shared memory. */
    static const struct {
        uint32_t rows, tokens, depth;
    } shapes[MATMUL_TILES] = {[MATMUL_FEW] = {4, 1, 64},
                              [MATMUL_SOME] = {4, 2, 32},
                              [MATMUL_MANY] = {4, 4, 32},
                              [MATMUL_MOST] = {8, 8, 16}};
    struct exec_caps c = exec_get_caps(x);
    if (c.is_cpu) {
        uint32_t rows = 4, tokens = tile == MATMUL_MOST ? 16 : 8;
        return (struct matmul_plan){.spec = {c.subgroup_size, c.subgroup_size, rows, tokens, 32, formats, 1},
                                    .rows = rows * c.subgroup_size,
                                    .tokens = tokens,
                                    .variant = "_wide"};
    }
    uint32_t rows = shapes[tile].rows, tokens = shapes[tile].tokens;
    return (struct matmul_plan){
        .spec = {c.subgroup_size, SIDE * SIDE, rows, tokens, shapes[tile].depth, formats, 1},
        .rows = SIDE * rows,
        .tokens = SIDE * tokens,
        .variant = ""};
}

bool matmul_has_half(const struct exec *x)
{
    return exec_get_caps(x).has_coop;
}

/* Of a workgroup of kernels/matmul_coop.glsl: invocations, matrices of sums along rows and tokens of each subgroup of 32,
 * subgroups along the tokens. */
struct half_shape {
    uint32_t group, rows, across, along;
};

enum { HALF_DEPTH = 64 };

static uint32_t half_rows(const struct half_shape *h)
{
    return 16 * h->rows * (h->group / 32 / h->along);
}

static uint32_t half_tokens(const struct half_shape *h)
{
    return 16 * h->across * h->along;
}

static uint32_t half_shared_bytes(const struct half_shape *h)
{
    return (half_rows(h) + half_tokens(h)) * (HALF_DEPTH / 8 + 1) * 16 + h->group * 32;
}

struct matmul_plan matmul_half_plan_for(const struct exec *x, enum matmul_tile tile, uint32_t formats)
{
    /* The fastest of those that tests/tiles.c lists, on an H200. */
    static const struct half_shape shapes[MATMUL_TILES] = {[MATMUL_FEW] = {64, 2, 1, 1},
                                                           [MATMUL_SOME] = {64, 2, 2, 1},
                                                           [MATMUL_MANY] = {128, 2, 2, 2},
                                                           [MATMUL_MOST] = {256, 4, 2, 4}};
    struct exec_caps c = exec_get_caps(x);
    const struct half_shape *h = &shapes[tile];
    while (h > shapes && half_shared_bytes(h) > c.max_shared_bytes)
        h--;
    return (struct matmul_plan){
        .spec = {c.subgroup_size, h->group, h->rows, 8 * h->across, HALF_DEPTH, formats, h->along},
        .rows = half_rows(h),
        .tokens = half_tokens(h),
        .variant = "_coop"};
}

int matmul_kernel(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                  uint32_t args_bytes, const struct matmul_plan *p, struct moeflux_err *e)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, p->variant);
    return exec_kernel_later(x, k, full, ref, args_bytes, p->spec, MATMUL_N_SPEC, e);
}
