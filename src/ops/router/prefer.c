#include "ops/router/prefer.h"

#include <math.h>

#include "base/real.h"
#include "ops/router/router.h"

#define NO_CANDIDATE UINT32_MAX

static float score(const struct router_shape *s, float logit)
{
    return (float)router_score(s, (double)logit);
}

/* ---- scores ---- */

/* Returns whether fewer than keep_groups groups are better than group g. */
static bool is_kept(const struct router_shape *s, const float *groups, uint32_t g)
{
    uint32_t n_before = 0;
    for (uint32_t i = 0; i < s->n_groups; i++)
        n_before += i < g ? groups[i] >= groups[g] : groups[i] > groups[g];
    return n_before < s->keep_groups;
}

/* Gives experts of dropped groups a NaN, which loses every comparison. */
static void drop_groups(const struct router_shape *s, float *t, float *groups)
{
    uint32_t size = s->n_experts / s->n_groups;
    for (uint32_t g = 0; g < s->n_groups; g++)
        groups[g] = router_group_score(t + (uint64_t)g * size, size);
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (uint32_t i = 0; i < size && !is_kept(s, groups, g); i++)
            t[(uint64_t)g * size + i] = NAN;
}

static const float *scores_of(const struct router_shape *s, const struct router_prefer_call *call)
{
    if (!s->sigmoid)
        return call->logits;
    for (uint32_t i = 0; i < s->n_experts; i++)
        call->room[i] = score(s, call->logits[i]) + call->bias[i];
    if (s->n_groups > 1)
        drop_groups(s, call->room, call->room + s->n_experts);
    return call->room;
}

/* ---- the choice ---- */

static bool has(const uint32_t *idx, uint32_t n, uint32_t expert)
{
    for (uint32_t k = 0; k < n; k++)
        if (idx[k] == expert)
            return true;
    return false;
}

/* Returns the best resident expert that was not chosen, the first on a tie. */
static uint32_t best_present(const struct router_shape *s, const struct router_prefer_call *call,
                             const float *scores, const uint32_t *idx, uint32_t n)
{
    uint32_t best = NO_CANDIDATE;
    for (uint32_t i = 0; i < s->n_experts; i++) {
        bool is_better = best == NO_CANDIDATE ? !isnan(scores[i]) : scores[i] > scores[best];
        if (call->is_present[i] && is_better && !has(idx, n, i))
            best = i;
    }
    return best;
}

static bool comes_before(const float *scores, uint32_t a, uint32_t b)
{
    return a < b ? scores[a] >= scores[b] : scores[a] > scores[b];
}

/* Replaces idx[k] by `expert` and keeps the order of the scores. */
static void replace(const float *scores, uint32_t *idx, uint32_t n, uint32_t k, uint32_t expert)
{
    for (; k + 1 < n && comes_before(scores, idx[k + 1], expert); k++)
        idx[k] = idx[k + 1];
    for (; k > 0 && comes_before(scores, expert, idx[k - 1]); k--)
        idx[k] = idx[k - 1];
    idx[k] = expert;
}

/* Returns the place of the worst chosen expert, from place `first` on, that is not resident; n: none. */
static uint32_t worst_absent(const struct router_prefer_call *call, uint32_t first, uint32_t n,
                             const uint32_t *idx)
{
    for (uint32_t k = n; k-- > first;)
        if (!call->is_present[idx[k]])
            return k;
    return n;
}

static uint32_t choose(const struct router_shape *s, const struct router_prefer_call *call, uint32_t first,
                       uint32_t n, uint32_t *idx)
{
    const float *scores = scores_of(s, call);
    uint32_t n_gone = 0;
    for (uint32_t k; (k = worst_absent(call, first, n, idx)) < n; n_gone++) {
        uint32_t other = best_present(s, call, scores, idx, n);
        if (other == NO_CANDIDATE || !((double)scores[other] + (double)call->margin > (double)scores[idx[k]]))
            break;
        replace(scores, idx, n, k, other);
    }
    return n_gone;
}

/* ---- weights, as in router.h ---- */

static void weigh_softmax(const struct router_shape *s, const float *logits, uint32_t n, const uint32_t *idx,
                          float *weights)
{
    double sum = 0, top = (double)logits[idx[0]];
    for (uint32_t k = 0; s->norm && k < n; k++)
        sum += real_exp((double)logits[idx[k]] - top);
    for (uint32_t i = 0; !s->norm && i < s->n_experts; i++)
        sum += real_exp((double)logits[i] - top);
    for (uint32_t k = 0; k < n; k++)
        weights[k] = (float)(real_exp((double)logits[idx[k]] - top) / sum);
}

static void weigh_sigmoid(const struct router_shape *s, const float *logits, uint32_t n, const uint32_t *idx,
                          float *weights)
{
    double sum = 1e-20;
    for (uint32_t k = 0; k < n; k++)
        sum += (double)score(s, logits[idx[k]]);
    for (uint32_t k = 0; k < n; k++)
        weights[k] = (float)((double)score(s, logits[idx[k]]) / (s->norm ? sum : 1) * (double)s->scale);
}

uint32_t router_prefer(const struct router_shape *shape, const struct router_prefer_call *call, uint32_t n,
                       uint32_t *idx, float *weights)
{
    uint32_t first = n < 4 ? 1 : 2; /* those before always stay */
    for (uint32_t k = 0; k < n; k++)
        if (isnan(weights[k]))
            return 0;
    if (worst_absent(call, first, n, idx) == n)
        return 0;
    uint32_t n_gone = choose(shape, call, first, n, idx);
    if (n_gone > 0)
        (shape->sigmoid ? weigh_sigmoid : weigh_softmax)(shape, call->logits, n, idx, weights);
    for (uint32_t k = 0; n_gone > 0 && call->factors && k < n; k++)
        weights[k] *= call->factors[idx[k]];
    return n_gone;
}
