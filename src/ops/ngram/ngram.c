#include "ops/ngram/ngram.h"

#include "base/err.h"
#include "base/mem.h"

static const struct op ngram_op = {
    .name = "ngram", .vulkan = ngram_vulkan, .cpu = ngram_cpu, .reference = ngram_ref};

int ngram_open(struct ngram *op, struct exec *x, const struct ngram_shape *s, struct moeflux_err *e)
{
    *op = (struct ngram){.shape = *s};
    if (s->n_streams == 0 || s->hidden == 0 || s->hidden % 4 || s->taps == 1 ||
        (s->taps > 0 && s->dilation == 0))
        return err_set(e, ERR_UNSUPPORTED, "n-gram rows: %u streams of %u channels, %u taps with dilation %u",
                       s->n_streams, s->hidden, s->taps, s->dilation);
    return exec_get_caps(x).is_host ? 0 : ngram_vulkan_open(op, x, e);
}

/* u of each token, then the gates g. A token's part is whole vectors, so that tokens of several sequences can
 * have consecutive parts. */
uint64_t ngram_scratch(const struct ngram_shape *s, uint32_t n)
{
    return n * size_round_up((uint64_t)s->n_streams * (s->hidden + 1), 4);
}

uint64_t ngram_window(const struct ngram_shape *s)
{
    return ngram_held(s) * s->n_streams * s->hidden;
}

void ngram_run(const struct ngram *op, struct exec *x, const struct ngram_call *call)
{
    exec_op(x, &ngram_op, op, call);
}
