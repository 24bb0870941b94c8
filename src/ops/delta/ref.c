/* The reference implementation of delta.h. */
#include <math.h>
#include <stddef.h>

#include "args.h"
#include "ops/delta/delta.h"
#include "ops/ref.h"

struct work {
    const struct delta_shape *s;
    const struct delta_call *c;
};

static uint32_t channels(const struct work *a)
{
    return 2 * a->s->n_k * a->s->k_dim + a->s->n_v * a->s->v_dim;
}

/* Returns row r of [window; chunk] before the convolution. */
static double before_conv(const struct work *a, uint32_t r, uint32_t channel)
{
    uint32_t held = a->s->conv_kernel - 1;
    if (r < held)
        return (double)host_floats(a->c->window_in)[(uint64_t)r * channels(a) + channel];
    return (double)host_floats(a->c->proj)[(uint64_t)(r - held) * a->c->stride + channel];
}

static double conv(const struct work *a, uint32_t t, uint32_t channel)
{
    double y = 0;
    for (uint32_t j = 0; j < a->s->conv_kernel; j++)
        y += before_conv(a, t + j, channel) *
             (double)host_floats(a->c->conv)[(uint64_t)channel * a->s->conv_kernel + j];
    return ref_silu(y);
}

/* Sets v to the conv outputs of n channels from `first` on, divided by their length and by `divisor`. */
static void unit_vector(const struct work *a, uint32_t t, uint32_t first, uint32_t n, double divisor,
                        double *v)
{
    double squares = 0;
    for (uint32_t c = 0; c < n; c++) {
        v[c] = conv(a, t, first + c);
        squares += v[c] * v[c];
    }
    for (uint32_t c = 0; c < n; c++)
        v[c] /= sqrt(squares + 1e-6) * divisor;
}

/* Sets the decays of a head's key channels. */
static void ref_decays(const struct work *a, uint32_t t, uint32_t head, double *decay)
{
    uint32_t dk = a->s->k_dim;
    const float *from = host_floats(a->c->proj) + (uint64_t)t * a->c->stride + a->c->a_at;
    double rate = exp((double)host_floats(a->c->a_log)[head]), lower = (double)a->s->lower;
    for (uint32_t c = 0; c < dk; c++) {
        uint32_t at = a->s->by_channel ? head * dk + c : head;
        double x = (double)from[at] + (double)host_floats(a->c->dt_bias)[at];
        decay[c] = exp(lower < 0 ? lower * ref_sigmoid(rate * x) : -rate * ref_softplus(x));
    }
}

/* Computes one token of one value head: updates S and writes o to `out`. q, k, decay: scratch. */
static void ref_step(const struct work *a, uint32_t t, uint32_t head, double *q, double *k, double *decay,
                     double *out)
{
    uint32_t key_head = delta_key_head(a->s, head), dk = a->s->k_dim, dv = a->s->v_dim;
    const float *b = host_floats(a->c->proj) + (uint64_t)t * a->c->stride + a->c->b_at;
    float *state = host_floats_mut(a->c->state_out) + (uint64_t)head * dv * dk;
    unit_vector(a, t, key_head * dk, dk, sqrt((double)dk), q);
    unit_vector(a, t, (a->s->n_k + key_head) * dk, dk, 1, k);
    ref_decays(a, t, head, decay);
    double beta = ref_sigmoid((double)b[head]);
    for (uint32_t r = 0; r < dv; r++) {
        float *s = state + (uint64_t)r * dk;
        double m = 0;
        for (uint32_t c = 0; c < dk; c++)
            m += decay[c] * (double)s[c] * k[c];
        double update = beta * (conv(a, t, 2 * a->s->n_k * dk + head * dv + r) - m);
        out[r] = 0;
        for (uint32_t c = 0; c < dk; c++) {
            double next = decay[c] * (double)s[c] + update * k[c];
            out[r] += next * q[c];
            s[c] = (float)next;
        }
    }
}

static void ref_gated_norm(const struct work *a, uint32_t t, uint32_t head, const double *o)
{
    uint32_t dv = a->s->v_dim;
    const float *z = host_floats(a->c->proj) + (uint64_t)t * a->c->stride + a->c->z_at + (uint64_t)head * dv;
    float *dst = host_floats_mut(a->c->dst) + ((uint64_t)t * a->s->n_v + head) * dv;
    double squares = 0;
    for (uint32_t r = 0; r < dv; r++)
        squares += o[r] * o[r];
    for (uint32_t i = 0; a->c->squares && i < HEAD_SQUARES; i++) {
        double part = 0;
        for (uint32_t r = i * (dv / HEAD_SQUARES); r < (i + 1) * (dv / HEAD_SQUARES); r++)
            part += o[r] * o[r];
        host_floats_mut(a->c->squares)[head * HEAD_SQUARES + i] = (float)part;
    }
    double factor = a->c->squares ? 1 : 1 / sqrt(squares / dv + (double)a->s->eps);
    for (uint32_t r = 0; r < dv; r++)
        dst[r] = (float)(o[r] * factor * (double)host_floats(a->c->norm)[r] *
                         (a->s->sigmoid ? ref_sigmoid : ref_silu)((double)z[r]));
}

int delta_ref(const void *self, const void *what, struct host *host)
{
    const struct work w = {&((const struct delta *)self)->shape, what};
    const struct delta_shape *s = w.s;
    double *scratch = host_scratch(host, 3 * (uint64_t)s->k_dim + s->v_dim, sizeof *scratch);
    delta_host_state(s, w.c);
    for (uint32_t head = 0; scratch && head < s->n_v; head++)
        for (uint32_t t = 0; t < w.c->n; t++) {
            double *decay = scratch + 2 * (size_t)s->k_dim, *o = decay + s->k_dim;
            ref_step(&w, t, head, scratch, scratch + s->k_dim, decay, o);
            ref_gated_norm(&w, t, head, o);
        }
    for (uint32_t i = 0; scratch && i + 1 < s->conv_kernel; i++)
        for (uint32_t c = 0; c < channels(&w); c++)
            host_floats_mut(w.c->window_out)[(uint64_t)i * channels(&w) + c] =
                (float)before_conv(&w, w.c->n + i, c);
    return host_error(host);
}
