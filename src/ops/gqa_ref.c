#include "ops/gqa.h"
#include "ops/ref.h"

/* A head that stands at `at` in its token's row, with its bias. */
static void ref_head(const struct gqa_shape *s, const struct gqa_call *call, const float *row, uint64_t at,
                     float *out)
{
    for (uint32_t c = 0; c < s->head_dim; c++)
        out[c] = row[at + c] + (s->biased ? host_floats(call->bias)[at + c] : 0);
}

static void ref_norm_rope(const struct gqa_shape *s, const float *src, const float *norm, const float *rope,
                          float *dst, double *head)
{
    const uint32_t pairs = s->rotary_dim / 2;
    const float(*turn)[2] = (const float(*)[2])(const void *)rope; /* cosine, sine */
    ref_norm(src, norm, s->head_dim, (double)s->eps, head);
    for (uint32_t c = 0; c < s->head_dim; c++) {
        double y = head[c];
        if (c < pairs)
            y = y * (double)turn[c][0] - head[c + pairs] * (double)turn[c][1];
        else if (c < s->rotary_dim)
            y = y * (double)turn[c - pairs][0] + head[c - pairs] * (double)turn[c - pairs][1];
        dst[c] = (float)y;
    }
}

/* in, out: a head each. */
static void ref_token(const struct gqa_shape *s, const struct gqa_call *call, uint32_t t, double *head,
                      float *in, float *out)
{
    const struct kv_rows cache = {call->blocks, call->layer_off, s->n_kv_heads, s->head_dim, s->kv_type};
    uint32_t d = s->head_dim;
    const float *row = host_floats(call->qkv) + (uint64_t)t * call->stride;
    const float *rope = host_floats(call->rope) + (uint64_t)t * s->rotary_dim;
    uint64_t step = (1 + s->gated) * (uint64_t)d; /* from a query to the next */
    uint64_t keys = s->n_heads * step, values = keys + (uint64_t)s->n_kv_heads * d;
    for (uint32_t h = 0; h < s->n_heads; h++) {
        ref_head(s, call, row, h * step, in);
        ref_norm_rope(s, in, host_floats(call->q_norm), rope,
                      host_floats_mut(call->q) + ((uint64_t)t * s->n_heads + h) * d, head);
    }
    for (uint32_t g = 0; g < s->n_kv_heads; g++) {
        ref_head(s, call, row, keys + (uint64_t)g * d, in);
        ref_norm_rope(s, in, host_floats(call->k_norm), rope, out, head);
        kv_rows_put(&cache, kv_rows_at(&cache, call->pos + t, 0, g), out);
        ref_head(s, call, row, values + (uint64_t)g * d, in);
        kv_rows_put(&cache, kv_rows_at(&cache, call->pos + t, 1, g), in);
    }
}

int gqa_prepare_ref(const void *self, const void *what, struct host *h)
{
    const struct gqa *op = self;
    const struct gqa_call *call = what;
    uint32_t d = op->shape.head_dim;
    double *head = host_scratch(h, d, sizeof *head);
    float *in = host_scratch(h, d, sizeof *in), *out = host_scratch(h, d, sizeof *out);
    for (uint32_t t = 0; head && in && out && t < call->n; t++)
        ref_token(&op->shape, call, t, head, in, out);
    return host_error(h);
}
