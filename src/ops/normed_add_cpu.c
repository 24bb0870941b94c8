/* The native implementation of normed_add.h. */
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/normed_add.h"

struct job {
    const struct normed_add *op;
    const struct normed_add_call *call;
    const struct loops *loops;
    float *rooms; /* [cols], one a thread */
};

/* Returns a token's row; NULL: the array is absent. */
static const float *row_of(uint64_t array, uint64_t at)
{
    return array ? host_floats(array) + at : NULL;
}

static void normed_add_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct normed_add_call *c = j->call;
    uint32_t n = j->op->cols;
    uint64_t at = (uint64_t)t * n;
    const float *add = row_of(c->add, at), *base = row_of(c->base, at);
    float *z = j->rooms + (uint64_t)thread * n, *dst = host_floats_mut(c->dst) + at;
    j->loops->norm(host_floats(c->y) + at, host_floats(c->norm), n, j->op->eps, z);
    if (add)
        j->loops->add_scaled(z, add, 1, n);
    if (c->outer)
        j->loops->norm(z, host_floats(c->outer), n, j->op->eps, z);
    if (base)
        j->loops->add_scaled(z, base, 1, n);
    float factor = c->factor ? host_floats(c->factor)[0] : 1;
    for (uint32_t i = 0; i < n; i++)
        dst[i] = z[i] * factor;
}

int normed_add_cpu(const void *self, const void *what, struct host *h)
{
    const struct normed_add_call *call = what;
    struct job j = {self, call, loops_of(h), NULL};
    j.rooms = host_scratch(h, (uint64_t)team_n_threads(h->team) * j.op->cols, sizeof *j.rooms);
    if (j.rooms)
        team_for(h->team, call->n, normed_add_token, &j);
    return host_error(h);
}
