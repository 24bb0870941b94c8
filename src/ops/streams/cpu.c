/* The native implementation of streams.h. A block of work is some channels, or one stream, of one token. */
#include "base/mem.h"
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/streams/streams.h"

/* Channels of a block of `mix`. */
enum { PIECE = 512 };

struct job {
    const struct streams_shape *shape;
    const struct loops *loops;
    const void *call;
    uint32_t pieces;
    float *weights; /* PIECE floats a thread */
};

static void norm_stream(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct streams_shape *s = j->shape;
    const struct streams_norm_call *c = j->call;
    uint64_t t = i / s->n_streams, stream = i % s->n_streams;
    float *x = host_floats_mut(c->x) + (uint64_t)i * s->hidden;
    (void)thread;
    if (c->add) {
        float by = host_floats(c->by)[t * c->by_stride + stream] / (float)s->n_streams;
        j->loops->sigmoid(&by, 1, &by);
        j->loops->add_scaled(x, host_floats(c->add) + t * s->hidden, 2 * by, s->hidden);
    }
    if (c->dst)
        j->loops->norm(x, host_floats(c->norm) + stream * s->hidden, s->hidden, s->eps,
                       host_floats_mut(c->dst) + (uint64_t)i * s->hidden);
}

int streams_norm_cpu(const void *self, const void *what, struct host *h)
{
    struct job j = {.shape = &((const struct streams *)self)->shape, .loops = loops_of(h), .call = what};
    team_for(h->team, ((const struct streams_norm_call *)what)->n * j.shape->n_streams, norm_stream, &j);
    return host_error(h);
}

int streams_low_cpu(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_low_call *c = what;
    float *weights = host_scratch(h, c->rank, sizeof *weights);
    for (uint32_t t = 0; weights && t < c->n; t++) {
        float *low = host_floats_mut(c->low) + (uint64_t)t * c->stride;
        for (uint32_t k = 0; k < c->rank; k++)
            low[k] /= (float)s->n_streams;
        loops_of(h)->sigmoid(low, c->rank, weights);
        for (uint32_t k = 0; k < c->rank; k++)
            low[k] *= weights[k];
    }
    return host_error(h);
}

static void mix_piece(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct streams_shape *s = j->shape;
    const struct streams_mix_call *c = j->call;
    uint32_t first = i % j->pieces * PIECE, n = (uint32_t)size_min(PIECE, s->hidden - first);
    uint64_t t = i / j->pieces, at = t * s->n_streams * s->hidden + first;
    float *dst = host_floats_mut(c->dst) + t * s->hidden + first,
          *weights = j->weights + (uint64_t)thread * PIECE;
    for (uint32_t stream = 0; stream < s->n_streams; stream++, at += s->hidden) {
        const float *normed = host_floats(c->normed) + at;
        j->loops->sigmoid(host_floats(c->up) + at, n, weights);
        for (uint32_t k = 0; k < n; k++)
            dst[k] = (stream ? dst[k] : 0) + weights[k] * normed[k];
    }
    for (uint32_t k = 0; k < n; k++)
        dst[k] /= (float)s->n_streams;
}

int streams_mix_cpu(const void *self, const void *what, struct host *h)
{
    struct job j = {.shape = &((const struct streams *)self)->shape, .loops = loops_of(h), .call = what};
    j.pieces = div_up(j.shape->hidden, PIECE);
    j.weights = host_scratch(h, (uint64_t)team_n_threads(h->team) * PIECE, sizeof *j.weights);
    if (j.weights)
        team_for(h->team, ((const struct streams_mix_call *)what)->n * j.pieces, mix_piece, &j);
    return host_error(h);
}
