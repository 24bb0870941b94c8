#include "base/team.h"
#include "ops/embed.h"
#include "ops/loops.h"

struct job {
    const struct embed *op;
    const struct embed_call *call;
    const struct loops *loops;
};

static void embed_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t cols = j->op->weights.cols;
    (void)thread;
    const struct loops_part row = {host_words(j->call->ids)[t], 1, 0, cols};
    j->loops->widen(&j->op->weights, &row, host_floats_mut(j->call->dst) + (uint64_t)t * cols, cols);
}

int embed_cpu(const void *self, const void *what, struct host *h)
{
    const struct embed_call *call = what;
    struct job j = {self, call, loops_of(h)};
    team_for(h->team, call->n, embed_token, &j);
    return host_error(h);
}
