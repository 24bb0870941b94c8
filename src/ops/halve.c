#include "ops/halve.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/mem.h"
#include "ops/half.h"
#include "ops/matvec.h"

static void halve_ref(const void *args)
{
    const struct halve_args *a = args;
    double *row = calloc(a->cols, sizeof *row);
    for (uint32_t t = 0; row && t < a->n; t++) {
        matvec_ref_norm(ref_floats(a->x) + (uint64_t)t * a->x_stride, a->norm ? ref_floats(a->norm) : NULL,
                        a->cols, (double)a->eps, row);
        uint16_t *dst = (uint16_t *)(uintptr_t)a->dst + (uint64_t)t * a->cols;
        for (uint32_t c = 0; c < a->cols; c++)
            dst[c] = half_from_float((float)row[c]);
    }
    free(row);
}

int halve_open(struct halve *op, struct exec *x, struct moeflux_err *e)
{
    struct exec_caps c = exec_get_caps(x);
    uint32_t group = (uint32_t)size_min(c.max_workgroup, size_round_up(256, c.subgroup_size));
    const uint32_t spec[] = {c.subgroup_size, group - group % c.subgroup_size};
    return exec_kernel(x, &op->kernel, "halve", halve_ref, sizeof(struct halve_args), spec, 2, e);
}

void halve_run(const struct halve *op, struct exec *x, const struct halve_call *call)
{
    const struct halve_args a = {.x = call->x,
                                 .norm = call->norm,
                                 .dst = call->dst,
                                 .n = call->n,
                                 .cols = call->cols,
                                 .x_stride = call->x_stride,
                                 .eps = call->eps};
    exec_run(x, &op->kernel, &a, call->n, 1, 1);
}
