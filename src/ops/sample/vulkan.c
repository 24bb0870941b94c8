/* The Vulkan implementation of sample.h. */
#include "args.h"
#include "base/mem.h"
#include "ops/sample/sample.h"

/* DRAW_LEAST: number of digit values that a workgroup of draw looks at at once; no device has smaller
 * limits. */
enum { WORKGROUP = 256, DRAW_LEAST = 128, DRAW_MOST = 1024 };

/* Returns the size of the one workgroup that draws: large for many ids. */
static uint32_t draw_workgroup(uint32_t n, const struct exec_caps *caps)
{
    uint32_t lanes = DRAW_LEAST;
    while (lanes < DRAW_MOST && 2 * lanes <= caps->max_workgroup && lanes < n)
        lanes *= 2;
    return lanes;
}

int sample_vulkan_open(struct sample *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t spec[] = {caps.subgroup_size, (uint32_t)size_min(WORKGROUP, caps.max_workgroup)};
    const uint32_t draw[] = {caps.subgroup_size, draw_workgroup(op->n, &caps)};
    int rc = exec_kernel(x, &op->gpu.largest, "sample_largest", sizeof(struct sample_args), spec, 2, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.greedy, "sample_greedy", sizeof(struct sample_args), spec, 2, e);
    return rc < 0 ? rc : exec_kernel(x, &op->gpu.draw, "sample_draw", sizeof(struct sample_args), draw, 2, e);
}

void sample_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct sample *op = self;
    const struct sample_call *call = what;
    const struct sampler_rule *r = call->rule;
    uint32_t n_blocks = div_up(op->n, SAMPLE_BLOCK);
    uint64_t keys = call->scratch + (uint64_t)n_blocks * 4 * sizeof(uint32_t);
    const struct sample_args a = {.logits = call->logits,
                                  .blocked = call->blocked,
                                  .recent = call->recent,
                                  .last = call->last,
                                  .found = call->scratch,
                                  .keys = keys,
                                  .list = keys + op->n * sizeof(uint32_t),
                                  .id = call->id,
                                  .result = call->result,
                                  .n = op->n,
                                  .n_recent = call->n_recent,
                                  .penalises = r->repeat_last > 0,
                                  .penalty = r->penalty,
                                  .inverse_penalty = r->inverse_penalty,
                                  .scale = r->scale,
                                  .top_k = r->top_k,
                                  .top_p = r->top_p,
                                  .min_p = r->min_p,
                                  .random_low = (uint32_t)r->random,
                                  .random_high = (uint32_t)(r->random >> 32)};
    exec_dispatch(x, &op->gpu.largest, &a, n_blocks, 1, 1);
    exec_dispatch(x, r->scale == 0.0f ? &op->gpu.greedy : &op->gpu.draw, &a, 1, 1, 1);
}
