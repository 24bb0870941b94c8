/* The native implementation of swiglu.h. */
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/swiglu.h"

struct job {
    const struct swiglu_call *call;
    const struct swiglu_shape *shape;
    const struct loops *loops;
};

static void swiglu_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t inner = j->call->inner;
    const float *gate = host_floats(j->call->src) + 2 * (uint64_t)t * inner;
    float *dst = host_floats_mut(j->call->dst) + (uint64_t)t * inner;
    (void)thread;
    if (j->shape->clamp > 0)
        j->loops->swiglu_clamped(gate, gate + inner, inner, j->shape->clamp, j->shape->clamps_gates, dst);
    else
        (j->shape->gelu ? j->loops->geglu : j->loops->swiglu)(gate, gate + inner, inner, dst);
}

int swiglu_cpu(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    struct job j = {call, &((const struct swiglu *)self)->shape, loops_of(h)};
    team_for(h->team, call->n, swiglu_token, &j);
    return host_error(h);
}
