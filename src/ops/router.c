#include "ops/router.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/matvec.h"

static bool was_chosen(const uint32_t *idx, uint32_t k, uint32_t expert)
{
    for (uint32_t i = 0; i < k; i++)
        if (idx[i] == expert)
            return true;
    return false;
}

/* The best expert besides the first k of idx; of equals the first. */
static uint32_t best_left(const float *scores, uint32_t n_experts, const uint32_t *idx, uint32_t k)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < n_experts; i++)
        if (!was_chosen(idx, k, i) && (best == UINT32_MAX || scores[i] > scores[best]))
            best = i;
    return best;
}

static void ref_token(const struct router_args *a, const float *logits, uint32_t *idx, float *weights)
{
    double sum = 0;
    for (uint32_t k = 0; k < a->top_k; k++) {
        uint32_t best = best_left(logits, a->n_experts, idx, k);
        idx[k] = best;
        sum += exp((double)logits[best] - (double)logits[idx[0]]);
    }
    if (!a->norm) {
        sum = 0;
        for (uint32_t i = 0; i < a->n_experts; i++)
            sum += exp((double)logits[i] - (double)logits[idx[0]]);
    }
    for (uint32_t k = 0; k < a->top_k; k++)
        weights[k] = (float)(exp((double)logits[idx[k]] - (double)logits[idx[0]]) / sum);
}

static void router_ref(const void *args)
{
    const struct router_args *a = args;
    for (uint32_t t = 0; t < a->n; t++)
        ref_token(a, ref_floats(a->logits) + (uint64_t)t * a->stride,
                  (uint32_t *)(uintptr_t)a->idx + (uint64_t)t * a->top_k,
                  ref_floats_mut(a->weights) + (uint64_t)t * a->top_k);
}

/* The score of each expert and t, which the choice goes by, in float32 as the models were trained. */
static void ref_scores(const struct router_groups_args *a, const float *logits, float *s, float *t)
{
    for (uint32_t i = 0; i < a->n_experts; i++) {
        s[i] = (float)ref_sigmoid((double)logits[i]);
        t[i] = s[i] + ref_floats(a->bias)[i];
    }
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
static void ref_drop_groups(const struct router_groups_args *a, float *t, float *scores)
{
    uint32_t size = a->n_experts / a->n_groups, n_dropped = a->n_groups - a->keep_groups;
    for (uint32_t g = 0; g < a->n_groups; g++)
        scores[g] = ref_group_score(t + (uint64_t)g * size, size);
    for (uint32_t i = 0; i < n_dropped; i++) {
        uint32_t worst = UINT32_MAX;
        for (uint32_t g = 0; g < a->n_groups; g++)
            if (!isnan(scores[g]) && (worst == UINT32_MAX || scores[g] <= scores[worst]))
                worst = g;
        if (worst == UINT32_MAX)
            return;
        scores[worst] = NAN;
        for (uint32_t j = 0; j < size; j++)
            t[(uint64_t)worst * size + j] = -INFINITY;
    }
}

static void ref_groups_token(const struct router_groups_args *a, const float *s, const float *t,
                             uint32_t *idx, float *weights)
{
    double sum = 1e-20;
    for (uint32_t k = 0; k < a->top_k; k++) {
        uint32_t best = best_left(t, a->n_experts, idx, k);
        idx[k] = best;
        sum += (double)s[best];
    }
    for (uint32_t k = 0; k < a->top_k; k++)
        weights[k] = (float)((double)s[idx[k]] / (a->norm ? sum : 1) * (double)a->scale);
}

static void groups_ref(const void *args)
{
    const struct router_groups_args *a = args;
    float *s = calloc(3 * (size_t)a->n_experts, sizeof *s), *t = s + a->n_experts;
    for (uint32_t i = 0; s && i < a->n; i++) {
        ref_scores(a, ref_floats(a->logits) + (uint64_t)i * a->stride, s, t);
        ref_drop_groups(a, t, t + a->n_experts);
        ref_groups_token(a, s, t, (uint32_t *)(uintptr_t)a->idx + (uint64_t)i * a->top_k,
                         ref_floats_mut(a->weights) + (uint64_t)i * a->top_k);
    }
    free(s);
}

static int check(const struct router_shape *s, struct moeflux_err *e)
{
    if (s->top_k == 0 || s->top_k > s->n_experts)
        return err_set(e, ERR_UNSUPPORTED, "router: %u of %u experts a token", s->top_k, s->n_experts);
    if (!s->sigmoid)
        return 0;
    if (s->n_groups == 0 || s->n_experts % s->n_groups || s->keep_groups == 0 || s->keep_groups > s->n_groups)
        return err_set(e, ERR_UNSUPPORTED, "router: %u of %u groups of %u experts", s->keep_groups,
                       s->n_groups, s->n_experts);
    if (s->top_k > s->n_experts / s->n_groups * s->keep_groups)
        return err_set(e, ERR_UNSUPPORTED, "router: %u experts a token out of %u groups of %u", s->top_k,
                       s->keep_groups, s->n_experts / s->n_groups);
    return 0;
}

int router_open(struct router *op, struct exec *x, const struct router_shape *s, struct moeflux_err *e)
{
    *op = (struct router){.shape = *s};
    int rc = check(s, e);
    if (rc < 0)
        return rc;
    uint32_t subgroup = exec_get_caps(x).subgroup_size;
    const uint32_t spec[] = {subgroup, div_up(s->n_experts, subgroup), div_up(s->top_k, subgroup),
                             s->n_groups};
    return s->sigmoid
               ? exec_kernel(x, &op->kernel, "router_groups", groups_ref, sizeof(struct router_groups_args),
                             spec, 4, e)
               : exec_kernel(x, &op->kernel, "router", router_ref, sizeof(struct router_args), spec, 3, e);
}

static void run_groups(const struct router *op, struct exec *x, const struct router_call *call)
{
    const struct router_groups_args a = {.logits = call->logits,
                                         .bias = call->bias,
                                         .idx = call->idx,
                                         .weights = call->weights,
                                         .n = call->n,
                                         .stride = call->stride,
                                         .n_experts = op->shape.n_experts,
                                         .top_k = op->shape.top_k,
                                         .n_groups = op->shape.n_groups,
                                         .keep_groups = op->shape.keep_groups,
                                         .norm = op->shape.norm,
                                         .scale = op->shape.scale};
    exec_run(x, &op->kernel, &a, call->n, 1, 1);
}

void router_run(const struct router *op, struct exec *x, const struct router_call *call)
{
    if (op->shape.sigmoid) {
        run_groups(op, x, call);
        return;
    }
    const struct router_args a = {.logits = call->logits,
                                  .idx = call->idx,
                                  .weights = call->weights,
                                  .n = call->n,
                                  .stride = call->stride,
                                  .n_experts = op->shape.n_experts,
                                  .top_k = op->shape.top_k,
                                  .norm = op->shape.norm};
    exec_run(x, &op->kernel, &a, call->n, 1, 1);
}
