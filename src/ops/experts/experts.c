#include "ops/experts/experts.h"

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/gating.h"
#include "ops/loops.h"
#include "ops/router/router.h"

static const struct op up_op = {
    .name = "experts_up", .vulkan = experts_up_vulkan, .cpu = experts_up_cpu, .reference = experts_up_ref};
static const struct op down_op = {.name = "experts_down",
                                  .vulkan = experts_down_vulkan,
                                  .cpu = experts_down_cpu,
                                  .reference = experts_down_ref};

int experts_open(struct experts *op, struct exec *x, const struct experts_shape *s, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    *op = (struct experts){.shape = *s, .rounds_from = experts_rounds_from(&caps, s->n_experts)};
    const struct weights parts[] = {{.rows = s->inner, .cols = s->hidden, .format = s->gate_format},
                                    {.rows = s->inner, .cols = s->hidden, .format = s->up_format},
                                    {.rows = s->hidden, .cols = s->inner, .format = s->down_format}};
    bool are_uneven = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int rc = weights_check(&parts[i], "experts", e);
        if (rc < 0)
            return rc;
        are_uneven |= weights_are_uneven(&parts[i]);
    }
    if (are_uneven)
        return err_set(e, ERR_UNSUPPORTED, "experts: hidden %u and inner %u, expected multiples of %d",
                       s->hidden, s->inner, PRODUCT_COLS);
    if (experts_are_gateless(s) && (s->gate_w != s->up_w || s->gating != s->shared_gating || s->biased))
        return err_set(e, ERR_UNSUPPORTED,
                       "experts: no gates, expected one matrix, alike in the shared expert");
    if (s->biased && s->shared_inner)
        return err_set(e, ERR_UNSUPPORTED, "experts: biases, expected no shared expert");
    return caps.is_host ? 0 : experts_vulkan_open(op, x, e);
}

bool experts_are_gateless(const struct experts_shape *s)
{
    return !gating_has_gate(s->gating);
}

bool experts_are_mixed(const struct experts_shape *s)
{
    return s->gate_format != s->up_format;
}

struct experts_halves experts_halves(const struct experts_shape *s, bool up)
{
    const struct weights whole = {.weight = up ? s->up_w : s->gate_w,
                                  .scales = up ? s->up_s : s->gate_s,
                                  .biases = up ? s->up_b : s->gate_b,
                                  .rows = s->inner,
                                  .cols = s->hidden,
                                  .format = up ? s->up_format : s->gate_format};
    const struct weights second = weights_rows(&whole, s->inner / 2, s->inner / 2);
    return (struct experts_halves){whole.format,
                                   {(uint32_t)whole.weight, (uint32_t)second.weight},
                                   {(uint32_t)whole.scales, (uint32_t)second.scales},
                                   {(uint32_t)whole.biases, (uint32_t)second.biases}};
}

/* After the activations there is space for the experts' addresses. */
uint64_t experts_act_row(const struct experts_shape *s)
{
    return experts_act_floats(s, true) + size_round_up(2 * (uint64_t)s->top_k, 4);
}

uint64_t experts_act_floats(const struct experts_shape *s, bool has_shared)
{
    return (uint64_t)s->top_k * s->inner + (has_shared ? s->shared_inner : 0);
}

uint64_t experts_scratch(const struct experts_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t shared_inner)
{
    if (caps->is_host)
        return caps->is_native ? experts_cpu_scratch(s, n) : 0;
    return experts_grouped_scratch(s, n, shared_inner);
}

uint32_t experts_rounds_from(const struct exec_caps *caps, uint32_t n_experts)
{
    if (caps->is_host)
        return caps->is_native ? LOOPS_FEW + 1 : UINT32_MAX;
    return experts_grouped_from(caps, n_experts);
}

bool experts_takes_rounds(const struct experts *op, uint32_t chunk)
{
    return chunk >= op->rounds_from;
}

bool experts_makes_shared(const struct experts *op, uint32_t chunk)
{
    return op->shape.shared_inner > 0 && chunk < op->gpu.makes_shared_below;
}

int experts_shared_open(struct experts_shared *s, struct exec *x, const struct weights *gate,
                        const struct weights *up, struct moeflux_err *e)
{
    *s = (struct experts_shared){.gate = *gate, .up = *up};
    return exec_get_caps(x).is_host ? 0 : experts_shared_vulkan_open(s, x, e);
}

void experts_shared_close(struct experts_shared *s, struct exec *x)
{
    exec_buffer_free(x, &s->gpu);
}

void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    if (call->router && !experts_vulkan_chooses(op, call))
        router_run(call->router, x,
                   &(struct router_call){.logits = call->shared_in,
                                         .bias = call->router_bias,
                                         .factors = call->router_factors,
                                         .table = call->router_table,
                                         .ids = call->ids,
                                         .idx = call->idx,
                                         .weights = call->weights,
                                         .n = call->n,
                                         .stride = call->shared_stride});
    exec_op(x, &up_op, op, call);
}

void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    exec_op(x, &down_op, op, call);
}
