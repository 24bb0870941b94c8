#include "ops/matvec_transposed/matvec_transposed.h"

#include "base/err.h"

static const struct op matvec_transposed_op = {.name = "matvec_transposed",
                                               .vulkan = matvec_transposed_vulkan,
                                               .cpu = matvec_transposed_cpu,
                                               .reference = matvec_transposed_ref};

int matvec_transposed_open(struct matvec_transposed *op, struct exec *x, const struct weights *w,
                           uint32_t n_stacked, uint32_t step, struct moeflux_err *e)
{
    *op = (struct matvec_transposed){.w = *w, .n_stacked = n_stacked, .step = step};
    int rc = weights_check(w, "transposed product", e);
    if (rc < 0)
        return rc;
    if (w->rows % 4 && !weights_are_plain(w))
        return err_set(
            e, ERR_UNSUPPORTED,
            "transposed product: a matrix of quantised numbers has %u rows, expected a multiple of 4",
            w->rows);
    return exec_get_caps(x).is_host ? 0 : matvec_transposed_vulkan_open(op, x, e);
}

void matvec_transposed_run(const struct matvec_transposed *op, struct exec *x,
                           const struct matvec_transposed_call *call)
{
    exec_op(x, &matvec_transposed_op, op, call);
}
