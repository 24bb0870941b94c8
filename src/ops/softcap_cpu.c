/* The native implementation of softcap.h. */
#include "base/mem.h"
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/softcap.h"

/* Numbers of a block, which one thread computes. */
enum { BLOCK = 8192 };

struct job {
    const struct softcap_call *call;
    const struct loops *loops;
    float cap;
};

static void softcap_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t from = block * BLOCK, n = (uint32_t)size_min(BLOCK, j->call->n - from);
    (void)thread;
    j->loops->softcap(host_floats_mut(j->call->x) + from, n, j->cap);
}

int softcap_cpu(const void *self, const void *what, struct host *h)
{
    const struct softcap_call *call = what;
    struct job j = {call, loops_of(h), ((const struct softcap *)self)->cap};
    team_for(h->team, div_up(call->n, BLOCK), softcap_block, &j);
    return host_error(h);
}
