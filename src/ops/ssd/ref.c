/* The reference implementation of ssd.h. */
#include <math.h>
#include <stddef.h>

#include "ops/ref.h"
#include "ops/ssd/ssd.h"

struct work {
    const struct ssd_shape *s;
    const struct ssd_call *c;
};

/* Returns row r of [window; chunk] before the convolution. */
static double before_conv(const struct work *a, uint32_t r, uint32_t channel)
{
    uint32_t held = a->s->conv_kernel - 1;
    if (r < held)
        return (double)host_floats(a->c->window_in)[(uint64_t)r * ssd_channels(a->s) + channel];
    return (double)host_floats(a->c->proj)[(uint64_t)(r - held) * a->c->stride + a->c->x_at + channel];
}

static double conv(const struct work *a, uint32_t t, uint32_t channel)
{
    double y = a->c->conv_bias ? (double)host_floats(a->c->conv_bias)[channel] : 0;
    for (uint32_t j = 0; j < a->s->conv_kernel; j++)
        y += before_conv(a, t + j, channel) *
             (double)host_floats(a->c->conv)[(uint64_t)channel * a->s->conv_kernel + j];
    return ref_silu(y);
}

/* Computes one token of one head. in, out: scratch [state_dim], B and C. */
static void ref_step(const struct work *a, uint32_t t, uint32_t head, double *in, double *out)
{
    const struct ssd_shape *s = a->s;
    uint32_t group = head / (s->n_heads / s->n_groups), inner = s->n_heads * s->head_dim, n = s->state_dim;
    const float *row = host_floats(a->c->proj) + (uint64_t)t * a->c->stride;
    double dt = ref_softplus((double)row[a->c->dt_at + head] + (double)host_floats(a->c->dt_bias)[head]);
    dt = fmin(fmax(dt, (double)s->low), (double)s->high);
    double decay = exp(-exp((double)host_floats(a->c->a_log)[head]) * dt);
    for (uint32_t c = 0; c < n; c++) {
        in[c] = conv(a, t, inner + group * n + c);
        out[c] = conv(a, t, inner + (s->n_groups + group) * n + c);
    }
    for (uint32_t r = 0; r < s->head_dim; r++) {
        uint32_t at = head * s->head_dim + r;
        float *state = host_floats_mut(a->c->state_out) + (uint64_t)at * n;
        double x = conv(a, t, at), o = (double)host_floats(a->c->d)[head] * x;
        for (uint32_t c = 0; c < n; c++) {
            double next = decay * (double)state[c] + dt * x * in[c];
            o += next * out[c];
            state[c] = (float)next;
        }
        host_floats_mut(a->c->dst)[(uint64_t)t * inner + at] =
            (float)(o * ref_silu((double)row[a->c->z_at + at]));
    }
}

int ssd_ref(const void *self, const void *what, struct host *host)
{
    const struct work w = {&((const struct ssd *)self)->shape, what};
    const struct ssd_shape *s = w.s;
    double *scratch = host_scratch(host, 2 * (uint64_t)s->state_dim, sizeof *scratch);
    ssd_host_state(s, w.c);
    for (uint32_t head = 0; scratch && head < s->n_heads; head++)
        for (uint32_t t = 0; t < w.c->n; t++)
            ref_step(&w, t, head, scratch, scratch + s->state_dim);
    for (uint32_t i = 0; scratch && i + 1 < s->conv_kernel; i++)
        for (uint32_t c = 0; c < ssd_channels(s); c++)
            host_floats_mut(w.c->window_out)[(uint64_t)i * ssd_channels(s) + c] =
                (float)before_conv(&w, w.c->n + i, c);
    return host_error(host);
}

int ssd_norm_ref(const void *self, const void *what, struct host *host)
{
    const struct ssd_shape *s = &((const struct ssd *)self)->shape;
    const struct ssd_norm_call *c = what;
    uint32_t n = s->n_heads / s->n_groups * s->head_dim;
    for (uint64_t i = 0; i < (uint64_t)c->n * s->n_groups; i++) {
        float *x = host_floats_mut(c->x) + i * n;
        const float *norm = host_floats(c->norm) + i % s->n_groups * n;
        double squares = 0;
        for (uint32_t k = 0; k < n; k++)
            squares += (double)x[k] * (double)x[k];
        for (uint32_t k = 0; k < n; k++)
            x[k] = (float)((double)x[k] / sqrt(squares / n + (double)s->eps) * (double)norm[k]);
    }
    return host_error(host);
}
