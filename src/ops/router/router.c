#include "ops/router/router.h"

#include <math.h>

#include "base/err.h"
#include "base/real.h"
#include "exec/host.h"

static const struct op router_op = {
    .name = "router", .vulkan = router_vulkan, .cpu = router_cpu, .reference = router_ref};

static int check(const struct router_shape *s, struct moeflux_err *e)
{
    if (s->top_k == 0 || s->top_k > s->n_experts)
        return err_set(e, ERR_UNSUPPORTED, "router: %u of %u experts a token", s->top_k, s->n_experts);
    if (!(s->share >= 0 && s->share < 1))
        return err_set(e, ERR_UNSUPPORTED, "router: a share of %g, expected at least 0 and less than 1",
                       (double)s->share);
    if (s->row > 0 && (!s->sigmoid || s->n_groups != 1 || s->row < s->top_k || s->row > s->n_experts))
        return err_set(e, ERR_UNSUPPORTED, "router: a table of %u experts a token, %u groups of %u experts",
                       s->row, s->n_groups, s->n_experts);
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
    return rc < 0 || exec_get_caps(x).is_host ? rc : router_vulkan_open(op, x, e);
}

void router_run(const struct router *op, struct exec *x, const struct router_call *call)
{
    exec_op(x, &router_op, op, call);
}

const uint32_t *router_row(const struct router_shape *s, const struct router_call *call, uint32_t i)
{
    return host_words(call->table) + (uint64_t)host_words(call->ids)[i] * s->row;
}

double router_score(const struct router_shape *s, double logit)
{
    if (!s->softplus)
        return 1 / (1 + real_exp(-logit));
    double e = real_exp(-fabs(logit));
    return sqrt(fmax(logit, 0) + (e < 1e-8 ? e : real_log(1 + e)));
}

float router_group_score(const float *t, uint32_t size)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < size; i++) {
        second = fmaxf(second, fminf(best, t[i]));
        best = fmaxf(best, t[i]);
    }
    return size == 1 ? best : best + second;
}
