/* The native implementation of ngram.h: first the gates and u of all tokens, then the convolutions.
 *
 * The sums of the gates are double: one layer of a model has them, so they need no vectors, and plain C has
 * the same bits with every instruction set. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/ngram/ngram.h"

/* Channels of a block of convolutions. */
enum { PIECE = 512 };

struct job {
    const struct ngram_shape *shape;
    const struct ngram_call *call;
    const struct loops *loops;
    float *u, *gates; /* [n][S H], [n][S] */
    float *sums;      /* 2 PIECE floats a thread */
    uint32_t width, pieces;
};

static void gate_stream(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct ngram_shape *s = j->shape;
    uint64_t t = i / s->n_streams, at = (uint64_t)(i % s->n_streams) * s->hidden;
    const float *row = host_floats(j->call->proj) + t * j->call->stride, *key = row + at,
                *value = row + j->width, *x = host_floats(j->call->x) + t * j->width + at;
    const float *x_norm = host_floats(j->call->x_norm) + at, *k_norm = host_floats(j->call->k_norm) + at,
                *u_norm = s->taps ? host_floats(j->call->u_norm) + at : NULL;
    double xx = 0, kk = 0, vv = 0, xk = 0, scale = (double)s->scale, n = s->hidden, eps = (double)s->eps;
    (void)thread;
    for (uint32_t c = 0; c < s->hidden; c++) {
        double q = (double)x[c], k = (double)key[c] * scale, v = (double)value[c] * scale;
        xx += q * q;
        kk += k * k;
        vv += v * v;
        xk += q * (double)x_norm[c] * k * (double)k_norm[c];
    }
    double gate = xk / (sqrt(xx / n + eps) * sqrt(kk / n + eps) * sqrt(n)),
           size = sqrt(fmax(fabs(gate), 1e-6));
    float g = (float)(gate > 0 ? size : gate < 0 ? -size : gate), *u = j->u + t * j->width + at;
    j->loops->sigmoid(&g, 1, &g);
    float by = (float)((double)g * scale / sqrt((double)g * (double)g * vv / n + eps));
    j->gates[i] = g * s->scale;
    for (uint32_t c = 0; u_norm && c < s->hidden; c++)
        u[c] = value[c] * by * u_norm[c];
}

/* Returns row r of [window; chunk] of u. */
static const float *u_row(const struct job *j, uint64_t r)
{
    uint64_t held = ngram_held(j->shape);
    return r < held ? host_floats(j->call->window_in) + r * j->width : j->u + (r - held) * j->width;
}

static void add_piece(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct ngram_shape *s = j->shape;
    uint32_t first = i % j->pieces * PIECE, n = (uint32_t)size_min(PIECE, j->width - first);
    uint64_t t = i / j->pieces;
    const float *value = host_floats(j->call->proj) + t * j->call->stride + j->width;
    const float *taps = s->taps ? host_floats(j->call->conv) + (uint64_t)first * s->taps : NULL;
    float *x = host_floats_mut(j->call->x) + t * j->width + first;
    float *sum = j->sums + (uint64_t)thread * 2 * PIECE, *weight = sum + PIECE;
    for (uint32_t tap = 0; tap < s->taps; tap++) {
        const float *u = u_row(j, t + (uint64_t)tap * s->dilation) + first;
        for (uint32_t c = 0; c < n; c++)
            sum[c] = (tap ? sum[c] : 0) + taps[(uint64_t)c * s->taps + tap] * u[c];
    }
    if (taps)
        j->loops->sigmoid(sum, n, weight);
    for (uint32_t c = 0; c < n; c++) {
        uint32_t at = first + c;
        x[c] += j->gates[t * s->n_streams + at / s->hidden] * value[at % s->hidden] +
                (taps ? sum[c] * weight[c] : 0);
    }
}

int ngram_cpu(const void *self, const void *what, struct host *h)
{
    struct job j = {.shape = &((const struct ngram *)self)->shape, .call = what, .loops = loops_of(h)};
    uint32_t n = j.call->n, n_streams = j.shape->n_streams;
    uint64_t held = ngram_held(j.shape);
    j.width = n_streams * j.shape->hidden;
    j.pieces = div_up(j.width, PIECE);
    j.u = host_floats_mut(j.call->scratch);
    j.gates = j.u + (uint64_t)n * j.width;
    j.sums = host_scratch(h, (uint64_t)team_n_threads(h->team) * 2 * PIECE, sizeof *j.sums);
    if (!j.sums)
        return host_error(h);
    team_for(h->team, n * n_streams, gate_stream, &j);
    team_for(h->team, n * j.pieces, add_piece, &j);
    for (uint64_t r = 0; r < held; r++)
        memcpy(host_floats_mut(j.call->window_out) + r * j.width, u_row(&j, n + r), j.width * sizeof(float));
    return host_error(h);
}
