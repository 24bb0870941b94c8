#include "ops/delta/cpu.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/team.h"
#include "cpu/vec.h"
#include "ops/delta/delta.h"
#include "ops/loops.h"

/* Tokens of a block of preparation. */
enum { TOKENS = 16 };

/* A token's prepared row: queries [n_k][key], keys [n_k][key], values [n_v][value], decays [n_v] or
 * [n_v][key], betas [n_v]. A head's channels are rounded up to whole vectors. */
struct layout {
    uint32_t key, value; /* floats of a head */
    uint64_t k, v, decay, beta, row;
};

struct job {
    const struct delta_shape *shape;
    const struct delta_call *call;
    const struct loops *loops;
    struct layout at;
    float *prepared;
    float *turned; /* delta_unit's scratch, one a thread */
    uint64_t turned_floats;
    const float **rows; /* one a thread: [TOKENS + taps - 1] */
    uint32_t n_channels;
};

static uint32_t whole_vectors(uint32_t n)
{
    return (uint32_t)size_round_up(n, VEC_LANES);
}

static struct layout lay_out(const struct delta_shape *s)
{
    struct layout at = {.key = whole_vectors(s->k_dim), .value = whole_vectors(s->v_dim)};
    at.k = (uint64_t)s->n_k * at.key;
    at.v = 2 * at.k;
    at.decay = at.v + (uint64_t)s->n_v * at.value;
    at.beta = at.decay + s->n_v * (uint64_t)(s->by_channel ? at.key : 1);
    at.row = at.beta + s->n_v;
    return at;
}

uint64_t delta_cpu_scratch(const struct delta_shape *s, uint32_t n)
{
    return n * lay_out(s).row;
}

/* Returns row r of [window; chunk] before the convolution. */
static const float *before_conv(const struct job *j, uint32_t r)
{
    uint32_t held = j->shape->conv_kernel - 1;
    return r < held ? host_floats(j->call->window_in) + (uint64_t)r * j->n_channels
                    : host_floats(j->call->proj) + (uint64_t)(r - held) * j->call->stride;
}

static void run_channels(const struct job *j, const float *a, float *decays)
{
    const struct delta_shape *s = j->shape;
    for (uint32_t head = 0; head < s->n_v; head++) {
        uint64_t at = (uint64_t)head * s->k_dim;
        float *to = decays + (uint64_t)head * j->at.key;
        const struct delta_channels channels = {.a = a + at,
                                                .bias = host_floats(j->call->dt_bias) + at,
                                                .n = s->k_dim,
                                                .a_log = host_floats(j->call->a_log)[head],
                                                .lower = s->lower,
                                                .decay = to};
        j->loops->delta_channels(&channels);
    }
}

static void run_gates(const struct job *j, uint32_t t)
{
    const struct delta_shape *s = j->shape;
    const struct delta_call *c = j->call;
    const float *from = host_floats(c->proj) + (uint64_t)t * c->stride;
    float *row = j->prepared + t * j->at.row;
    if (s->by_channel) {
        run_channels(j, from + c->a_at, row + j->at.decay);
        j->loops->sigmoid(from + c->b_at, s->n_v, row + j->at.beta);
        return;
    }
    const struct delta_gate g = {.a = from + c->a_at,
                                 .b = from + c->b_at,
                                 .a_log = host_floats(c->a_log),
                                 .bias = host_floats(c->dt_bias),
                                 .n = s->n_v,
                                 .decay = row + j->at.decay,
                                 .beta = row + j->at.beta};
    j->loops->delta_gates(&g);
}

/* Prepares some tokens of one head: queries, keys, values; the unit after the last head computes the
 * gates. */
static void prepare_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct delta_shape *s = j->shape;
    uint32_t n_units = 2 * s->n_k + s->n_v + 1, unit = block % n_units, first = block / n_units * TOKENS;
    uint32_t n = (uint32_t)size_min(TOKENS, j->call->n - first), taps = s->conv_kernel;
    if (unit == n_units - 1) {
        for (uint32_t t = first; t < first + n; t++)
            run_gates(j, t);
        return;
    }
    bool is_value = unit >= 2 * s->n_k;
    uint32_t head = is_value ? unit - 2 * s->n_k : unit, dim = is_value ? s->v_dim : s->k_dim;
    uint64_t channel = (is_value ? 2 * (uint64_t)s->n_k * s->k_dim : 0) + (uint64_t)head * dim;
    const float **rows = j->rows + (uint64_t)thread * (TOKENS + taps);
    for (uint32_t i = 0; i < n + taps - 1; i++)
        rows[i] = before_conv(j, first + i) + channel;
    const struct delta_unit u = {
        .rows = rows,
        .conv = host_floats(j->call->conv) + channel * taps,
        .turned = j->turned + thread * j->turned_floats,
        .dim = dim,
        .taps = taps,
        .n = n,
        .divisor = is_value        ? 0
                   : unit < s->n_k ? sqrtf((float)s->k_dim)
                                   : 1,
        .out = j->prepared + first * j->at.row +
               (is_value ? j->at.v + (uint64_t)head * j->at.value : (uint64_t)unit * j->at.key),
        .out_stride = j->at.row};
    j->loops->delta_prepare(&u);
}

static void walk_head(void *ctx, uint32_t head, uint32_t thread)
{
    const struct job *j = ctx;
    const struct delta_shape *s = j->shape;
    const struct delta_call *c = j->call;
    uint32_t key_head = delta_key_head(s, head);
    (void)thread;
    const struct delta_head h = {
        .q = j->prepared + (uint64_t)key_head * j->at.key,
        .k = j->prepared + j->at.k + (uint64_t)key_head * j->at.key,
        .v = j->prepared + j->at.v + (uint64_t)head * j->at.value,
        .z = host_floats(c->proj) + c->z_at + (uint64_t)head * s->v_dim,
        .decay = j->prepared + j->at.decay + head * (uint64_t)(s->by_channel ? j->at.key : 1),
        .beta = j->prepared + j->at.beta + head,
        .norm = host_floats(c->norm),
        .by_channel = s->by_channel,
        .stride = j->at.row,
        .z_stride = c->stride,
        .state = host_floats_mut(c->state_out) + (uint64_t)head * s->v_dim * s->k_dim,
        .out = host_floats_mut(c->dst) + (uint64_t)head * s->v_dim,
        .out_stride = (uint64_t)s->n_v * s->v_dim,
        .n = c->n,
        .k_dim = s->k_dim,
        .v_dim = s->v_dim,
        .eps = s->eps,
        .sigmoid = s->sigmoid};
    j->loops->delta_walk(&h);
}

int delta_cpu(const void *self, const void *what, struct host *host)
{
    const struct delta_shape *s = &((const struct delta *)self)->shape;
    const struct delta_call *c = what;
    struct job j = {.shape = s,
                    .call = c,
                    .loops = loops_of(host),
                    .at = lay_out(s),
                    .turned_floats = size_max(s->k_dim, s->v_dim) * (uint64_t)s->conv_kernel,
                    .n_channels = 2 * s->n_k * s->k_dim + s->n_v * s->v_dim};
    uint32_t n_threads = team_n_threads(host->team);
    j.prepared =
        c->scratch ? host_floats_mut(c->scratch) : host_scratch(host, c->n * j.at.row, sizeof(float));
    j.turned = host_scratch(host, n_threads * j.turned_floats, sizeof(float));
    j.rows = host_scratch(host, (uint64_t)n_threads * (TOKENS + s->conv_kernel), sizeof *j.rows);
    if (host_error(host) < 0)
        return host_error(host);
    team_for(host->team, div_up(c->n, TOKENS) * (2 * s->n_k + s->n_v + 1), prepare_block, &j);
    for (uint32_t i = 0; i + 1 < s->conv_kernel; i++)
        memcpy(host_floats_mut(c->window_out) + (uint64_t)i * j.n_channels, before_conv(&j, c->n + i),
               j.n_channels * sizeof(float));
    delta_host_state(s, c);
    team_for(host->team, s->n_v, walk_head, &j);
    return 0;
}
