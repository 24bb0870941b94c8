/* The native implementation of embed.h. */
#include "cpu/team.h"
#include "cpu/isa.h"
#include "ops/embed/embed.h"
#include "ops/loops.h"

struct job {
    const struct embed_call *call;
    struct cpu_matrix w;
    float factor;
    const struct cpu_isa *isa;
};

static void embed_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t cols = j->w.cols;
    (void)thread;
    float *to = host_floats_mut(j->call->dst) + (uint64_t)t * cols;
    j->isa->widen(&j->w, host_words(j->call->ids)[t], 0, cols, to);
    for (uint32_t c = 0; j->factor != 1 && c < cols; c++)
        to[c] *= j->factor;
}

int embed_cpu(const void *self, const void *what, struct host *h)
{
    const struct embed *op = self;
    const struct embed_call *call = what;
    struct job j = {call, loops_matrix(&op->weights), op->factor, h->isa};
    team_for(h->team, call->n, embed_token, &j);
    return host_error(h);
}
