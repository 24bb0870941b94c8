/* The native implementation of swiglu.h. */
#include "cpu/team.h"
#include "ops/gating.h"
#include "ops/loops.h"
#include "ops/swiglu.h"

struct job {
    const struct swiglu_call *call;
    const struct loops *loops;
    float gating;
};

static void swiglu_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t inner = j->call->inner, up_at = gating_has_gate(j->gating) ? inner : 0;
    const float *gate = host_floats(j->call->src) + (uint64_t)t * (inner + up_at);
    float *dst = host_floats_mut(j->call->dst) + (uint64_t)t * inner;
    (void)thread;
    gating_run(j->loops, j->gating, gate, gate + up_at, inner, dst);
}

int swiglu_cpu(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    struct job j = {call, loops_of(h), ((const struct swiglu *)self)->gating};
    team_for(h->team, call->n, swiglu_token, &j);
    return host_error(h);
}
