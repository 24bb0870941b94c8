/* The native implementation of swiglu.h. */
#include "args.h"
#include "cpu/team.h"
#include "ops/experts/experts.h"
#include "ops/loops.h"
#include "ops/swiglu.h"

struct job {
    const struct swiglu_call *call;
    const struct loops *loops;
    float limit;
};

static void swiglu_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t inner = j->call->inner;
    const float *gate = host_floats(j->call->src) + 2 * (uint64_t)t * inner;
    float *dst = host_floats_mut(j->call->dst) + (uint64_t)t * inner;
    (void)thread;
    if (j->limit > 0 && j->limit < LIMIT_GELU)
        j->loops->swiglu_limited(gate, gate + inner, inner, (float)EXPERTS_ALPHA, j->limit, dst);
    else
        (j->limit > 0 ? j->loops->geglu : j->loops->swiglu)(gate, gate + inner, inner, dst);
}

int swiglu_cpu(const void *self, const void *what, struct host *h)
{
    const struct swiglu_call *call = what;
    struct job j = {call, loops_of(h), ((const struct swiglu *)self)->limit};
    team_for(h->team, call->n, swiglu_token, &j);
    return host_error(h);
}
