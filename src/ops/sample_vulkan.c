#include "args.h"
#include "base/mem.h"
#include "ops/sample.h"

enum { WORKGROUP = 256 };

int sample_vulkan_open(struct sample *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t spec[] = {caps.subgroup_size, (uint32_t)size_min(WORKGROUP, caps.max_workgroup)};
    int rc = exec_kernel(x, &op->gpu.largest, "sample_largest", sizeof(struct sample_args), spec, 2, e);
    return rc < 0 ? rc
                  : exec_kernel(x, &op->gpu.greedy, "sample_greedy", sizeof(struct sample_args), spec, 2, e);
}

void sample_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct sample *op = self;
    const struct sample_call *call = what;
    const struct sampler_rule *r = call->rule;
    const struct sample_args a = {.logits = call->logits,
                                  .blocked = call->blocked,
                                  .recent = call->recent,
                                  .last = call->last,
                                  .found = call->scratch,
                                  .id = call->id,
                                  .result = call->result,
                                  .n = op->n,
                                  .n_recent = call->n_recent,
                                  .penalises = r->repeat_last > 0,
                                  .penalty = r->penalty,
                                  .inverse_penalty = r->inverse_penalty};
    exec_dispatch(x, &op->gpu.largest, &a, div_up(op->n, SAMPLE_BLOCK), 1, 1);
    exec_dispatch(x, &op->gpu.greedy, &a, 1, 1, 1);
}
