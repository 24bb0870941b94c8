/* The native implementation of router.h. */
#include <math.h>
#include <string.h>

#include "args.h"
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/router/router.h"

struct job {
    const struct router_shape *shape;
    const struct router_call *call;
    const struct loops *loops;
    float *room; /* [3 n_experts] for each thread */
};

/* Finds the k best of n, best first, the first on a tie. */
static void choose(const float *scores, uint32_t n, uint32_t k, uint32_t *idx)
{
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_held == k && !(scores[i] > scores[idx[k - 1]]))
            continue;
        uint32_t at = n_held < k ? n_held++ : k - 1;
        for (; at > 0 && scores[i] > scores[idx[at - 1]]; at--)
            idx[at] = idx[at - 1];
        idx[at] = i;
    }
}

/* Returns the sum of those of w[n] that stay in preference to w[k]. */
static float sum_before(const float *w, uint32_t n, uint32_t k)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        float other = w[i];
        if (other > w[k] || (other == w[k] && i < k))
            sum += other;
    }
    return sum;
}

/* Leaves out what the share of the sum does not need. room: [n_experts]. Returns how many stay. */
static uint32_t keep_share(const struct router_shape *s, float *room, uint32_t *idx, float *w)
{
    uint32_t n = s->top_k, n_stay = 0;
    float total = 0;
    if (s->share <= 0)
        return n;
    for (uint32_t k = 0; k < n; k++)
        total += w[k];
    for (uint32_t k = 0; k < n; k++)
        room[k] = sum_before(w, n, k);
    for (uint32_t k = 0; k < n; k++) {
        if (room[k] > 0 && room[k] >= s->share * total)
            continue;
        idx[n_stay] = idx[k];
        w[n_stay++] = w[k];
    }
    for (uint32_t k = n_stay; k < n; k++) {
        idx[k] = NO_EXPERT;
        w[k] = 0;
    }
    return n_stay;
}

static void softmax_token(const struct job *j, const float *logits, float *room, uint32_t *idx,
                          float *weights)
{
    const struct router_shape *s = j->shape;
    float sum = 0;
    choose(logits, s->n_experts, s->top_k, idx);
    for (uint32_t k = 0; k < s->top_k; k++)
        weights[k] = logits[idx[k]];
    float top = weights[0];
    j->loops->exp_below(weights, s->top_k, top, weights);
    uint32_t n = keep_share(s, room, idx, weights);
    if (s->norm) {
        for (uint32_t k = 0; k < n; k++)
            sum += weights[k];
    } else {
        j->loops->exp_below(logits, s->n_experts, top, room);
        for (uint32_t i = 0; i < s->n_experts; i++)
            sum += room[i];
    }
    for (uint32_t k = 0; k < s->top_k; k++)
        weights[k] /= sum;
    for (uint32_t k = 0; j->call->factors && k < n; k++)
        weights[k] *= host_floats(j->call->factors)[idx[k]];
}

/* Sets t of the experts of all but the best groups to -INFINITY; on a tie the last groups are dropped. */
static void drop_groups(const struct router_shape *s, float *t, float *scores)
{
    uint32_t size = s->n_experts / s->n_groups;
    for (uint32_t g = 0; g < s->n_groups; g++)
        scores[g] = router_group_score(t + (uint64_t)g * size, size);
    for (uint32_t i = s->keep_groups; i < s->n_groups; i++) {
        uint32_t worst = UINT32_MAX;
        for (uint32_t g = 0; g < s->n_groups; g++)
            if (!isnan(scores[g]) && (worst == UINT32_MAX || scores[g] <= scores[worst]))
                worst = g;
        if (worst == UINT32_MAX)
            return;
        scores[worst] = NAN;
        for (uint32_t k = 0; k < size; k++)
            t[(uint64_t)worst * size + k] = -INFINITY;
    }
}

static void add_bias(const struct router_shape *shape, const float *bias, const float *s, float *t)
{
    for (uint32_t i = 0; i < shape->n_experts; i++)
        t[i] = s[i] + bias[i];
    drop_groups(shape, t, t + shape->n_experts);
}

/* Sets t to the scores of a table's row, and of all other experts to -INFINITY. */
static void keep_row(const struct router_shape *shape, const uint32_t *row, const float *s, float *t)
{
    for (uint32_t i = 0; i < shape->n_experts; i++)
        t[i] = -INFINITY;
    for (uint32_t i = 0; i < shape->row; i++)
        t[row[i]] = s[row[i]];
}

/* row: the token's row of a table; NULL: there is none. */
static void sigmoid_token(const struct job *j, const float *logits, const uint32_t *row, float *room,
                          uint32_t *idx, float *weights)
{
    const struct router_shape *shape = j->shape;
    float *s = room, *t = room + shape->n_experts, sum = 0;
    (shape->softplus ? j->loops->root_softplus : j->loops->sigmoid)(logits, shape->n_experts, s);
    if (row)
        keep_row(shape, row, s, t);
    else
        add_bias(shape, host_floats(j->call->bias), s, t);
    choose(t, shape->n_experts, shape->top_k, idx);
    for (uint32_t k = 0; k < shape->top_k; k++)
        weights[k] = s[idx[k]];
    uint32_t n = keep_share(shape, t, idx, weights);
    for (uint32_t k = 0; k < n; k++)
        sum += weights[k];
    sum += 1e-20f;
    for (uint32_t k = 0; k < shape->top_k; k++)
        weights[k] = weights[k] / (shape->norm ? sum : 1) * shape->scale;
}

static void spread_nan(const struct router_shape *s, const float *logits, float *weights)
{
    for (uint32_t i = 0; i < s->n_experts; i++)
        if (isnan(logits[i]))
            for (uint32_t k = 0; k < s->top_k; k++)
                weights[k] = NAN;
}

static void route_token(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct router_shape *s = j->shape;
    const float *logits = host_floats(j->call->logits) + (uint64_t)i * j->call->stride;
    uint32_t *idx = (uint32_t *)host_at(j->call->idx) + (uint64_t)i * s->top_k;
    float *weights = host_floats_mut(j->call->weights) + (uint64_t)i * s->top_k;
    float *room = j->room + 3 * (uint64_t)thread * s->n_experts;
    if (s->sigmoid)
        sigmoid_token(j, logits, j->call->table ? router_row(s, j->call, i) : NULL, room, idx, weights);
    else
        softmax_token(j, logits, room, idx, weights);
    spread_nan(s, logits, weights);
}

int router_cpu(const void *self, const void *what, struct host *h)
{
    const struct router_shape *s = &((const struct router *)self)->shape;
    const struct router_call *call = what;
    struct job j = {s, call, loops_of(h), NULL};
    j.room = host_scratch(h, 3 * (uint64_t)team_n_threads(h->team) * s->n_experts, sizeof *j.room);
    if (j.room)
        team_for(h->team, call->n, route_token, &j);
    return host_error(h);
}
