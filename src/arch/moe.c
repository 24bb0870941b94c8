#include "arch/moe.h"

#include <stdlib.h>

#include "arch/arch.h"
#include "arch/loader.h"
#include "arch/scratch.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/family.h"
#include "model/model_dir.h"
#include "model/part_tensors.h"

/* Returns the rows of a shared expert that is computed with the router and the routed experts; 0: there is
 * none, or routed experts read a latent (latent_experts.h). */
static uint32_t shared_rows(const struct config *c)
{
    return c->moe_latent ? 0 : c->shared_inner;
}

/* Whether a gate weights the shared expert. */
static bool has_shared_gate(const struct config *c)
{
    return shared_rows(c) && c->family->shared_gate;
}

/* Returns the matrices of the shared expert's first product: gate and up rows, or up alone. */
static uint32_t n_shared_in(const struct config *c)
{
    return shared_rows(c) ? 2u - c->gateless : 0;
}

/* Opens the products of `n` matrices: the router's, then the shared expert's gate if it has one, gate and up
 * rows. */
static int open_router(const struct config *c, struct exec *x, const struct weights *w, uint32_t n,
                       struct moe_layer *out, struct moeflux_err *e)
{
    int rc = linear_open(&out->router_in, x, w, n, e);
    if (rc == 0)
        rc = linear_open(&out->router_only, x, w, 1, e);
    if (rc < 0 || n == 1)
        return rc;
    rc = linear_open(&out->router_gate, x, w, 1 + has_shared_gate(c), e);
    if (rc == 0)
        rc = linear_open(&out->shared_in, x, w + 1, n - 1, e);
    return rc < 0 ? rc : experts_shared_open(&out->shared_up, x, &w[n - n_shared_in(c)], &w[n - 1], e);
}

/* Loads the rows once; several products use them. */
static int load_router(struct moe *m, struct loader *l, uint32_t layer, const struct part_tensor *t,
                       struct moe_layer *out, struct moeflux_err *e)
{
    const struct part_tensor rows[] = {t[EXPERTS_ROUTER], t[EXPERTS_SHARED_GATE], t[EXPERTS_GATE],
                                       t[EXPERTS_UP]};
    struct weights w[4];
    uint32_t n_shared = n_shared_in(l->config), n = 1u + m->shared_gate + n_shared;
    int rc = loader_parts(l, layer, rows, 4, w, e);
    if (rc < 0)
        return rc;
    if (n > 1) {
        struct moe_kind *kind = &m->experts[out->kind];
        kind->up_formats |= format_set(w[n - 1].format);
        kind->has_mixed_up |= w[n - n_shared].format != w[n - 1].format || weights_are_uneven(&w[n - 1]);
    }
    return open_router(l->config, l->exec, w, n, out, e);
}

static int load_shared_down(struct moe *m, struct loader *l, uint32_t layer, const struct part_tensor *t,
                            struct moe_layer *out, struct moeflux_err *e)
{
    int rc = loader_parts(l, layer, t + EXPERTS_DOWN, 1, &out->shared_down, e);
    if (rc < 0)
        return rc;
    m->experts[out->kind].shared_formats |= format_set(out->shared_down.format);
    return linear_open(&out->shared_out, l->exec, &out->shared_down, 1, e);
}

int moe_load_layer(struct moe *m, struct loader *l, uint32_t layer, const struct part_tensor *t,
                   struct moe_layer *out, struct moeflux_err *e)
{
    out->kind = m->kinds.of_layer[layer];
    int rc = load_router(m, l, layer, t, out, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_ROUTER_BIAS, 1, &out->bias, e);
    if (rc == 0)
        rc = loader_ids(l, layer, t + EXPERTS_OF_TOKENS, l->config->own_top_k, &out->table, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_ROUTER_NORM, 1, &out->router_norm, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_FACTORS, 1, &out->factors, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_BIASES, 2, &out->biases.gate_up, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_BIASES + 2, 1, &out->biases.down, e);
    return rc < 0 || !shared_rows(l->config) ? rc : load_shared_down(m, l, layer, t, out, e);
}

void moe_close_layer(struct moe_layer *y, struct exec *x)
{
    linear_close(&y->router_in, x);
    linear_close(&y->router_only, x);
    linear_close(&y->router_gate, x);
    experts_shared_close(&y->shared_up, x);
    linear_close(&y->shared_in, x);
    linear_close(&y->shared_out, x);
}

struct experts_shape moe_experts_shape(const struct config *c, const struct expert_kinds *kinds,
                                       uint32_t kind)
{
    const struct expert_layout *at = &kinds->layouts[kinds->layer[kind]];
    const struct config_layer *layer = &c->layers[kinds->layer[kind]];
    return (struct experts_shape){.n_experts = c->n_experts,
                                  .top_k = c->top_k,
                                  .hidden = config_expert_hidden(c),
                                  .inner = c->moe_inner,
                                  .gate_format = at->formats.gate,
                                  .up_format = at->formats.up,
                                  .down_format = at->formats.down,
                                  .down_formats = format_set(at->formats.down),
                                  .up_formats = format_set(at->formats.gate) | format_set(at->formats.up),
                                  .gate_w = (uint32_t)at->gate_w,
                                  .gate_s = (uint32_t)at->gate_s,
                                  .gate_b = (uint32_t)at->gate_b,
                                  .up_w = (uint32_t)at->up_w,
                                  .up_s = (uint32_t)at->up_s,
                                  .up_b = (uint32_t)at->up_b,
                                  .down_w = (uint32_t)at->down_w,
                                  .down_s = (uint32_t)at->down_s,
                                  .down_b = (uint32_t)at->down_b,
                                  .eps = c->rms_eps,
                                  .shared_gate = has_shared_gate(c),
                                  .drops = c->expert_share > 0,
                                  .biased = c->experts_biased,
                                  .gating = part_gating(c, layer->clamp),
                                  .shared_gating = part_gating(c, layer->shared_clamp)};
}

int moe_begin(struct moe *m, const struct arch_request *r, struct moeflux_err *e)
{
    m->exec = r->exec;
    m->config = r->config;
    int rc = expert_kinds_open(&m->kinds, r->config, r->experts, e);
    if (rc < 0)
        return rc;
    m->experts = mem_new(size_max(m->kinds.n, 1), sizeof *m->experts, e);
    return m->experts ? 0 : ERR_MEMORY;
}

static int open_kind(struct moe *m, uint32_t i, bool has_parts, struct moeflux_err *e)
{
    const struct config *c = m->config;
    const struct expert_layout *at = &m->kinds.layouts[m->kinds.layer[i]];
    struct moe_kind *kind = &m->experts[i];
    if (at->bytes > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "an expert of %llu bytes, expected less than 4 GiB",
                       (unsigned long long)at->bytes);
    struct experts_shape experts = moe_experts_shape(c, &m->kinds, i);
    experts.down_formats |= kind->shared_formats;
    experts.up_formats |= kind->up_formats;
    experts.drops |= has_parts;
    experts.shared_inner = kind->has_mixed_up ? 0 : shared_rows(c);
    experts.chooses = !c->router.sigmoid && !experts.drops && !c->router.factors;
    experts.norm_topk = c->router.norm;
    return experts_open(&kind->experts, m->exec, &experts, e);
}

bool moe_takes_rounds(const struct moe *m, uint32_t plan_n)
{
    bool takes = m->kinds.n > 0;
    for (uint32_t i = 0; i < m->kinds.n; i++)
        takes = takes && experts_takes_rounds(&m->experts[i].experts, plan_n);
    return takes;
}

/* Whether the router's bias is part of its logits, as in a softmax router. */
static bool has_logit_bias(const struct config *c)
{
    return !c->router.sigmoid && c->family->router_bias;
}

int moe_open(struct moe *m, const struct arch_request *r, struct moeflux_err *e)
{
    const struct config *c = r->config;
    const struct router_shape router = {.n_experts = c->n_experts,
                                        .top_k = c->top_k,
                                        .norm = c->router.norm,
                                        .sigmoid = c->router.sigmoid,
                                        .n_groups = c->router.n_groups,
                                        .keep_groups = c->router.keep_groups,
                                        .scale = c->router.scale,
                                        .share = c->expert_share,
                                        .softplus = c->router.softplus,
                                        .row = config_routes_by_token(c) ? c->own_top_k : 0};
    int rc = router_open(&m->router, r->exec, &router, e);
    for (uint32_t i = 0; rc == 0 && i < m->kinds.n; i++)
        rc = open_kind(m, i, r->has_parts, e);
    bool adds = r->has_host_experts || has_logit_bias(c);
    return rc < 0 || !adds ? rc : add_open(&m->add, r->exec, e);
}

void moe_allocate(struct moe *m, const struct config *c, const struct exec_caps *caps, uint32_t n,
                  struct scratch *to)
{
    const struct experts_shape experts = {.n_experts = c->n_experts,
                                          .top_k = c->top_k,
                                          .hidden = config_expert_hidden(c),
                                          .inner = c->moe_inner,
                                          .shared_inner = shared_rows(c)};
    uint64_t chosen = (uint64_t)n * c->top_k;
    m->shared_gate = has_shared_gate(c);
    m->router_rows = c->n_experts + m->shared_gate + n_shared_in(c) * shared_rows(c);
    scratch_floats(to, &m->routed, (uint64_t)n * m->router_rows);
    scratch_floats(to, &m->idx, chosen);
    scratch_floats(to, &m->weights, chosen);
    scratch_floats(to, &m->act, n * experts_act_row(&experts));
    scratch_floats(to, &m->grouped, experts_scratch(&experts, caps, n, shared_rows(c)));
    uint64_t most = size_min(n, EXEC_MAX_INVARIANT);
    scratch_floats(to, &m->predicted_logits, most * c->n_experts);
    scratch_floats(to, &m->predicted, most * c->top_k);
    scratch_floats(to, &m->predicted_weights, most * c->top_k);
}

void moe_close(struct moe *m)
{
    struct exec_buffer *buffers[] = {
        &m->routed,           &m->idx,       &m->weights,          &m->act, &m->grouped,
        &m->predicted_logits, &m->predicted, &m->predicted_weights};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(m->exec, buffers[i]);
    free(m->experts);
    expert_kinds_close(&m->kinds);
}

void moe_show(const struct moe *m, struct arch_view *view)
{
    view->idx = m->idx;
    view->weights = m->weights;
    view->predicted = m->predicted;
    view->router_logits = m->routed;
    view->router = &m->router.shape;
}

static const struct experts *experts_of(const struct moe *m, const struct moe_layer *y)
{
    return &m->experts[y->kind].experts;
}

/* Sets the logits of n tokens to the router's bias, if its product is to be added to one; returns whether it
 * is. Runs concurrently with the operation before, which does not touch the logits. */
static bool begin_logits(const struct moe *m, const struct moe_layer *y, uint64_t logits, uint32_t n)
{
    uint32_t n_experts = m->config->n_experts;
    if (!has_logit_bias(m->config))
        return false;
    exec_concurrent(m->exec);
    add_run(
        &m->add, m->exec,
        &(struct add_call){.y = y->bias, .x = logits, .n = n * n_experts, .every = n_experts, .sets = true});
    return true;
}

/* Returns the norm before the router. */
static uint64_t router_norm(const struct moe_layer *y)
{
    return y->router_norm ? y->router_norm : y->norm;
}

/* The router's logits are always float32: a small error in them selects another expert. */
void moe_score(const struct moe *m, const struct moe_layer *y, uint64_t x, const struct arch_tokens *all)
{
    bool up = experts_makes_shared(experts_of(m, y), all->plan_n);
    bool apart = m->f16_scratch && shared_rows(m->config) && linear_takes_f16(&y->shared_in, all->plan_n);
    struct linear_call call = {.x = x,
                               .norm = router_norm(y),
                               .y = m->routed.address,
                               .x_stride = m->config->hidden,
                               .y_stride = m->router_rows,
                               .n = all->n,
                               .chunk = all->plan_n,
                               .add = begin_logits(m, y, m->routed.address, all->n),
                               .eps = m->config->rms_eps};
    if (up || !apart) {
        linear_run(up ? &y->router_gate : &y->router_in, m->exec, &call);
        return;
    }
    struct linear_call shared = call;
    shared.y += m->config->n_experts * sizeof(float);
    shared.f16_scratch = m->f16_scratch;
    linear_run(&y->shared_in, m->exec, &shared);
    exec_concurrent(m->exec); /* they write different rows; each leaves much of a GPU idle */
    linear_run(&y->router_only, m->exec, &call);
}

void moe_choose(const struct moe *m, const struct moe_layer *y, uint64_t ids, uint32_t n)
{
    router_run(&m->router, m->exec,
               &(struct router_call){.logits = m->routed.address,
                                     .bias = y->bias,
                                     .factors = y->factors,
                                     .table = y->table,
                                     .ids = ids,
                                     .idx = m->idx.address,
                                     .weights = m->weights.address,
                                     .n = n,
                                     .stride = m->router_rows});
}

void moe_predict(const struct moe *m, const struct moe_layer *y, uint64_t x, uint64_t ids, uint32_t n)
{
    bool adds = begin_logits(m, y, m->predicted_logits.address, n);
    if (!adds)
        exec_concurrent(m->exec); /* runs with the layer's own choice */
    linear_run(&y->router_only, m->exec,
               &(struct linear_call){.x = x,
                                     .norm = router_norm(y),
                                     .y = m->predicted_logits.address,
                                     .x_stride = m->config->hidden,
                                     .y_stride = m->config->n_experts,
                                     .n = n,
                                     .add = adds,
                                     .eps = m->config->rms_eps});
    router_run(&m->router, m->exec,
               &(struct router_call){.logits = m->predicted_logits.address,
                                     .bias = y->bias,
                                     .factors = y->factors,
                                     .table = y->table,
                                     .ids = ids,
                                     .idx = m->predicted.address,
                                     .weights = m->predicted_weights.address,
                                     .n = n,
                                     .stride = m->config->n_experts});
}

static struct experts_call call_of(const struct moe *m, const struct moe_layer *y, uint64_t x,
                                   uint32_t plan_n, const struct arch_experts *part)
{
    uint64_t slot = (uint64_t)part->from * m->config->top_k * sizeof(float);
    uint64_t row = (uint64_t)m->router_rows * sizeof(float);
    const struct experts *experts = experts_of(m, y);
    uint64_t act = experts_act_row(&experts->shape) * sizeof(float);
    uint64_t hidden = config_expert_hidden(m->config) * sizeof(float);
    return (struct experts_call){.x = x + part->from * hidden,
                                 .norm = m->config->moe_latent ? 0 : y->norm,
                                 .table = part->table,
                                 .idx = m->idx.address + slot,
                                 .weights = m->weights.address + slot,
                                 .act = m->act.address + part->from * act,
                                 .router = part->chooses ? &m->router : NULL,
                                 .router_bias = y->bias,
                                 .router_factors = y->factors,
                                 .router_table = y->table,
                                 .biases = y->biases,
                                 .shared_in = m->routed.address + part->from * row,
                                 .shared_up = experts_makes_shared(experts, plan_n) ? &y->shared_up : NULL,
                                 .shared_down = y->shared_down,
                                 .shared_stride = m->router_rows,
                                 .n = part->n,
                                 .chunk = plan_n,
                                 .scratch = m->grouped.address,
                                 .f16_scratch = m->f16_scratch,
                                 .shared_out = &y->shared_out,
                                 .skip = part->skip,
                                 .skip_shared = part->skip_shared,
                                 .part = part->part,
                                 .more = part->more_rounds};
}

void moe_up(const struct moe *m, const struct moe_layer *y, uint64_t x, uint64_t ids, uint32_t plan_n,
            const struct arch_experts *part)
{
    struct experts_call call = call_of(m, y, x, plan_n, part);
    call.ids = ids + part->from * sizeof(int32_t);
    experts_run_up(experts_of(m, y), m->exec, &call);
}

void moe_down(const struct moe *m, const struct moe_layer *y, uint64_t out, uint32_t plan_n,
              const struct arch_experts *part)
{
    const struct experts_call call = call_of(m, y, out, plan_n, part);
    experts_run_down(experts_of(m, y), m->exec, &call);
}

void moe_shared(const struct moe *m, const struct moe_layer *y, const struct moe_states *x, uint32_t layer,
                uint64_t table, const struct arch_tokens *all)
{
    struct experts_call call = call_of(m, y, x->in, all->plan_n,
                                       &(struct arch_experts){.layer = layer, .table = table, .n = all->n});
    call.only_shared = true;
    if (call.shared_up)
        experts_run_up(experts_of(m, y), m->exec, &call);
    call.x = x->out;
    experts_run_down(experts_of(m, y), m->exec, &call);
}

void moe_add(const struct moe *m, uint64_t x, uint64_t sum, uint32_t n)
{
    add_run(&m->add, m->exec, &(struct add_call){.y = sum, .x = x, .n = n * config_expert_hidden(m->config)});
}
