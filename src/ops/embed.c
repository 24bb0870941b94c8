#include "ops/embed.h"

#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

static void embed_ref(const void *args)
{
    const struct embed_args *a = args;
    const struct weights w = {a->weight, a->scales, a->biases, 0, a->cols, a->format};
    double *row = calloc(a->cols, sizeof *row);
    for (uint32_t t = 0; row && t < a->n; t++) {
        matvec_ref_row(&w, ref_words(a->ids)[t], row);
        for (uint32_t c = 0; c < a->cols; c++)
            ref_floats_mut(a->dst)[(uint64_t)t * a->cols + c] = (float)row[c];
    }
    free(row);
}

int embed_open(struct embed *op, struct exec *x, const struct weights *w, struct moeflux_err *e)
{
    if (w->cols == 0 || w->cols % 64)
        return err_set(e, ERR_UNSUPPORTED, "embedding: %u columns, expected a multiple of 64", w->cols);
    const struct matvec_shape shape = {w->rows, w->cols, 1, 1u << w->format, 1};
    struct matvec_plan p = matvec_plan_for(x, &shape);
    *op = (struct embed){.weights = *w, .workgroup = p.workgroup};
    return exec_kernel(x, &op->kernel, "embed", embed_ref, sizeof(struct embed_args), p.spec, MATVEC_N_SPEC,
                       e);
}

void embed_run(const struct embed *op, struct exec *x, uint64_t ids, uint64_t dst, uint32_t n)
{
    const struct weights *w = &op->weights;
    const struct embed_args a = {.weight = w->weight,
                                 .scales = w->scales,
                                 .biases = w->biases,
                                 .ids = ids,
                                 .dst = dst,
                                 .n = n,
                                 .cols = w->cols,
                                 .format = w->format};
    exec_run(x, &op->kernel, &a, div_up(w->cols, op->workgroup * 8), n, 1);
}
