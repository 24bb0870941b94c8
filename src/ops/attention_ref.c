#include <math.h>

#include "ops/attention.h"
#include "ops/ref.h"

/* The key (value = 0) or value (1) of a position. */
static const void *row_at(const struct attention_shape *s, const struct attention_call *c, uint32_t pos,
                          uint32_t value, uint32_t kv_head)
{
    const struct kv_rows rows = {c->blocks, c->layer_off, c->n_kv_heads, s->key_dim, s->kv_type};
    if (!s->flat)
        return kv_rows_at(&rows, pos, value, kv_head);
    uint64_t i = (uint64_t)pos * c->n_kv_heads + kv_head;
    return (const uint8_t *)host_at(value ? c->values : c->keys) +
           i * (value ? s->value_dim : s->key_dim) * kv_type_bytes(s->kv_type);
}

/* One query head over all its positions. */
static void ref_head(const struct attention_shape *s, const struct attention_call *c, uint32_t t, uint32_t h,
                     double *scores, double *sum)
{
    uint32_t n_pos = c->pos + t + 1, g = h / (c->n_heads / c->n_kv_heads);
    const float *q = host_floats(c->q) + (uint64_t)t * c->q_stride + (uint64_t)h * s->key_dim;
    double top = -INFINITY, total = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const void *k = row_at(s, c, p, 0, g);
        double dot = 0;
        for (uint32_t i = 0; i < s->key_dim; i++)
            dot += (double)q[i] * kv_rows_get(s->kv_type, k, i);
        scores[p] = dot * (double)s->scale;
        top = scores[p] > top ? scores[p] : top;
    }
    for (uint32_t i = 0; i < s->value_dim; i++)
        sum[i] = 0;
    for (uint32_t p = 0; p < n_pos; p++) {
        const void *v = row_at(s, c, p, s->latent ? 0 : 1, g);
        double w = exp(scores[p] - top);
        total += w;
        for (uint32_t i = 0; i < s->value_dim; i++)
            sum[i] += w * kv_rows_get(s->kv_type, v, i);
    }
    const float *gate =
        s->gated ? host_floats(c->gates) + (uint64_t)t * c->gate_stride + (2 * (uint64_t)h + 1) * s->value_dim
                 : NULL;
    float *dst = host_floats_mut(c->dst) + (uint64_t)t * c->dst_stride + (uint64_t)h * s->value_dim;
    for (uint32_t i = 0; i < s->value_dim; i++)
        dst[i] = (float)(sum[i] / total * (gate ? ref_sigmoid((double)gate[i]) : 1.0));
}

int attention_ref(const void *self, const void *what, struct host *host)
{
    const struct attention *op = self;
    const struct attention_call *c = what;
    double *scores = host_scratch(host, (uint64_t)c->pos + c->n, sizeof *scores);
    double *sum = host_scratch(host, op->shape.value_dim, sizeof *sum);
    for (uint32_t t = 0; scores && sum && t < c->n; t++)
        for (uint32_t h = 0; h < c->n_heads; h++)
            ref_head(&op->shape, c, t, h, scores, sum);
    return host_error(host);
}
