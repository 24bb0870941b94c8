/* The reference implementation of streams.h. */
#include <math.h>

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
