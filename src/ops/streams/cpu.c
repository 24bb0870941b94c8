/* The native implementation of streams.h. A block of work is some channels, or one stream, of one token. */
#include <math.h>
#include <string.h>

#include "args.h"
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
    /* PIECE floats a thread; join: STREAMS_PIECE a stream; collapse: n_streams a token; attend: [hidden], the
     * same for all tokens */
    float *weights;
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

/* Adds to the piece of all streams: x_k = post_k add + sum_j comb_jk x_j. old: room for the piece. */
static void join_channels(const struct job *j, uint64_t t, uint32_t first, uint32_t n, float *old)
{
    const struct streams_shape *s = j->shape;
    const struct streams_join_call *c = j->call;
    const float *by = host_floats(c->by) + t * c->by_stride;
    float *x = host_floats_mut(c->x) + t * s->n_streams * s->hidden + first;
    for (uint32_t i = 0; i < s->n_streams; i++)
        memcpy(old + (uint64_t)i * STREAMS_PIECE, x + (uint64_t)i * s->hidden, n * sizeof *x);
    for (uint32_t k = 0; k < s->n_streams; k++) {
        float *to = x + (uint64_t)k * s->hidden;
        memset(to, 0, n * sizeof *to);
        j->loops->add_scaled(to, host_floats(c->add) + t * s->hidden + first, by[k], n);
        for (uint32_t i = 0; i < s->n_streams; i++)
            j->loops->add_scaled(to, old + (uint64_t)i * STREAMS_PIECE, by[s->n_streams * (1 + i) + k], n);
    }
}

/* Channels [first, first + n) of token t. */
struct piece {
    uint64_t t;
    uint32_t first, n;
};

static struct piece piece_of(const struct job *j, uint32_t i)
{
    uint32_t first = i % j->pieces * STREAMS_PIECE;
    return (struct piece){i / j->pieces, first, (uint32_t)size_min(STREAMS_PIECE, j->shape->hidden - first)};
}

static void join_piece(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct streams_shape *s = j->shape;
    const struct streams_join_call *c = j->call;
    const struct piece p = piece_of(j, i);
    if (c->add)
        join_channels(j, p.t, p.first, p.n, j->weights + (uint64_t)thread * s->n_streams * STREAMS_PIECE);
    float sum = 0;
    for (uint32_t k = 0; c->squares && k < s->n_streams; k++)
        sum += j->loops->squares(host_floats(c->x) + (p.t * s->n_streams + k) * s->hidden + p.first, p.n);
    if (c->squares)
        host_floats_mut(c->squares)[i] = sum;
}

int streams_join_cpu(const void *self, const void *what, struct host *h)
{
    struct job j = {.shape = &((const struct streams *)self)->shape, .loops = loops_of(h), .call = what};
    j.pieces = streams_n_squares(j.shape->hidden);
    j.weights = host_scratch(h, (uint64_t)team_n_threads(h->team) * j.shape->n_streams * STREAMS_PIECE,
                             sizeof *j.weights);
    if (j.weights)
        team_for(h->team, ((const struct streams_join_call *)what)->n * j.pieces, join_piece, &j);
    return host_error(h);
}

/* Divides the n numbers m[step * i] by their sum + floor. */
static void share(float *m, uint32_t n, uint32_t step, float floor)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += m[(size_t)i * step];
    for (uint32_t i = 0; i < n; i++)
        m[(size_t)i * step] /= sum + floor;
}

/* Makes logits [n][n] a doubly stochastic matrix. */
static void sinkhorn(const struct job *j, float *m)
{
    uint32_t n = j->shape->n_streams;
    float floor = j->shape->floor;
    for (uint32_t i = 0; i < n; i++) {
        float *row = m + (size_t)i * n, top = row[0];
        for (uint32_t k = 1; k < n; k++)
            top = fmaxf(top, row[k]);
        j->loops->exp_below(row, n, top, row);
        share(row, n, 1, 0);
        for (uint32_t k = 0; k < n; k++)
            row[k] += floor;
    }
    for (uint32_t turn = 0; turn < j->shape->iterations; turn++) {
        for (uint32_t i = 0; turn > 0 && i < n; i++)
            share(m + (size_t)i * n, n, 1, floor);
        for (uint32_t k = 0; k < n; k++)
            share(m + k, n, n, floor);
    }
}

/* Computes the weights of token t from its products: those of the collapse into pre [n_streams], the others
 * in place. */
static void collapse_weights(const struct job *j, uint64_t t, float *pre)
{
    const struct streams_shape *s = j->shape;
    const struct streams_collapse_call *c = j->call;
    uint32_t n = s->n_streams, n_squares = streams_n_squares(s->hidden);
    float *low = host_floats_mut(c->low) + t * c->stride, sum = 0;
    const float *scale = host_floats(c->scale), *base = host_floats(c->base);
    for (uint32_t p = 0; p < n_squares; p++)
        sum += host_floats(c->squares)[t * n_squares + p];
    float factor = 1 / sqrtf(sum / (float)(n * s->hidden) + s->eps);
    for (uint32_t i = 0; i < n; i++)
        pre[i] = low[i] * factor * scale[0] + base[i];
    j->loops->sigmoid(pre, n, pre);
    for (uint32_t i = 0; i < n; i++)
        pre[i] += s->floor;
    if (!c->joins)
        return;
    for (uint32_t i = n; i < streams_n_low(n, true); i++)
        low[i] = low[i] * factor * scale[i < 2 * n ? 1 : 2] + base[i];
    j->loops->sigmoid(low + n, n, low + n);
    for (uint32_t i = n; i < 2 * n; i++)
        low[i] *= 2;
    sinkhorn(j, low + 2 * (uint64_t)n);
}

static void weigh_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    (void)thread;
    const struct streams_collapse_call *c = j->call;
    float *pre = c->lagged ? host_floats_mut(c->kept) : j->weights;
    collapse_weights(j, t, pre + (uint64_t)t * j->shape->n_streams);
}

/* Returns the weight of a stream in the collapse. */
static float weight_of(const struct job *j, uint64_t t, uint32_t stream)
{
    const struct streams_collapse_call *c = j->call;
    uint32_t n = j->shape->n_streams;
    if (c->lagged)
        return c->weights ? host_floats(c->weights)[t * n + stream] : (float)(stream == 0);
    return c->low ? j->weights[t * n + stream] : 1 / (float)n;
}

static void collapse_piece(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct streams_shape *s = j->shape;
    const struct streams_collapse_call *c = j->call;
    const struct piece p = piece_of(j, i);
    float *dst = host_floats_mut(c->dst) + p.t * s->hidden + p.first;
    (void)thread;
    memset(dst, 0, p.n * sizeof *dst);
    for (uint32_t k = 0; k < s->n_streams; k++)
        j->loops->add_scaled(dst, host_floats(c->x) + (p.t * s->n_streams + k) * s->hidden + p.first,
                             weight_of(j, p.t, k), p.n);
}

int streams_collapse_cpu(const void *self, const void *what, struct host *h)
{
    const struct streams_collapse_call *c = what;
    struct job j = {.shape = &((const struct streams *)self)->shape, .loops = loops_of(h), .call = what};
    j.pieces = streams_n_squares(j.shape->hidden);
    j.weights = host_scratch(h, (uint64_t)c->n * j.shape->n_streams, sizeof *j.weights);
    if (j.weights && c->low)
        team_for(h->team, c->n, weigh_token, &j);
    if (j.weights)
        team_for(h->team, c->n * j.pieces, collapse_piece, &j);
    return host_error(h);
}

/* Returns the logit of a stream with weights w. */
static float attend_logit(const struct loops *l, const float *x, const float *w, uint32_t n, float eps)
{
    return l->dot(x, w, n) / sqrtf(l->squares(x, n) / (float)n + eps);
}

static void attend_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct streams_shape *s = j->shape;
    const struct streams_attend_call *c = j->call;
    float *x = host_floats_mut(c->x) + (uint64_t)t * s->n_streams * s->hidden, all = 0, top = -INFINITY,
          logits[STREAMS_MOST_ATTENDED];
    if (c->add && c->sets)
        memcpy(x, host_floats(c->add) + (uint64_t)t * s->hidden, s->hidden * sizeof *x);
    else if (c->add)
        j->loops->add_scaled(x, host_floats(c->add) + (uint64_t)t * s->hidden, 1, s->hidden);
    (void)thread;
    if (!c->dst)
        return;
    for (uint32_t i = 0; i <= c->n_kept; i++) {
        logits[i] = attend_logit(j->loops, x + (uint64_t)i * s->hidden, j->weights, s->hidden, s->eps);
        top = fmaxf(top, logits[i]);
    }
    j->loops->exp_below(logits, c->n_kept + 1, top, logits);
    for (uint32_t i = 0; i <= c->n_kept; i++)
        all += logits[i];
    float *dst = host_floats_mut(c->dst) + (uint64_t)t * s->hidden;
    memset(dst, 0, s->hidden * sizeof *dst);
    for (uint32_t i = 0; i <= c->n_kept; i++)
        j->loops->add_scaled(dst, x + (uint64_t)i * s->hidden, logits[i] / all, s->hidden);
    if (c->keep)
        memcpy(x + (uint64_t)c->keep * s->hidden, x, s->hidden * sizeof *x);
}

int streams_attend_cpu(const void *self, const void *what, struct host *h)
{
    const struct streams_attend_call *c = what;
    struct job j = {.shape = &((const struct streams *)self)->shape, .loops = loops_of(h), .call = what};
    j.weights = host_scratch(h, j.shape->hidden, sizeof *j.weights);
    for (uint32_t k = 0; j.weights && c->dst && k < j.shape->hidden; k++)
        j.weights[k] = host_floats(c->score)[k] * (c->norm ? host_floats(c->norm)[k] : 1);
    if (j.weights)
        team_for(h->team, c->n, attend_token, &j);
    return host_error(h);
}
