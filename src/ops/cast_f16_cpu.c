/* The native implementation of cast_f16.h. */
#include "cpu/team.h"
#include "ops/cast_f16.h"
#include "ops/loops.h"

struct job {
    const struct cast_f16_call *call;
    const struct loops *loops;
    float *rows; /* one row a thread */
};

static void cast_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct cast_f16_call *c = j->call;
    float *row = j->rows + (uint64_t)thread * c->cols;
    j->loops->norm(host_floats(c->x) + (uint64_t)t * c->x_stride, c->norm ? host_floats(c->norm) : NULL,
                   c->cols, c->eps, row);
    uint16_t *dst = (uint16_t *)host_at(c->dst) + (uint64_t)t * c->cols;
    if (!c->is_blocked)
        j->loops->store_f16(row, c->cols, dst);
    for (uint32_t i = 0; c->is_blocked && i < c->cols; i += 8) {
        uint16_t eight[8];
        j->loops->store_f16(row + i, 8, eight);
        for (uint32_t k = 0; k < 8; k++)
            dst[cast_f16_place(i + k)] = eight[k];
    }
}

int cast_f16_cpu(const void *self, const void *what, struct host *h)
{
    const struct cast_f16_call *call = what;
    struct job j = {call, loops_of(h), NULL};
    (void)self;
    j.rows = host_scratch(h, (uint64_t)team_n_threads(h->team) * call->cols, sizeof *j.rows);
    if (j.rows)
        team_for(h->team, call->n, cast_token, &j);
    return host_error(h);
}
