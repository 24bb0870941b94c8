/* The reference implementation of compressed.h. */
#include <math.h>

#include "ops/compressed/compressed.h"
#include "ops/ref.h"

/* Turns the last channels of x; direction -1: back. */
static void ref_turn(const struct compressed_shape *s, const float *angles, double direction, double *x)
{
    double *last = x + s->dim - s->rope_dim;
    for (uint32_t i = 0; i < s->rope_dim; i += 2) {
        double co = (double)angles[i], si = direction * (double)angles[i + 1], u = last[i], v = last[i + 1];
        last[i] = u * co - v * si;
        last[i + 1] = v * co + u * si;
    }
}

/* Writes x as floats to y, or into the cache's row. */
static void put(const struct compressed_shape *s, const double *x, float *y, void *row)
{
    for (uint32_t c = 0; c < s->dim; c++)
        y[c] = (float)x[c];
    if (row)
        kv_row_put(s->kv_type, y, s->dim, row);
}

int compressed_turn_ref(const void *self, const void *what, struct host *host)
{
    const struct compressed_shape *s = &((const struct compressed *)self)->shape;
    const struct compressed_turn_call *c = what;
    double *v = host_scratch(host, s->dim, sizeof *v);
    float *row = host_scratch(host, s->dim, sizeof *row);
    for (uint32_t t = 0; v && row && t < c->n; t++)
        for (uint32_t h = 0; h < c->n_heads; h++) {
            const float *x = host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * s->dim;
            uint64_t at = (uint64_t)t * c->y_stride + (uint64_t)h * s->dim;
            for (uint32_t i = 0; i < s->dim; i++)
                v[i] = (double)x[i];
            if (c->norms && c->norm)
                ref_norm(x, host_floats(c->norm), s->dim, (double)s->eps, v);
            else if (c->norms)
                ref_unit(v, s->dim, (double)s->eps, v);
            ref_turn(s, host_floats(c->rope) + (uint64_t)t * s->rope_dim, 1, v);
            put(s, v, c->y ? host_floats_mut(c->y) + at : row, compressed_turned_at(s, c, t));
        }
    return host_error(host);
}

/* A sum in progress of one channel. */
struct ref_sum {
    double top, total, sum;
};

/* Returns channel `at` of the state's sum `idx`. */
static struct ref_sum resume(const struct compressed_shape *s, const struct compressed_pool_call *c,
                             uint32_t idx, uint32_t at)
{
    const float *from = host_floats(c->state_in) + (uint64_t)idx * 3 * s->dim + at;
    return (struct ref_sum){(double)from[0], (double)from[s->dim], (double)from[2 * (uint64_t)s->dim]};
}

static void suspend(const struct compressed_shape *s, const struct compressed_pool_call *c, uint32_t idx,
                    uint32_t at, struct ref_sum sum)
{
    float *to = host_floats_mut(c->state_out) + (uint64_t)idx * 3 * s->dim + at;
    to[0] = (float)sum.top;
    to[s->dim] = (float)sum.total;
    to[2 * (uint64_t)s->dim] = (float)sum.sum;
}

/* Adds channel `at` of tokens from .. to - 1. */
static void add(const struct compressed_shape *s, const struct compressed_pool_call *c, uint32_t from,
                uint32_t to, uint32_t at, struct ref_sum *sum)
{
    for (uint32_t t = from; t < to; t++) {
        uint64_t i = (uint64_t)t * c->stride + at;
        uint64_t j = (uint64_t)((c->pos + t) % s->ratio) * compressed_width(s) + at;
        double gate = (double)host_floats(c->gates)[i] + (c->bias ? (double)host_floats(c->bias)[j] : 0);
        double top = sum->total == 0 || gate > sum->top ? gate : sum->top;
        double keep = sum->total == 0 ? 0 : exp(sum->top - top), weight = exp(gate - top);
        sum->total = sum->total * keep + weight;
        sum->sum = sum->sum * keep + weight * (double)host_floats(c->kv)[i];
        sum->top = top;
    }
}

static void pool_block(const struct compressed_shape *s, const struct compressed_pool_call *c,
                       const struct compressed_block *b, double *mean, float *row)
{
    const struct ref_sum none = {0};
    const float *angles = b->resumes ? host_floats(c->state_in) + 3 * (uint64_t)compressed_width(s)
                                     : host_floats(c->rope) + (uint64_t)b->from * s->rope_dim;
    for (uint32_t i = 0; i < s->dim; i++) {
        struct ref_sum sum = b->resumes ? resume(s, c, 0, i) : b->follows ? resume(s, c, 1, i) : none;
        add(s, c, b->before, b->from, i, &sum);
        add(s, c, b->from, b->to, i + (s->overlaps ? s->dim : 0), &sum);
        mean[i] = sum.sum / sum.total;
        if (b->is_last)
            suspend(s, c, 0, i, b->is_whole ? none : sum);
        if (b->is_last && s->overlaps) {
            struct ref_sum next = b->resumes ? resume(s, c, 1, i) : none;
            add(s, c, b->from, b->to, i, &next);
            suspend(s, c, 1, i, next);
        }
    }
    for (uint32_t i = 0; b->is_last && i < s->rope_dim; i++)
        host_floats_mut(c->state_out)[3 * (uint64_t)compressed_width(s) + i] = angles[i];
    if (!b->is_whole)
        return;
    ref_unit(mean, s->dim, (double)s->eps, mean);
    for (uint32_t i = 0; i < s->dim; i++)
        mean[i] *= (double)host_floats(c->norm)[i];
    for (uint32_t i = 0; c->plain && i < s->dim; i++)
        host_floats_mut(c->plain)[(uint64_t)(b->to - 1) * s->dim + i] = (float)mean[i];
    for (uint32_t i = 0; c->plain && i < s->rope_dim; i++)
        host_floats_mut(c->angles)[(uint64_t)(b->to - 1) * s->rope_dim + i] = angles[i];
    ref_turn(s, angles, 1, mean);
    put(s, mean, row, compressed_far_at(s, c->blocks, c->layer_off, b->idx));
}

int compressed_pool_ref(const void *self, const void *what, struct host *host)
{
    const struct compressed_shape *s = &((const struct compressed *)self)->shape;
    const struct compressed_pool_call *c = what;
    double *mean = host_scratch(host, s->dim, sizeof *mean);
    float *row = host_scratch(host, s->dim, sizeof *row);
    for (uint32_t i = 0; mean && row && i < compressed_n_blocks(s, c); i++) {
        const struct compressed_block b = compressed_block_at(s, c, i);
        pool_block(s, c, &b, mean, row);
    }
    return host_error(host);
}

/* Computes one head of a token. scores: scratch for all rows. */
static void attend_head(const struct compressed_shape *s, const struct compressed_attend_call *c, uint32_t t,
                        uint32_t h, double *scores, double *sums)
{
    const float *q = host_floats(c->q) + (uint64_t)t * c->q_stride + (uint64_t)h * s->dim;
    uint32_t n_near = compressed_n_near(s, c->pos + t), n = n_near + compressed_n_far(s, c->pos + t);
    double sink = (double)host_floats(c->sinks)[h], top = sink, total;
    for (uint32_t r = 0; r < n; r++) {
        const void *row = compressed_seen_at(s, c, t, n_near, r);
        scores[r] = 0;
        for (uint32_t i = 0; i < s->dim; i++)
            scores[r] += (double)q[i] * (double)kv_row_get(s->kv_type, row, s->dim, i);
        scores[r] *= (double)s->scale;
        top = scores[r] > top ? scores[r] : top;
    }
    total = exp(sink - top);
    for (uint32_t i = 0; i < s->dim; i++)
        sums[i] = 0;
    for (uint32_t r = 0; r < n; r++) {
        const void *row = compressed_seen_at(s, c, t, n_near, r);
        double weight = exp(scores[r] - top);
        total += weight;
        for (uint32_t i = 0; i < s->dim; i++)
            sums[i] += weight * (double)kv_row_get(s->kv_type, row, s->dim, i);
    }
    for (uint32_t i = 0; i < s->dim; i++)
        sums[i] /= total;
    ref_turn(s, host_floats(c->rope) + (uint64_t)t * s->rope_dim, -1, sums);
    put(s, sums, host_floats_mut(c->dst) + ((uint64_t)t * s->n_heads + h) * s->dim, NULL);
}

int compressed_attend_ref(const void *self, const void *what, struct host *host)
{
    const struct compressed_shape *s = &((const struct compressed *)self)->shape;
    const struct compressed_attend_call *c = what;
    uint64_t most = (uint64_t)s->window + compressed_n_far(s, c->pos + c->n - 1);
    double *scores = host_scratch(host, most, sizeof *scores),
           *sums = host_scratch(host, s->dim, sizeof *sums);
    for (uint32_t t = 0; scores && sums && t < c->n; t++)
        for (uint32_t h = 0; h < s->n_heads; h++)
            attend_head(s, c, t, h, scores, sums);
    return host_error(host);
}
