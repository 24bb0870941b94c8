#include "ops/gqa/gqa.h"

#include <math.h>

#include "base/err.h"

static const struct op prepare_op = {.name = "gqa_prepare",
                                     .vulkan = gqa_prepare_vulkan,
                                     .cpu = gqa_prepare_cpu,
                                     .reference = gqa_prepare_ref};

static struct attention_shape attention_of(const struct gqa_shape *s)
{
    return (struct attention_shape){.n_heads = s->n_heads,
                                    .n_kv_heads = s->n_kv_heads,
                                    .key_dim = s->head_dim,
                                    .value_dim = gqa_value_dim(s),
                                    .gated = s->gated,
                                    .norm = s->norm,
                                    .biased = s->biased,
                                    .sinks = s->sinks,
                                    .window = s->window,
                                    .choice = s->choice,
                                    .scale = s->scale > 0 ? s->scale : (float)(1 / sqrt((double)s->head_dim)),
                                    .kv_type = s->kv_type,
                                    .value_scale = s->values.scale};
}

int gqa_open(struct gqa *op, struct exec *x, const struct gqa_shape *s, struct moeflux_err *e)
{
    const struct attention_shape attention = attention_of(s);
    *op = (struct gqa){.shape = *s};
    int rc = attention_open(&op->attention, x, &attention, e);
    if (rc == 0 && (s->rotary_dim % 2 || s->rotary_dim > s->head_dim))
        rc = err_set(e, ERR_UNSUPPORTED, "attention: %u rotary channels of %u, expected an even number",
                     s->rotary_dim, s->head_dim);
    if (rc == 0 && (s->values.dim > s->head_dim || (s->gated && gqa_value_dim(s) != s->head_dim)))
        rc = err_set(e, ERR_UNSUPPORTED, "attention: values of %u channels, keys of %u%s", s->values.dim,
                     s->head_dim, s->gated ? ", gates" : "");
    if (rc == 0 && s->gated && (s->biased || s->norm == ATTENTION_NORM_ALL))
        rc = err_set(e, ERR_UNSUPPORTED, "attention: gates, expected no biases and no norm of all heads");
    if (rc == 0 && s->values.normed && s->norm == ATTENTION_NORM_ALL)
        rc = err_set(e, ERR_UNSUPPORTED, "attention: norms of values, expected no norm of all heads");
    return rc < 0 || exec_get_caps(x).is_host ? rc : gqa_vulkan_open(op, x, e);
}

void gqa_close(struct gqa *op, struct exec *x)
{
    attention_close(&op->attention, x);
}

uint64_t gqa_partial_bytes(const struct gqa_shape *s, const struct exec_caps *caps, uint32_t n,
                           uint32_t n_pos)
{
    const struct attention_shape attention = attention_of(s);
    return s->n_heads ? attention_partial_bytes(&attention, caps, n, n_pos) : 0;
}

/* Returns whether attention prepares the call's queries, keys and values itself. */
static bool is_fresh(const struct gqa *op, const struct gqa_call *call)
{
    return call->n == 1 && call->pos < kv_choice_from(&op->shape.choice) &&
           attention_prepares(&op->attention);
}

static struct attention_fresh fresh_of(const struct gqa *op, const struct gqa_call *call)
{
    return (struct attention_fresh){
        call->q_norm,  call->k_norm,           call->bias, call->rope, op->shape.rotary_dim,
        op->shape.eps, op->shape.values.normed};
}

static struct attention_call attention_call_of(const struct gqa *op, const struct gqa_call *call,
                                               const struct attention_fresh *fresh)
{
    const struct gqa_shape *s = &op->shape;
    return (struct attention_call){.q = fresh ? call->qkv : call->q,
                                   .blocks = call->blocks,
                                   .partial = call->partial,
                                   .partial_bytes = call->partial_bytes,
                                   .sinks = call->sinks,
                                   .chosen = call->chosen,
                                   .gates = call->qkv,
                                   .dst = call->dst,
                                   .n = call->n,
                                   .pos = call->pos,
                                   .q_stride = s->n_heads * s->head_dim,
                                   .dst_stride = s->n_heads * gqa_value_dim(s),
                                   .gate_stride = call->stride,
                                   .n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .layer_off = call->layer_off,
                                   .use_f16 = call->use_f16,
                                   .fresh = fresh};
}

void gqa_run(const struct gqa *op, struct exec *x, const struct gqa_call *call)
{
    const struct attention_fresh fresh = fresh_of(op, call);
    const struct attention_call attention = attention_call_of(op, call, is_fresh(op, call) ? &fresh : NULL);
    if (!attention.fresh)
        exec_op(x, &prepare_op, op, call);
    attention_run(&op->attention, x, &attention);
}

/* Returns whether matrix units compute the call. */
static bool takes_matrices(const struct gqa *op, const struct gqa_call *call)
{
    return call->may_use_matrices && attention_matrices_take(&op->attention, call->pos);
}

/* Prepares the n calls that attention does not prepare itself; where the GPU does it, in one dispatch. */
static void prepare_all(const struct gqa *op, struct exec *x, const struct gqa_call *const *calls, uint32_t n)
{
    if (!exec_get_caps(x).is_host && n > 0) {
        gqa_prepare_vulkan_each(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            exec_concurrent(x);
        exec_op(x, &prepare_op, op, calls[i]);
    }
}

void gqa_run_chain(const struct gqa *op, struct exec *x, const struct gqa_call *calls, uint32_t n)
{
    struct attention_fresh fresh[ATTENTION_CONCURRENT];
    struct attention_call attention[ATTENTION_CONCURRENT];
    bool can = n > 1;
    for (uint32_t i = 0; i < n && can; i++) {
        can = is_fresh(op, &calls[i]);
        fresh[i] = fresh_of(op, &calls[i]);
        attention[i] = attention_call_of(op, &calls[i], &fresh[i]);
    }
    if (can && attention_run_chain(&op->attention, x, attention, n))
        return;
    for (uint32_t i = 0; i < n; i++)
        gqa_run(op, x, &calls[i]);
}

void gqa_run_concurrent(const struct gqa *op, struct exec *x, const struct gqa_call *calls, uint32_t n)
{
    struct attention_fresh fresh[ATTENTION_CONCURRENT];
    struct attention_call attention[ATTENTION_CONCURRENT];
    const struct gqa_call *prepared[ATTENTION_CONCURRENT];
    uint32_t n_prepared = 0;
    if (!attention_prepares(&op->attention)) {
        for (uint32_t i = 0; i < n; i++)
            gqa_run(op, x, &calls[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool on_matrices = takes_matrices(op, &calls[i]), prepares = !on_matrices && is_fresh(op, &calls[i]);
        fresh[i] = fresh_of(op, &calls[i]);
        attention[i] = attention_call_of(op, &calls[i], prepares ? &fresh[i] : NULL);
        attention[i].on_matrices = on_matrices;
        if (!prepares)
            prepared[n_prepared++] = &calls[i];
    }
    prepare_all(op, x, prepared, n_prepared);
    attention_run_concurrent(&op->attention, x, attention, n);
}
