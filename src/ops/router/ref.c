/* The reference implementation of router.h. */
#include <math.h>
#include <stddef.h>

#include "args.h"
#include "ops/ref.h"
#include "ops/router/router.h"

static bool was_chosen(const uint32_t *idx, uint32_t k, uint32_t expert)
{
    for (uint32_t i = 0; i < k; i++)
        if (idx[i] == expert)
            return true;
    return false;
}

/* Returns the best expert that is not among the first k of idx, the first on a tie. */
static uint32_t best_left(const float *scores, uint32_t n_experts, const uint32_t *idx, uint32_t k)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < n_experts; i++)
        if (!was_chosen(idx, k, i) && (best == UINT32_MAX || scores[i] > scores[best]))
            best = i;
    return best;
}

/* Takes the greatest of w[n] until they sum to the share, and moves them to the front. Returns how many they
 * are. */
static uint32_t ref_keep_share(const struct router_shape *shape, double *w, uint32_t *idx, bool *stays)
{
    uint32_t n = shape->top_k, n_taken = 0, at = 0;
    double total = 0, taken = 0;
    for (uint32_t k = 0; k < n; k++) {
        stays[k] = false;
        total += w[k];
    }
    do {
        uint32_t best = UINT32_MAX;
        for (uint32_t k = 0; k < n; k++)
            if (!stays[k] && (best == UINT32_MAX || w[k] > w[best]))
                best = k;
        stays[best] = true;
        taken += w[best];
    } while (++n_taken < n && taken < (double)shape->share * total);
    for (uint32_t k = 0; k < n; k++)
        if (stays[k]) {
            idx[at] = idx[k];
            w[at++] = w[k];
        }
    for (; at < n; at++) {
        idx[at] = NO_EXPERT;
        w[at] = 0;
    }
    return n_taken;
}

/* A token's scratch: top_k entries each. */
struct ref_room {
    double *w;
    bool *stays;
};

static void ref_softmax_token(const struct router_shape *shape, const float *factors, const float *logits,
                              const struct ref_room *room, uint32_t *idx, float *weights)
{
    double sum = 0, *w = room->w;
    for (uint32_t k = 0; k < shape->top_k; k++) {
        idx[k] = best_left(logits, shape->n_experts, idx, k);
        w[k] = exp((double)logits[idx[k]] - (double)logits[idx[0]]);
    }
    uint32_t first = idx[0], n = shape->share > 0 ? ref_keep_share(shape, w, idx, room->stays) : shape->top_k;
    for (uint32_t k = 0; k < n; k++)
        sum += w[k];
    if (!shape->norm) {
        sum = 0;
        for (uint32_t i = 0; i < shape->n_experts; i++)
            sum += exp((double)logits[i] - (double)logits[first]);
    }
    for (uint32_t k = 0; k < shape->top_k; k++)
        weights[k] = (float)(w[k] / sum * (factors && k < n ? (double)factors[idx[k]] : 1));
}

/* Sets s, the score of each expert, and t, which the choice goes by, in float32 as the models were
 * trained. */
static void ref_scores(const struct router_shape *shape, const float *bias, const float *logits, float *s,
                       float *t)
{
    for (uint32_t i = 0; i < shape->n_experts; i++) {
        double x = (double)logits[i];
        s[i] = (float)(shape->softplus ? sqrt(ref_softplus(x)) : ref_sigmoid(x));
        t[i] = bias ? s[i] + bias[i] : s[i];
    }
}

/* Sets t of all experts but those in the token's row of a table to -inf. */
static void ref_keep_row(const struct router_shape *shape, const uint32_t *row, const float *s, float *t)
{
    for (uint32_t i = 0; i < shape->n_experts; i++)
        t[i] = -INFINITY;
    for (uint32_t i = 0; i < shape->row; i++)
        t[row[i]] = s[row[i]];
}

static float ref_group_score(const float *t, uint32_t size)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < size; i++) {
        second = fmaxf(second, fminf(best, t[i]));
        best = fmaxf(best, t[i]);
    }
    return size == 1 ? best : best + second;
}

/* Sets t of the experts of all but the best groups to -inf. */
static void ref_drop_groups(const struct router_shape *shape, float *t, float *scores)
{
    uint32_t size = shape->n_experts / shape->n_groups, n_dropped = shape->n_groups - shape->keep_groups;
    for (uint32_t g = 0; g < shape->n_groups; g++)
        scores[g] = ref_group_score(t + (uint64_t)g * size, size);
    for (uint32_t i = 0; i < n_dropped; i++) {
        uint32_t worst = UINT32_MAX;
        for (uint32_t g = 0; g < shape->n_groups; g++)
            if (!isnan(scores[g]) && (worst == UINT32_MAX || scores[g] <= scores[worst]))
                worst = g;
        if (worst == UINT32_MAX)
            return;
        scores[worst] = NAN;
        for (uint32_t j = 0; j < size; j++)
            t[(uint64_t)worst * size + j] = -INFINITY;
    }
}

static void ref_sigmoid_token(const struct router_shape *shape, const float *s, const float *t,
                              const struct ref_room *room, uint32_t *idx, float *weights)
{
    double sum = 1e-20, *w = room->w;
    for (uint32_t k = 0; k < shape->top_k; k++) {
        idx[k] = best_left(t, shape->n_experts, idx, k);
        w[k] = (double)s[idx[k]];
    }
    uint32_t n = shape->share > 0 ? ref_keep_share(shape, w, idx, room->stays) : shape->top_k;
    for (uint32_t k = 0; k < n; k++)
        sum += w[k];
    for (uint32_t k = 0; k < shape->top_k; k++)
        weights[k] = (float)(w[k] / (shape->norm ? sum : 1) * (double)shape->scale);
}

static void ref_spread_nan(const struct router_shape *shape, const float *logits, float *weights)
{
    for (uint32_t i = 0; i < shape->n_experts; i++)
        if (isnan(logits[i]))
            for (uint32_t k = 0; k < shape->top_k; k++)
                weights[k] = NAN;
}

int router_ref(const void *self, const void *what, struct host *h)
{
    const struct router *op = self;
    const struct router_call *call = what;
    const struct router_shape *shape = &op->shape;
    float *s = host_scratch(h, 3 * (uint64_t)shape->n_experts, sizeof *s);
    const struct ref_room room = {host_scratch(h, shape->top_k, sizeof *room.w),
                                  host_scratch(h, shape->top_k, sizeof *room.stays)};
    for (uint32_t i = 0; s && room.w && room.stays && i < call->n; i++) {
        const float *logits = host_floats(call->logits) + (uint64_t)i * call->stride;
        uint32_t *idx = (uint32_t *)host_at(call->idx) + (uint64_t)i * shape->top_k;
        float *weights = host_floats_mut(call->weights) + (uint64_t)i * shape->top_k,
              *t = s + shape->n_experts;
        if (!shape->sigmoid) {
            ref_softmax_token(shape, call->factors ? host_floats(call->factors) : NULL, logits, &room, idx,
                              weights);
        } else {
            ref_scores(shape, call->table ? NULL : host_floats(call->bias), logits, s, t);
            ref_drop_groups(shape, t, t + shape->n_experts);
            if (call->table)
                ref_keep_row(shape, router_row(shape, call, i), s, t);
            ref_sigmoid_token(shape, s, t, &room, idx, weights);
        }
        ref_spread_nan(shape, logits, weights);
    }
    return host_error(h);
}
