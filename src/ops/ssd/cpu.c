#include "ops/ssd/cpu.h"

#include <string.h>

#include "base/mem.h"
#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/ssd/ssd.h"

/* Tokens and channels of a block of preparation. */
enum { TOKENS = 16, CHANNELS = 128 };

/* A token's prepared row has the channels, then the time steps and the decays [n_heads]. */
struct job {
    const struct ssd_shape *shape;
    const struct ssd_call *call;
    const struct loops *loops;
    float *prepared;
    uint64_t row;
    float *turned;      /* ssd_unit's scratch, one a thread */
    const float **rows; /* one a thread: [TOKENS + taps - 1] */
    uint32_t n_channels, n_units;
};

static uint64_t row_floats(const struct ssd_shape *s)
{
    return ssd_channels(s) + 2 * (uint64_t)s->n_heads;
}

uint64_t ssd_cpu_scratch(const struct ssd_shape *s, uint32_t n)
{
    return n * row_floats(s);
}

/* Returns row r of [window; chunk] before the convolution. */
static const float *before_conv(const struct job *j, uint32_t r)
{
    uint32_t held = j->shape->conv_kernel - 1;
    return r < held ? host_floats(j->call->window_in) + (uint64_t)r * j->n_channels
                    : host_floats(j->call->proj) + (uint64_t)(r - held) * j->call->stride + j->call->x_at;
}

static void run_times(const struct job *j, uint32_t t)
{
    const struct ssd_shape *s = j->shape;
    const struct ssd_call *c = j->call;
    float *row = j->prepared + t * j->row + j->n_channels;
    const struct ssd_steps steps = {.dt = host_floats(c->proj) + (uint64_t)t * c->stride + c->dt_at,
                                    .bias = host_floats(c->dt_bias),
                                    .a_log = host_floats(c->a_log),
                                    .n = s->n_heads,
                                    .low = s->low,
                                    .high = s->high,
                                    .out_dt = row,
                                    .decay = row + s->n_heads};
    j->loops->ssd_times(&steps);
}

/* Prepares some tokens of some channels; the unit after the last channels computes the time steps. */
static void prepare_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t unit = block % j->n_units, first = block / j->n_units * TOKENS, channel = unit * CHANNELS;
    uint32_t n = (uint32_t)size_min(TOKENS, j->call->n - first), taps = j->shape->conv_kernel;
    if (unit == j->n_units - 1) {
        for (uint32_t t = first; t < first + n; t++)
            run_times(j, t);
        return;
    }
    const float **rows = j->rows + (uint64_t)thread * (TOKENS + taps);
    for (uint32_t i = 0; i < n + taps - 1; i++)
        rows[i] = before_conv(j, first + i) + channel;
    const struct ssd_unit u = {.rows = rows,
                               .conv = host_floats(j->call->conv) + (uint64_t)channel * taps,
                               .bias = j->call->conv_bias ? host_floats(j->call->conv_bias) + channel : NULL,
                               .turned = j->turned + (uint64_t)thread * CHANNELS * taps,
                               .dim = (uint32_t)size_min(CHANNELS, j->n_channels - channel),
                               .taps = taps,
                               .n = n,
                               .out = j->prepared + first * j->row + channel,
                               .out_stride = j->row};
    j->loops->ssd_prepare(&u);
}

static void walk_head(void *ctx, uint32_t head, uint32_t thread)
{
    const struct job *j = ctx;
    const struct ssd_shape *s = j->shape;
    const struct ssd_call *c = j->call;
    uint64_t inner = (uint64_t)s->n_heads * s->head_dim, at = (uint64_t)head * s->head_dim;
    uint64_t group = head / (s->n_heads / s->n_groups);
    (void)thread;
    const struct ssd_head h = {.x = j->prepared + at,
                               .b = j->prepared + inner + group * s->state_dim,
                               .c = j->prepared + inner + (s->n_groups + group) * s->state_dim,
                               .z = host_floats(c->proj) + c->z_at + at,
                               .dt = j->prepared + j->n_channels + head,
                               .decay = j->prepared + j->n_channels + s->n_heads + head,
                               .stride = j->row,
                               .z_stride = c->stride,
                               .state = host_floats_mut(c->state_out) + at * s->state_dim,
                               .out = host_floats_mut(c->dst) + at,
                               .out_stride = inner,
                               .n = c->n,
                               .head_dim = s->head_dim,
                               .state_dim = s->state_dim,
                               .d = host_floats(c->d)[head]};
    j->loops->ssd_walk(&h);
}

int ssd_cpu(const void *self, const void *what, struct host *host)
{
    const struct ssd_shape *s = &((const struct ssd *)self)->shape;
    const struct ssd_call *c = what;
    struct job j = {.shape = s,
                    .call = c,
                    .loops = loops_of(host),
                    .row = row_floats(s),
                    .n_channels = ssd_channels(s),
                    .n_units = div_up(ssd_channels(s), CHANNELS) + 1};
    uint32_t n_threads = team_n_threads(host->team);
    j.prepared = c->scratch ? host_floats_mut(c->scratch) : host_scratch(host, c->n * j.row, sizeof(float));
    j.turned = host_scratch(host, (uint64_t)n_threads * CHANNELS * s->conv_kernel, sizeof(float));
    j.rows = host_scratch(host, (uint64_t)n_threads * (TOKENS + s->conv_kernel), sizeof *j.rows);
    if (host_error(host) < 0)
        return host_error(host);
    team_for(host->team, div_up(c->n, TOKENS) * j.n_units, prepare_block, &j);
    for (uint32_t i = 0; i + 1 < s->conv_kernel; i++)
        memcpy(host_floats_mut(c->window_out) + (uint64_t)i * j.n_channels, before_conv(&j, c->n + i),
               j.n_channels * sizeof(float));
    ssd_host_state(s, c);
    team_for(host->team, s->n_heads, walk_head, &j);
    return 0;
}

struct norm_job {
    const struct ssd_shape *shape;
    const struct ssd_norm_call *call;
    const struct loops *loops;
};

static void norm_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct norm_job *j = ctx;
    const struct ssd_shape *s = j->shape;
    uint32_t n = s->n_heads / s->n_groups * s->head_dim;
    float *x = host_floats_mut(j->call->x) + (uint64_t)t * s->n_groups * n;
    (void)thread;
    for (uint32_t group = 0; group < s->n_groups; group++, x += n)
        j->loops->norm(x, host_floats(j->call->norm) + (uint64_t)group * n, n, s->eps, x);
}

int ssd_norm_cpu(const void *self, const void *what, struct host *host)
{
    struct norm_job j = {&((const struct ssd *)self)->shape, what, loops_of(host)};
    team_for(host->team, j.call->n, norm_token, &j);
    return host_error(host);
}
