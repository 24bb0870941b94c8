#include "ops/embed/embed.h"

#include "args.h"
#include "base/err.h"

static const struct op embed_op = {
    .name = "embed", .vulkan = embed_vulkan, .cpu = embed_cpu, .reference = embed_ref};

int embed_open(struct embed *op, struct exec *x, const struct weights *w, float factor, struct moeflux_err *e)
{
    *op = (struct embed){.weights = *w, .factor = factor};
    int rc = weights_check(w, "embedding", e);
    if (rc < 0)
        return rc;
    if (weights_are_uneven(w))
        return err_set(e, ERR_UNSUPPORTED, "embedding: %u columns, expected a multiple of %d", w->cols,
                       PRODUCT_COLS);
    return exec_get_caps(x).is_host ? 0 : embed_vulkan_open(op, x, e);
}

void embed_run(const struct embed *op, struct exec *x, const struct embed_call *call)
{
    exec_op(x, &embed_op, op, call);
}
