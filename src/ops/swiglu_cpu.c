/* The native implementation of swiglu.h. */
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/swiglu.h"

struct job {
    const struct swiglu_call *call;
    void (*act)(const float *gate, const float *up, uint32_t n, float *out);
};

static void swiglu_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t inner = j->call->inner;
    const float *gate = host_floats(j->call->src) + 2 * (uint64_t)t * inner;
    (void)thread;
    j->act(gate, gate + inner, inner, host_floats_mut(j->call->dst) + (uint64_t)t * inner);
}

int swiglu_cpu(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    const struct loops *loops = loops_of(h);
    struct job j = {call, ((const struct swiglu *)self)->gelu ? loops->geglu : loops->swiglu};
    team_for(h->team, call->n, swiglu_token, &j);
    return host_error(h);
}
