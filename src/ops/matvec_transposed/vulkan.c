/* The Vulkan implementation of matvec_transposed.h. */
#include <stdio.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "ops/linear/gemv_plan.h"
#include "ops/matvec_transposed/matvec_transposed.h"

/* Invocations of a workgroup for one token. Each has few rows, because the loads of its rows wait for one
 * another. FEW_TOKENS: TRANSPOSED_TOKENS where lanes have few registers (exec_has_few_registers). */
enum { ONE_GROUP = 512, FEW_TOKENS = 4 };

int matvec_transposed_vulkan_open(struct matvec_transposed *op, struct exec *x, struct moeflux_err *e)
{
    enum { LANES = 32, GROUP_SPEC = 1, TOKENS_SPEC = 3 };
    struct exec_caps caps = exec_get_caps(x);
    bool is_uneven = op->w.rows % 4 || weights_are_uneven(&op->w);
    char name[64];
    snprintf(name, sizeof name, "%s%s", is_uneven ? "matvec_transposed_plain" : "matvec_transposed_groups",
             gemv_suffix(format_set(op->w.format)));
    const uint32_t bytes = sizeof(struct matvec_transposed_args), n_spec = is_uneven ? 4 : 5;
    uint32_t group = exec_workgroup(&caps, 256),
             one_group = is_uneven ? group : exec_workgroup(&caps, ONE_GROUP);
    /* lanes of eight columns each; all others share their rows */
    uint32_t lanes = (uint32_t)size_min(LANES, group);
    uint32_t spec[] = {caps.subgroup_size, one_group, format_constant(format_set(op->w.format)), 1, lanes};
    op->gpu.cols = is_uneven ? group : 8 * lanes;
    int rc = format_is_block(op->w.format) ? code_books_open(x, e) : 0;
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.one, name, bytes, spec, n_spec, e);
    spec[GROUP_SPEC] = group;
    op->gpu.tokens = spec[TOKENS_SPEC] = exec_has_few_registers(&caps) ? FEW_TOKENS : TRANSPOSED_TOKENS;
    return rc < 0 ? rc : exec_kernel_later(x, &op->gpu.several, name, bytes, spec, n_spec, e);
}

void matvec_transposed_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct matvec_transposed *op = self;
    const struct matvec_transposed_call *call = what;
    const struct matvec_transposed_args a = {.weight = op->w.weight,
                                             .scales = code_books_or_scales(x, op->w.format, op->w.scales),
                                             .biases = op->w.biases,
                                             .x = call->x,
                                             .y = call->y,
                                             .format = op->w.format,
                                             .rows = op->w.rows,
                                             .cols = op->w.cols,
                                             .step = op->step,
                                             .x_stride = call->x_stride,
                                             .y_stride = call->y_stride,
                                             .x_step = call->x_step,
                                             .y_step = call->y_step,
                                             .n = call->n,
                                             .n_stacked = op->n_stacked};
    bool is_one = call->n == 1;
    exec_dispatch(x, is_one ? &op->gpu.one : &op->gpu.several, &a, div_up(op->w.cols, op->gpu.cols),
                  is_one ? 1 : div_up(call->n, op->gpu.tokens), op->n_stacked);
}
