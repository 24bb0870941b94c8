/* The reference implementation of gqa.h. */
#include "ops/gqa/gqa.h"
#include "ops/ref.h"

/* Copies n heads of dim channels of a token's row, the first at `at` and `step` apart, with their biases. */
static void ref_heads(const struct gqa_shape *s, const struct gqa_call *call, const float *row, uint64_t at,
                      uint64_t step, uint32_t dim, uint32_t n, float *out)
{
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t c = 0; c < dim; c++, out++)
            *out = row[at + h * step + c] + (s->biased ? host_floats(call->bias)[at + h * step + c] : 0);
}

/* Norms heads that already have their biases into `out`; with a norm of all heads, all of a kind at once. n:
 * number of channels. */
static void ref_normed(const struct gqa_shape *s, const float *in, const float *norm, uint32_t n, double *out)
{
    uint32_t each = s->norm == ATTENTION_NORM_ALL ? n : s->head_dim;
    for (uint32_t i = 0; i < n; i += each)
        ref_norm(in + i, s->norm == ATTENTION_NORM_NONE ? NULL : norm, each, (double)s->eps, out + i);
}

static void ref_rope(const struct gqa_shape *s, const double *head, const float *rope, float *dst)
{
    const uint32_t pairs = s->rotary_dim / 2;
    const float(*turn)[2] = (const float(*)[2])(const void *)rope; /* cosine, sine */
    for (uint32_t c = 0; c < s->head_dim; c++) {
        double y = head[c];
        if (c < pairs)
            y = y * (double)turn[c][0] - head[c + pairs] * (double)turn[c][1];
        else if (c < s->rotary_dim)
            y = y * (double)turn[c - pairs][0] + head[c - pairs] * (double)turn[c - pairs][1];
        dst[c] = (float)y;
    }
}

/* Scratch: in, out for all heads of a kind; key for one head. */
static void ref_token(const struct gqa_shape *s, const struct gqa_call *call, uint32_t t, float *in,
                      double *out, float *key)
{
    const struct kv_rows cache = {call->blocks, call->layer_off,  s->n_kv_heads,
                                  s->head_dim,  gqa_value_dim(s), s->kv_type};
    uint32_t d = s->head_dim, kv = s->n_kv_heads, v = gqa_value_dim(s);
    const float *row = host_floats(call->qkv) + (uint64_t)t * call->stride;
    const float *rope = host_floats(call->rope) + (uint64_t)t * s->rotary_dim;
    float *q = host_floats_mut(call->q) + (uint64_t)t * s->n_heads * d;
    uint64_t step = (1 + s->gated) * (uint64_t)d; /* distance between queries */
    uint64_t keys = s->n_heads * step, values = keys + (uint64_t)kv * d;
    ref_heads(s, call, row, 0, step, d, s->n_heads, in);
    ref_normed(s, in, host_floats(call->q_norm), s->n_heads * d, out);
    for (uint32_t h = 0; h < s->n_heads; h++)
        ref_rope(s, out + (uint64_t)h * d, rope, q + (uint64_t)h * d);
    ref_heads(s, call, row, keys, d, d, kv, in);
    ref_normed(s, in, host_floats(call->k_norm), kv * d, out);
    for (uint32_t g = 0; g < kv; g++) {
        ref_rope(s, out + (uint64_t)g * d, rope, key);
        kv_row_put(s->kv_type, key, d, kv_rows_at(&cache, call->pos + t, 0, g));
    }
    ref_heads(s, call, row, values, v, v, kv, in);
    for (uint32_t g = 0; s->values.normed && g < kv; g++) {
        for (uint32_t c = 0; c < v; c++)
            out[c] = (double)in[(uint64_t)g * v + c];
        ref_unit(out, v, (double)s->eps, out);
        for (uint32_t c = 0; c < v; c++)
            in[(uint64_t)g * v + c] = (float)out[c];
    }
    for (uint32_t i = 0; s->values.scale > 0 && i < kv * v; i++)
        in[i] *= s->values.scale;
    for (uint32_t g = 0; g < kv; g++)
        kv_row_put(s->kv_type, in + (uint64_t)g * v, v, kv_rows_at(&cache, call->pos + t, 1, g));
}

int gqa_prepare_ref(const void *self, const void *what, struct host *h)
{
    const struct gqa *op = self;
    const struct gqa_call *call = what;
    uint64_t n = (uint64_t)op->shape.n_heads * op->shape.head_dim; /* not fewer than the keys' channels */
    float *in = host_scratch(h, n, sizeof *in), *key = host_scratch(h, op->shape.head_dim, sizeof *key);
    double *out = host_scratch(h, n, sizeof *out);
    for (uint32_t t = 0; in && key && out && t < call->n; t++)
        ref_token(&op->shape, call, t, in, out, key);
    return host_error(h);
}
