/* The reference implementation of streams.h. */
#include <math.h>
#include <stddef.h>

#include "args.h"
#include "ops/ref.h"
#include "ops/streams/streams.h"

int streams_norm_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_norm_call *c = what;
    double *row = host_scratch(h, s->hidden, sizeof *row);
    for (uint64_t i = 0; row && i < (uint64_t)c->n * s->n_streams; i++) {
        uint64_t t = i / s->n_streams, stream = i % s->n_streams;
        float *x = host_floats_mut(c->x) + i * s->hidden;
        for (uint32_t k = 0; c->add && k < s->hidden; k++) {
            double logit = (double)host_floats(c->by)[t * c->by_stride + stream];
            x[k] = (float)((double)x[k] + 2 * ref_sigmoid(logit / s->n_streams) *
                                              (double)host_floats(c->add)[t * s->hidden + k]);
        }
        if (!c->dst)
            continue;
        ref_norm(x, host_floats(c->norm) + stream * s->hidden, s->hidden, (double)s->eps, row);
        for (uint32_t k = 0; k < s->hidden; k++)
            host_floats_mut(c->dst)[i * s->hidden + k] = (float)row[k];
    }
    return host_error(h);
}

int streams_low_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_low_call *c = what;
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t k = 0; k < c->rank; k++) {
            float *v = host_floats_mut(c->low) + (uint64_t)t * c->stride + k;
            *v = (float)ref_silu((double)*v / s->n_streams);
        }
    return host_error(h);
}

int streams_mix_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_mix_call *c = what;
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t k = 0; k < s->hidden; k++) {
            double sum = 0;
            for (uint32_t i = 0; i < s->n_streams; i++) {
                uint64_t at = ((uint64_t)t * s->n_streams + i) * s->hidden + k;
                sum += ref_sigmoid((double)host_floats(c->up)[at]) * (double)host_floats(c->normed)[at];
            }
            host_floats_mut(c->dst)[(uint64_t)t * s->hidden + k] = (float)(sum / s->n_streams);
        }
    return host_error(h);
}

int streams_join_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_join_call *c = what;
    uint32_t n = s->n_streams, n_squares = streams_n_squares(s->hidden);
    double *old = host_scratch(h, n, sizeof *old);
    for (uint64_t t = 0; old && t < c->n; t++) {
        float *x = host_floats_mut(c->x) + t * n * s->hidden;
        const float *by = c->add ? host_floats(c->by) + t * c->by_stride : NULL;
        for (uint32_t k = 0; by && k < s->hidden; k++) {
            for (uint32_t j = 0; j < n; j++)
                old[j] = (double)x[(uint64_t)j * s->hidden + k];
            for (uint32_t i = 0; i < n; i++) {
                double sum = (double)by[i] * (double)host_floats(c->add)[t * s->hidden + k];
                for (uint32_t j = 0; j < n; j++)
                    sum += (double)by[n + j * n + i] * old[j];
                x[(uint64_t)i * s->hidden + k] = (float)sum;
            }
        }
        for (uint32_t p = 0; c->squares && p < n_squares; p++) {
            double sum = 0;
            for (uint32_t k = p * STREAMS_PIECE; k < s->hidden && k < (p + 1) * STREAMS_PIECE; k++)
                for (uint32_t i = 0; i < n; i++)
                    sum += (double)x[(uint64_t)i * s->hidden + k] * (double)x[(uint64_t)i * s->hidden + k];
            host_floats_mut(c->squares)[t * n_squares + p] = (float)sum;
        }
    }
    return host_error(h);
}

/* Divides the n numbers m[step * i] by their sum + floor. */
static void ref_share(double *m, uint32_t n, uint32_t step, double floor)
{
    double sum = floor;
    for (uint32_t i = 0; i < n; i++)
        sum += m[(size_t)i * step];
    for (uint32_t i = 0; i < n; i++)
        m[(size_t)i * step] /= sum;
}

/* Makes logits [n][n] a doubly stochastic matrix. */
static void ref_sinkhorn(const struct streams_shape *s, double *m)
{
    uint32_t n = s->n_streams;
    double floor = (double)s->floor;
    for (uint32_t j = 0; j < n; j++) {
        double *row = m + (uint64_t)j * n, top = row[0];
        for (uint32_t k = 1; k < n; k++)
            top = fmax(top, row[k]);
        for (uint32_t k = 0; k < n; k++)
            row[k] = exp(row[k] - top);
        ref_share(row, n, 1, 0);
        for (uint32_t k = 0; k < n; k++)
            row[k] += floor;
    }
    for (uint32_t i = 0; i < s->iterations; i++) {
        for (uint32_t j = 0; i > 0 && j < n; j++)
            ref_share(m + (uint64_t)j * n, n, 1, floor);
        for (uint32_t k = 0; k < n; k++)
            ref_share(m + k, n, n, floor);
    }
}

/* Computes a token's weights of the collapse into pre; those of the join are written over `low`. */
static void ref_weights(const struct streams_shape *s, const struct streams_collapse_call *c, uint64_t t,
                        double *pre, double *matrix)
{
    uint32_t n = s->n_streams, n_squares = streams_n_squares(s->hidden);
    float *low = host_floats_mut(c->low) + t * c->stride;
    const float *scale = host_floats(c->scale), *base = host_floats(c->base);
    double sum = 0;
    for (uint32_t p = 0; p < n_squares; p++)
        sum += (double)host_floats(c->squares)[t * n_squares + p];
    double factor = 1 / sqrt(sum / ((double)n * s->hidden) + (double)s->eps);
    for (uint32_t i = 0; i < streams_n_low(n, c->joins); i++) {
        uint32_t part = i < n ? 0 : i < 2 * n ? 1 : 2;
        double logit = (double)low[i] * factor * (double)scale[part] + (double)base[i];
        if (part == 0 && c->lagged)
            host_floats_mut(c->kept)[t * n + i] = (float)(ref_sigmoid(logit) + (double)s->floor);
        else if (part == 0)
            pre[i] = ref_sigmoid(logit) + (double)s->floor;
        else if (part == 1)
            low[i] = (float)(2 * ref_sigmoid(logit));
        else
            matrix[i - 2 * n] = logit;
    }
    if (!c->joins)
        return;
    ref_sinkhorn(s, matrix);
    for (uint32_t i = 0; i < n * n; i++)
        low[2 * n + i] = (float)matrix[i];
}

int streams_collapse_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_collapse_call *c = what;
    double pre[STREAMS_MOST_JOINED], matrix[STREAMS_MOST_JOINED * STREAMS_MOST_JOINED];
    for (uint64_t t = 0; t < c->n; t++) {
        for (uint32_t i = 0; i < s->n_streams; i++)
            pre[i] = !c->lagged   ? 1.0 / s->n_streams
                     : c->weights ? (double)host_floats(c->weights)[t * s->n_streams + i]
                                  : i == 0;
        if (c->low)
            ref_weights(s, c, t, pre, matrix);
        for (uint32_t k = 0; k < s->hidden; k++) {
            double sum = 0;
            for (uint32_t i = 0; i < s->n_streams; i++)
                sum += pre[i] * (double)host_floats(c->x)[(t * s->n_streams + i) * s->hidden + k];
            host_floats_mut(c->dst)[t * s->hidden + k] = (float)sum;
        }
    }
    return host_error(h);
}

/* Returns the logit of a stream. */
static double ref_logit(const struct streams_shape *s, const struct streams_attend_call *c, const float *x)
{
    double sum = 0, squares = 0;
    for (uint32_t k = 0; k < s->hidden; k++) {
        double w = (double)host_floats(c->score)[k] * (c->norm ? (double)host_floats(c->norm)[k] : 1);
        sum += (double)x[k] * w;
        squares += (double)x[k] * (double)x[k];
    }
    return sum / sqrt(squares / s->hidden + (double)s->eps);
}

/* Mixes the streams x of a token into dst. weights: room for n_kept + 1. */
static void ref_attend(const struct streams_shape *s, const struct streams_attend_call *c, const float *x,
                       double *weights, float *dst)
{
    double top = -INFINITY, all = 0;
    for (uint32_t i = 0; i <= c->n_kept; i++) {
        weights[i] = ref_logit(s, c, x + (uint64_t)i * s->hidden);
        top = fmax(top, weights[i]);
    }
    for (uint32_t i = 0; i <= c->n_kept; i++)
        all += weights[i] = exp(weights[i] - top);
    for (uint32_t k = 0; k < s->hidden; k++) {
        double sum = 0;
        for (uint32_t i = 0; i <= c->n_kept; i++)
            sum += weights[i] / all * (double)x[(uint64_t)i * s->hidden + k];
        dst[k] = (float)sum;
    }
}

int streams_attend_ref(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_attend_call *c = what;
    double *weights = host_scratch(h, s->n_streams, sizeof *weights);
    for (uint64_t t = 0; weights && t < c->n; t++) {
        float *x = host_floats_mut(c->x) + t * s->n_streams * s->hidden;
        for (uint32_t k = 0; c->add && k < s->hidden; k++)
            x[k] = (c->sets ? 0 : x[k]) + host_floats(c->add)[t * s->hidden + k];
        if (c->dst)
            ref_attend(s, c, x, weights, host_floats_mut(c->dst) + t * s->hidden);
        for (uint32_t k = 0; c->keep && k < s->hidden; k++)
            x[(uint64_t)c->keep * s->hidden + k] = x[k];
    }
    return host_error(h);
}
