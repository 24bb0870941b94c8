#include "ops/sample/sample.h"

#include "args.h"
#include "base/mem.h"

static const struct op sample_op = {
    .name = "sample", .vulkan = sample_vulkan, .cpu = sample_ref, .reference = sample_ref};

int sample_open(struct sample *op, struct exec *x, uint32_t n, struct moeflux_err *e)
{
    *op = (struct sample){.n = n};
    return exec_get_caps(x).is_host ? 0 : sample_vulkan_open(op, x, e);
}

uint64_t sample_scratch(uint32_t n)
{
    return ((uint64_t)div_up(n, SAMPLE_BLOCK) * 4 + (uint64_t)n * 3) * sizeof(uint32_t);
}

bool sample_takes(const struct sample *op, const struct sampler_rule *r)
{
    return !r->host_only && r->n_ids == op->n && op->n <= SAMPLE_MAX_IDS &&
           r->repeat_last <= SAMPLE_MAX_RECENT;
}

void sample_run(const struct sample *op, struct exec *x, const struct sample_call *call)
{
    exec_op(x, &sample_op, op, call);
}

void sample_run_concurrent(const struct sample *op, struct exec *x, const struct sample_call *calls,
                           uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        sample_vulkan_concurrent(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        sample_run(op, x, &calls[i]);
}
