#include "ops/router.h"

#include <math.h>

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

static void ref_token(const struct router_args *a, const float *logits, uint32_t *idx, float *weights)
{
    double sum = 0;
    for (uint32_t k = 0; k < a->top_k; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < a->n_experts; i++)
            if (!was_chosen(idx, k, i) && (best == UINT32_MAX || logits[i] > logits[best]))
                best = i;
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

int router_open(struct router *op, struct exec *x, uint32_t n_experts, uint32_t top_k, bool norm,
                struct err *e)
{
    *op = (struct router){.n_experts = n_experts, .top_k = top_k, .norm = norm};
    if (top_k == 0 || top_k > n_experts)
        return err_set(e, ERR_UNSUPPORTED, "router: %u of %u experts a token", top_k, n_experts);
    uint32_t subgroup = exec_get_caps(x).subgroup_size;
    const uint32_t spec[] = {subgroup, div_up(n_experts, subgroup), div_up(top_k, subgroup)};
    return exec_kernel(x, &op->kernel, "router", router_ref, sizeof(struct router_args), spec, 3, e);
}

void router_run(const struct router *op, struct exec *x, const struct router_call *call)
{
    const struct router_args a = {.logits = call->logits,
                                  .idx = call->idx,
                                  .weights = call->weights,
                                  .n = call->n,
                                  .stride = call->stride,
                                  .n_experts = op->n_experts,
                                  .top_k = op->top_k,
                                  .norm = op->norm};
    exec_run(x, &op->kernel, &a, call->n, 1, 1);
}
