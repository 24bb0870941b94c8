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

/* Opens a kernel for one sequence, and the same for several. */
static int open_both(struct exec *x, struct kernel *one, struct kernel *each, const char *name,
                     const char *each_name, const uint32_t spec[2], struct moeflux_err *e)
{
    int rc = exec_kernel(x, one, name, sizeof(struct sample_args), spec, 2, e);
    return rc < 0 ? rc : exec_kernel_later(x, each, each_name, sizeof(struct each_args), spec, 2, e);
}

int sample_vulkan_open(struct sample *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t spec[] = {caps.subgroup_size, (uint32_t)size_min(WORKGROUP, caps.max_workgroup)};
    const uint32_t draw[] = {caps.subgroup_size, draw_workgroup(op->n, &caps)};
    int rc = open_both(x, &op->gpu.largest, &op->gpu.largest_each, "sample_largest", "sample_largest_each",
                       spec, e);
    if (rc == 0)
        rc = open_both(x, &op->gpu.greedy, &op->gpu.greedy_each, "sample_greedy", "sample_greedy_each", spec,
                       e);
    return rc < 0
               ? rc
               : open_both(x, &op->gpu.draw, &op->gpu.draw_each, "sample_draw", "sample_draw_each", draw, e);
}

static struct sample_args args_of(const struct sample *op, const struct sample_call *call)
{
    const struct sampler_rule *r = call->rule;
    uint32_t n_blocks = div_up(op->n, SAMPLE_BLOCK);
    uint64_t keys = call->scratch + (uint64_t)n_blocks * 4 * sizeof(uint32_t);
    return (struct sample_args){.logits = call->logits,
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
}

static bool is_greedy(const struct sample_call *call)
{
    return call->rule->scale == 0.0f;
}

void sample_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct sample *op = self;
    const struct sample_call *call = what;
    const struct sample_args a = args_of(op, call);
    exec_dispatch(x, &op->gpu.largest, &a, div_up(op->n, SAMPLE_BLOCK), 1, 1);
    exec_dispatch(x, is_greedy(call) ? &op->gpu.greedy : &op->gpu.draw, &a, 1, 1, 1);
}

void sample_vulkan_concurrent(const struct sample *op, struct exec *x, const struct sample_call *calls,
                              uint32_t n)
{
    struct sample_args all[SAMPLE_CONCURRENT] = {0}; /* greedy ones first */
    uint32_t n_greedy = 0, n_drawn = 0;
    for (uint32_t i = 0; i < n; i++)
        all[is_greedy(&calls[i]) ? n_greedy++ : n - ++n_drawn] = args_of(op, &calls[i]);
    exec_dispatch_each(x, &op->gpu.largest_each, all, sizeof *all, n, div_up(op->n, SAMPLE_BLOCK), 1);
    if (n_greedy > 0)
        exec_dispatch_each(x, &op->gpu.greedy_each, all, sizeof *all, n_greedy, 1, 1);
    if (n_greedy > 0 && n_drawn > 0)
        exec_concurrent(x);
    if (n_drawn > 0)
        exec_dispatch_each(x, &op->gpu.draw_each, all + n_greedy, sizeof *all, n_drawn, 1, 1);
}
