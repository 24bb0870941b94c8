#include "ops/matvec_transposed.h"

#include "base/err.h"

static const struct op matvec_transposed_op = {.name = "matvec_transposed",
                                               .vulkan = matvec_transposed_vulkan,
                                               .cpu = matvec_transposed_cpu,
                                               .reference = matvec_transposed_ref};

int matvec_transposed_open(struct matvec_transposed *op, struct exec *x, const struct weights *w,
                           uint32_t n_stacked, uint32_t step, struct moeflux_err *e)
{
    *op = (struct matvec_transposed){.w = *w, .n_stacked = n_stacked, .step = step};
    bool is_uneven = w->rows % 4 || w->cols % 64;
    if (w->rows == 0 || w->cols == 0 || (is_uneven && !weights_are_plain(w)))
        return err_set(e, ERR_UNSUPPORTED,
                       "transposed product: a quantised matrix is [%u][%u], expected multiples of 4 and 64",
                       w->rows, w->cols);
    return exec_get_caps(x).is_host ? 0 : matvec_transposed_vulkan_open(op, x, e);
}

void matvec_transposed_run(const struct matvec_transposed *op, struct exec *x,
                           const struct matvec_transposed_call *call)
{
    exec_op(x, &matvec_transposed_op, op, call);
}
