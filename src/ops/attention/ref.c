/* The reference implementation of attention.h. */
#include <math.h>

#include "base/mem.h"
#include "ops/attention/attention.h"
#include "ops/ref.h"

/* Returns the key (value = 0) or the value (value = 1) of a position. */
static const void *row_at(const struct attention_shape *s, const struct attention_call *c, uint32_t pos,
                          uint32_t value, uint32_t kv_head)
{
    const struct kv_rows rows = {c->blocks,  c->layer_off, c->n_kv_heads,
                                 s->key_dim, s->value_dim, s->kv_type};
    if (!s->flat)
        return kv_rows_at(&rows, pos, value, kv_head);
    uint64_t i = (uint64_t)pos * c->n_kv_heads + kv_head;
    return (const uint8_t *)host_at(value ? c->values : c->keys) +
           i * kv_row_bytes(s->kv_type, value ? s->value_dim : s->key_dim);
}

/* Scratch for the query heads that share a key head. */
struct ref_scratch {
    double *queries; /* [heads][key_dim] */
    double *scores;  /* [heads][positions] */
    double *sums;    /* [heads][value_dim] */
    double *row;     /* a key or a value */
};

/* Reads the first n of a row's dim numbers. */
static void widen(enum kv_type type, const void *row, uint32_t dim, uint32_t n, double *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (double)kv_row_get(type, row, dim, i);
}

/* Turns scores into weights and returns their sum. sink: one more score, which counts in the sum only. */
static double ref_softmax(double *scores, uint32_t n, double sink)
{
    double top = sink, total = 0;
    for (uint32_t p = 0; p < n; p++)
        top = scores[p] > top ? scores[p] : top;
    for (uint32_t p = 0; p < n; p++) {
        scores[p] = exp(scores[p] - top);
        total += scores[p];
    }
    return total + exp(sink - top);
}

/* Returns the p-th of the positions that token t's key head g sees; from: the first without a list. */
static uint32_t position(const struct attention_shape *s, const struct attention_call *c, uint32_t t,
                         uint32_t g, uint32_t from, uint32_t p)
{
    if (!attention_has_lists(s, c))
        return from + p;
    const uint32_t *list = host_words(c->chosen) + (uint64_t)t * kv_choice_stride(&s->choice);
    list += (uint64_t)(s->choice.heads ? g : 0) * (s->choice.budget + 1);
    return list[p / s->choice.ratio] * s->choice.ratio + p % s->choice.ratio;
}

/* Computes token t's query heads of key head g over all its positions. A row is widened once for all of
 * them. */
static void ref_group(const struct attention_shape *s, const struct attention_call *c, uint32_t t, uint32_t g,
                      const struct ref_scratch *r)
{
    uint32_t from = attention_first(s, c->pos + t), n_pos = c->pos + t + 1 - from;
    uint32_t heads = c->n_heads / c->n_kv_heads, first = g * heads;
    if (attention_has_lists(s, c))
        n_pos = kv_choice_n_seen(&s->choice, c->pos + t);
    const float *q = host_floats(c->q) + (uint64_t)t * c->q_stride + (uint64_t)first * s->key_dim;
    widen(KV_TYPE_F32, q, heads * s->key_dim, heads * s->key_dim, r->queries);
    for (uint32_t p = 0; p < n_pos; p++) {
        widen(s->kv_type, row_at(s, c, position(s, c, t, g, from, p), 0, g), s->key_dim, s->key_dim, r->row);
        for (uint32_t h = 0; h < heads; h++)
            r->scores[(uint64_t)h * n_pos + p] =
                ref_dot(r->queries + (uint64_t)h * s->key_dim, r->row, s->key_dim) * (double)s->scale;
    }
    float *dst = host_floats_mut(c->dst) + (uint64_t)t * c->dst_stride + (uint64_t)first * s->value_dim;
    for (uint64_t i = 0; i < (uint64_t)heads * s->value_dim; i++)
        r->sums[i] = 0;
    for (uint32_t h = 0; h < heads; h++) {
        double sink = s->sinks ? (double)host_floats(c->sinks)[first + h] : -INFINITY;
        double total = ref_softmax(r->scores + (uint64_t)h * n_pos, n_pos, sink);
        for (uint32_t p = 0; p < n_pos; p++)
            r->scores[(uint64_t)h * n_pos + p] /= total;
    }
    for (uint32_t p = 0; p < n_pos; p++) {
        widen(s->kv_type, row_at(s, c, position(s, c, t, g, from, p), s->latent ? 0 : 1, g),
              s->latent ? s->key_dim : s->value_dim, s->value_dim, r->row);
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < s->value_dim; i++)
                r->sums[(uint64_t)h * s->value_dim + i] += r->scores[(uint64_t)h * n_pos + p] * r->row[i];
    }
    const float *gates = s->gated ? host_floats(c->gates) + (uint64_t)t * c->gate_stride : NULL;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < s->value_dim; i++) {
            uint64_t at = (uint64_t)h * s->value_dim + i;
            uint64_t gate = (2 * (uint64_t)(first + h) + 1) * s->value_dim + i;
            dst[at] = (float)(r->sums[at] * (gates ? ref_sigmoid((double)gates[gate]) : 1.0));
        }
}

int attention_ref(const void *self, const void *what, struct host *host)
{
    const struct attention *op = self;
    const struct attention_call *c = what;
    const struct attention_shape *s = &op->shape;
    uint64_t heads = c->n_heads / c->n_kv_heads;
    const struct ref_scratch r = {
        .queries = host_scratch(host, heads * s->key_dim, sizeof(double)),
        .scores = host_scratch(host, heads * ((uint64_t)c->pos + c->n), sizeof(double)),
        .sums = host_scratch(host, heads * s->value_dim, sizeof(double)),
        .row = host_scratch(host, size_max(s->key_dim, s->value_dim), sizeof(double)),
    };
    bool has_room = r.queries && r.scores && r.sums && r.row;
    for (uint32_t t = 0; has_room && t < c->n; t++)
        for (uint32_t g = 0; g < c->n_kv_heads; g++)
            ref_group(s, c, t, g, &r);
    return host_error(host);
}
