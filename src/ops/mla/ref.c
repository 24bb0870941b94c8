/* The reference implementation of mla.h's prepare. */
#include "ops/mla/mla.h"
#include "ops/ref.h"

static void ref_turn(const struct mla_shape *s, const float *turn, const float *src, float *dst)
{
    uint32_t pairs = s->rope_dim / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t x = s->interleaved ? 2 * i : i, y = s->interleaved ? 2 * i + 1 : i + pairs;
        double co = (double)turn[2 * (uint64_t)i], si = (double)turn[2 * (uint64_t)i + 1];
        double u = (double)src[x], v = (double)src[y];
        dst[x] = (float)(u * co - v * si);
        dst[y] = (float)(v * co + u * si);
    }
}

int mla_prepare_ref(const void *self, const void *what, struct host *host)
{
    const struct mla_shape *s = &((const struct mla *)self)->shape;
    const struct mla_prepare_call *to = what;
    const struct mla_call *call = to->of;
    uint32_t row = s->latent_dim + s->rope_dim, head = s->nope_dim + s->rope_dim;
    const struct kv_rows cache = {call->blocks, call->layer_off, 1, row, 0, s->kv_type};
    double *latent = host_scratch(host, s->latent_dim, sizeof *latent);
    float *key = host_scratch(host, row, sizeof *key);
    for (uint32_t t = 0; latent && key && t < call->n; t++) {
        const float *kv = host_floats(call->kv) + (uint64_t)t * call->kv_stride + call->kv_at;
        const float *turn =
            host_floats(call->rope) + (uint64_t)t * s->rope_dim; /* cosine and sine of each pair */
        ref_norm(kv, host_floats(call->norm), s->latent_dim, (double)s->eps, latent);
        for (uint32_t c = 0; c < s->latent_dim; c++)
            key[c] = (float)latent[c];
        ref_turn(s, turn, kv + s->latent_dim, key + s->latent_dim);
        kv_row_put(s->kv_type, key, row, kv_rows_at(&cache, call->pos + t, 0, 0));
        for (uint32_t h = 0; h < s->n_heads; h++) {
            const float *from = host_floats(call->q) + (uint64_t)t * call->q_stride + (uint64_t)h * head;
            float *turned = host_floats_mut(to->q) + (uint64_t)t * to->stride + (uint64_t)h * to->step;
            ref_turn(s, turn, from + s->nope_dim, turned + to->at);
        }
    }
    return host_error(host);
}
