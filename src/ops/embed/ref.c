/* The reference implementation of embed.h. */
#include "ops/embed/embed.h"
#include "ops/ref.h"

int embed_ref(const void *self, const void *what, struct host *h)
{
    const struct embed *op = self;
    const struct embed_call *call = what;
    uint32_t cols = op->weights.cols;
    double *row = host_scratch(h, cols, sizeof *row);
    for (uint32_t t = 0; row && t < call->n; t++) {
        ref_row(&op->weights, host_words(call->ids)[t], row);
        for (uint32_t c = 0; c < cols; c++)
            host_floats_mut(call->dst)[(uint64_t)t * cols + c] = (float)(row[c] * (double)op->factor);
    }
    return host_error(h);
}
