/* The Vulkan implementation of embed.h. */
#include <stdio.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "ops/embed/embed.h"
#include "ops/linear/gemv_plan.h"

int embed_vulkan_open(struct embed *op, struct exec *x, struct moeflux_err *e)
{
    const struct weights *w = &op->weights;
    const uint64_t formats = format_set(w->format);
    char name[16];
    op->gpu.workgroup = (uint32_t)size_min(256, exec_get_caps(x).max_workgroup);
    const uint32_t spec[] = {op->gpu.workgroup, format_constant(formats)};
    int rc = format_is_block(w->format) ? code_books_open(x, e) : 0;
    if (rc < 0)
        return rc;
    snprintf(name, sizeof name, "embed%s", gemv_suffix(formats));
    return exec_kernel(x, &op->gpu.kernel, name, sizeof(struct embed_args), spec, 2, e);
}

void embed_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct embed *op = self;
    const struct embed_call *call = what;
    const struct weights *w = &op->weights;
    const struct embed_args a = {.weight = w->weight,
                                 .scales = code_books_or_scales(x, w->format, w->scales),
                                 .biases = w->biases,
                                 .ids = call->ids,
                                 .dst = call->dst,
                                 .n = call->n,
                                 .cols = w->cols,
                                 .format = w->format,
                                 .factor = op->factor};
    exec_dispatch(x, &op->gpu.kernel, &a, div_up(w->cols, op->gpu.workgroup * 8), call->n, 1);
}
