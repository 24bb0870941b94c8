#include "ops/attention/attention.h"

#include "base/err.h"

static const struct op attention_op = {
    .name = "attention", .vulkan = attention_vulkan, .cpu = attention_cpu, .reference = attention_ref};

static int check(const struct attention_shape *s, struct moeflux_err *e)
{
    if (s->n_kv_heads == 0 || s->n_heads == 0 || s->n_heads % s->n_kv_heads)
        return err_set(e, ERR_UNSUPPORTED, "attention: %u heads over %u key/value heads", s->n_heads,
                       s->n_kv_heads);
    if (s->key_dim == 0 || s->key_dim % 4 || s->value_dim == 0 || s->value_dim % 4)
        return err_set(e, ERR_UNSUPPORTED,
                       "attention: keys of %u and values of %u channels, expected multiples of 4", s->key_dim,
                       s->value_dim);
    if (s->latent && (s->n_kv_heads > 1 || s->value_dim > s->key_dim))
        return err_set(e, ERR_UNSUPPORTED, "attention: values of %u channels, keys of %u", s->value_dim,
                       s->key_dim);
    if (s->latent && (s->sinks || s->window))
        return err_set(e, ERR_UNSUPPORTED, "attention: latents, expected neither sinks nor a window");
    if (s->choice.ratio && (s->flat || s->window))
        return err_set(e, ERR_UNSUPPORTED, "attention: an indexer, expected no window");
    if (s->choice.heads && s->choice.heads != s->n_kv_heads)
        return err_set(e, ERR_UNSUPPORTED, "attention: lists of %u heads, expected %u key/value heads",
                       s->choice.heads, s->n_kv_heads);
    return 0;
}

int attention_open(struct attention *op, struct exec *x, const struct attention_shape *s,
                   struct moeflux_err *e)
{
    *op = (struct attention){.shape = *s};
    int rc = check(s, e);
    return rc < 0 || exec_get_caps(x).is_host ? rc : attention_vulkan_open(op, x, e);
}

void attention_close(struct attention *op, struct exec *x)
{
    exec_buffer_free(x, &op->gpu.counters);
}

bool attention_prepares(const struct attention *op)
{
    return op->gpu.fresh[0].kernel.args_bytes > 0;
}

bool attention_matrices_take(const struct attention *op, uint32_t pos)
{
    const struct attention_shape *s = &op->shape;
    uint32_t from = op->gpu.matrices_from, n_pos = pos + 1 - attention_first(s, pos);
    return from > 0 && n_pos >= from && pos < kv_choice_from(&s->choice);
}

/* Returns the call for n tokens from the first-th on. */
static struct attention_call part_of(const struct attention *op, const struct attention_call *call,
                                     uint32_t first, uint32_t n)
{
    struct attention_call part = *call;
    part.q += (uint64_t)first * call->q_stride * sizeof(float);
    part.dst += (uint64_t)first * call->dst_stride * sizeof(float);
    part.gates += (uint64_t)first * call->gate_stride * sizeof(float);
    part.chosen += (uint64_t)first * kv_choice_stride(&op->shape.choice) * sizeof(uint32_t);
    part.pos += first;
    part.n = n;
    return part;
}

void attention_run(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    uint32_t from = kv_choice_from(&op->shape.choice), n = from > call->pos ? from - call->pos : 0;
    if (n == 0 || n >= call->n) {
        exec_op(x, &attention_op, op, call);
        return;
    }
    const struct attention_call whole = part_of(op, call, 0, n), chosen = part_of(op, call, n, call->n - n);
    exec_op(x, &attention_op, op, &whole);
    exec_op(x, &attention_op, op, &chosen);
}

void attention_run_concurrent(const struct attention *op, struct exec *x, const struct attention_call *calls,
                              uint32_t n)
{
    if (!exec_get_caps(x).is_host) {
        attention_vulkan_concurrent(op, x, calls, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        attention_run(op, x, &calls[i]);
}

bool attention_run_chain(const struct attention *op, struct exec *x, const struct attention_call *calls,
                         uint32_t n)
{
    return !exec_get_caps(x).is_host && attention_vulkan_chain(op, x, calls, n);
}
