/* The native implementation of head_gate.h. */
#include "base/mem.h"
#include "cpu/team.h"
#include "ops/head_gate.h"
#include "ops/loops.h"

enum { GATES = 64 }; /* computed at a time */

struct job {
    const struct head_gate_call *call;
    const struct loops *loops;
};

static void gate_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct head_gate_call *c = j->call;
    const float *gates = host_floats(c->gate) + (uint64_t)t * c->stride;
    float *x = host_floats_mut(c->x) + (uint64_t)t * c->n_heads * c->dim;
    (void)thread;
    for (uint32_t first = 0; first < c->n_heads; first += GATES) {
        uint32_t n = (uint32_t)size_min(GATES, c->n_heads - first);
        float by[GATES];
        j->loops->sigmoid(gates + first, n, by);
        for (uint32_t h = 0; h < n; h++, x += c->dim)
            for (uint32_t i = 0; i < c->dim; i++)
                x[i] *= by[h];
    }
}

int head_gate_cpu(const void *self, const void *what, struct host *h)
{
    const struct head_gate_call *call = what;
    struct job j = {call, loops_of(h)};
    (void)self;
    team_for(h->team, call->n, gate_token, &j);
    return host_error(h);
}
