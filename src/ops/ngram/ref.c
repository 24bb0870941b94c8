/* The reference implementation of ngram.h. */
#include <math.h>
#include <string.h>

#include "ops/ngram/ngram.h"
#include "ops/ref.h"

struct work {
    const struct ngram_shape *s;
    const struct ngram_call *c;
    float *u;            /* [window rows + n][S H] */
    double *key, *query; /* [H] */
    float *scaled;       /* [H] */
};

/* Returns g of a token's stream. */
static double gate_of(const struct work *w, uint32_t t, uint32_t stream)
{
    uint32_t hidden = w->s->hidden;
    uint64_t at = (uint64_t)stream * hidden;
    const float *key = host_floats(w->c->proj) + (uint64_t)t * w->c->stride + at;
    for (uint32_t k = 0; k < hidden; k++)
        w->scaled[k] = key[k] * w->s->scale;
    ref_norm(w->scaled, host_floats(w->c->k_norm) + at, hidden, (double)w->s->eps, w->key);
    ref_norm(host_floats(w->c->x) + (uint64_t)t * w->s->n_streams * hidden + at,
             host_floats(w->c->x_norm) + at, hidden, (double)w->s->eps, w->query);
    double gate = ref_dot(w->key, w->query, hidden) / sqrt((double)hidden);
    double size = sqrt(fmax(fabs(gate), 1e-6));
    return ref_sigmoid(gate > 0 ? size : gate < 0 ? -size : 0);
}

static void ref_token(const struct work *w, uint32_t t)
{
    const struct ngram_shape *s = w->s;
    uint32_t hidden = s->hidden, width = s->n_streams * hidden, held = (uint32_t)ngram_held(s);
    const float *value = host_floats(w->c->proj) + (uint64_t)t * w->c->stride + width;
    float *u = w->u + (uint64_t)(held + t) * width, *x = host_floats_mut(w->c->x) + (uint64_t)t * width;
    for (uint32_t i = 0; i < s->n_streams; i++) {
        double g = gate_of(w, t, i);
        for (uint32_t k = 0; k < hidden; k++)
            w->scaled[k] = (float)(g * (double)value[k] * (double)s->scale);
        if (!s->taps) {
            for (uint32_t k = 0; k < hidden; k++)
                x[i * hidden + k] += w->scaled[k];
            continue;
        }
        ref_norm(w->scaled, host_floats(w->c->u_norm) + (uint64_t)i * hidden, hidden, (double)s->eps, w->key);
        for (uint32_t k = 0; k < hidden; k++) {
            uint32_t c = i * hidden + k;
            const float *taps = host_floats(w->c->conv) + (uint64_t)c * s->taps;
            double sum = 0;
            u[c] = (float)w->key[k];
            for (uint32_t j = 0; j < s->taps; j++)
                sum += (double)taps[j] * (double)w->u[(uint64_t)(t + j * s->dilation) * width + c];
            x[c] = (float)((double)x[c] + g * (double)value[k] * (double)s->scale + ref_silu(sum));
        }
    }
}

int ngram_ref(const void *self, const void *what, struct host *h)
{
    const struct ngram_shape *s = &((const struct ngram *)self)->shape;
    struct work w = {.s = s, .c = what};
    uint64_t width = (uint64_t)s->n_streams * s->hidden, held = ngram_held(s);
    w.u = host_scratch(h, (held + w.c->n) * width, sizeof *w.u);
    w.key = host_scratch(h, s->hidden, sizeof *w.key);
    w.query = host_scratch(h, s->hidden, sizeof *w.query);
    w.scaled = host_scratch(h, s->hidden, sizeof *w.scaled);
    if (!w.u || !w.key || !w.query || !w.scaled)
        return host_error(h);
    if (held)
        memcpy(w.u, host_floats(w.c->window_in), held * width * sizeof *w.u);
    for (uint32_t t = 0; t < w.c->n; t++)
        ref_token(&w, t);
    if (held)
        memcpy(host_floats_mut(w.c->window_out), w.u + w.c->n * width, held * width * sizeof *w.u);
    return host_error(h);
}
