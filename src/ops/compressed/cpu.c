/* The native implementation of compressed.h. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/team.h"
#include "ops/attention/cpu.h"
#include "ops/compressed/compressed.h"
#include "ops/loops.h"

/* HEADS: query heads of a block of work. WHOLE: channels of a whole vector. */
enum { HEADS = 8, WHOLE = 16 };

struct job {
    const struct compressed_shape *shape;
    const void *call;
    const struct loops *loops;
    float *memory; /* thread_floats for each thread */
    uint64_t thread_floats;
};

/* Runs n blocks of work with scratch memory. */
static int run(const void *self, const void *call, struct host *h, uint32_t n, uint64_t thread_floats,
               void (*block)(void *, uint32_t, uint32_t))
{
    struct job j = {.shape = &((const struct compressed *)self)->shape,
                    .call = call,
                    .loops = loops_of(h),
                    .thread_floats = size_round_up(thread_floats, WHOLE)};
    j.memory = host_scratch(h, team_n_threads(h->team) * j.thread_floats, sizeof *j.memory);
    if (j.memory)
        team_for(h->team, n, block, &j);
    return host_error(h);
}

/* Turns the last channels of a vector. */
static void turn_last(const struct job *j, const float *angles, float *x)
{
    const struct compressed_shape *s = j->shape;
    j->loops->turn(x + s->dim - s->rope_dim, angles, s->rope_dim / 2, 0);
}

/* ---- turn ---- */

static void turn_heads(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct compressed_shape *s = j->shape;
    const struct compressed_turn_call *c = j->call;
    uint32_t blocks = div_up(c->n_heads, HEADS), t = i / blocks, h = i % blocks * HEADS;
    uint32_t end = (uint32_t)size_min((uint64_t)h + HEADS, c->n_heads);
    float *row = j->memory + thread * j->thread_floats;
    for (; h < end; h++) {
        const float *x = host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * s->dim;
        float *y = c->y ? host_floats_mut(c->y) + (uint64_t)t * c->y_stride + (uint64_t)h * s->dim : row;
        if (c->norms && c->norm)
            j->loops->norm(x, host_floats(c->norm), s->dim, s->eps, y);
        else if (c->norms)
            j->loops->unit(x, s->dim, s->eps, y);
        else
            memmove(y, x, s->dim * sizeof *y);
        turn_last(j, host_floats(c->rope) + (uint64_t)t * s->rope_dim, y);
        void *to = compressed_turned_at(s, c, t);
        if (to)
            loops_put_row(j->loops, s->kv_type, y, s->dim, to);
    }
}

int compressed_turn_cpu(const void *self, const void *what, struct host *h)
{
    const struct compressed_turn_call *c = what;
    return run(self, what, h, c->n * div_up(c->n_heads, HEADS), ((const struct compressed *)self)->shape.dim,
               turn_heads);
}

/* ---- pool ---- */

/* Sums in progress and scratch, [dim] each. */
struct sums {
    float *top, *total, *sum;
    float *keep, *weight;
};

static struct sums sums_at(float *memory, uint32_t dim)
{
    return (struct sums){memory, memory + dim, memory + 2 * (uint64_t)dim, memory + 3 * (uint64_t)dim,
                         memory + 4 * (uint64_t)dim};
}

/* Begins with a sum of the state; NULL: with an empty one. */
static void begin_sums(const struct sums *m, uint32_t dim, const float *from)
{
    if (from)
        memcpy(m->top, from, 3 * (uint64_t)dim * sizeof *from);
    else
        memset(m->top, 0, 3 * (uint64_t)dim * sizeof *m->top);
}

/* Adds channels at .. of tokens from .. to - 1. */
static void add_tokens(const struct job *j, const struct sums *m, uint32_t from, uint32_t to, uint32_t at)
{
    const struct compressed_shape *s = j->shape;
    const struct compressed_pool_call *c = j->call;
    for (uint32_t t = from; t < to; t++) {
        const float *kv = host_floats(c->kv) + (uint64_t)t * c->stride + at;
        const float *gates = host_floats(c->gates) + (uint64_t)t * c->stride + at;
        const float *bias =
            c->bias ? host_floats(c->bias) + (uint64_t)((c->pos + t) % s->ratio) * compressed_width(s) + at
                    : NULL;
        for (uint32_t i = 0; i < s->dim; i++) {
            float gate = gates[i] + (bias ? bias[i] : 0), before = m->total[i] == 0 ? gate : m->top[i];
            m->top[i] = gate > before ? gate : before;
            m->keep[i] = before - m->top[i];
            m->weight[i] = gate - m->top[i];
        }
        j->loops->exp_below(m->keep, s->dim, 0, m->keep);
        j->loops->exp_below(m->weight, s->dim, 0, m->weight);
        for (uint32_t i = 0; i < s->dim; i++) {
            m->total[i] = m->total[i] * m->keep[i] + m->weight[i];
            m->sum[i] = m->sum[i] * m->keep[i] + m->weight[i] * kv[i];
        }
    }
}

/* Writes the state after the chunk; m: the sums of its last block, which are used up. */
static void write_state(const struct job *j, const struct compressed_block *b, const struct sums *m,
                        const float *angles)
{
    const struct compressed_shape *s = j->shape;
    const struct compressed_pool_call *c = j->call;
    const float *in = host_floats(c->state_in);
    float *out = host_floats_mut(c->state_out);
    uint64_t one = 3 * (uint64_t)s->dim;
    if (b->is_whole)
        begin_sums(m, s->dim, NULL);
    memcpy(out, m->top, one * sizeof *out);
    if (s->overlaps) {
        begin_sums(m, s->dim, b->resumes ? in + one : NULL);
        add_tokens(j, m, b->from, b->to, 0);
        memcpy(out + one, m->top, one * sizeof *out);
    }
    memcpy(out + 3 * (uint64_t)compressed_width(s), angles, s->rope_dim * sizeof *out);
}

static void pool_block(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct compressed_shape *s = j->shape;
    const struct compressed_pool_call *c = j->call;
    const struct compressed_block b = compressed_block_at(s, c, i);
    const struct sums m = sums_at(j->memory + thread * j->thread_floats, s->dim);
    const float *in = host_floats(c->state_in);
    const float *angles = b.resumes ? in + 3 * (uint64_t)compressed_width(s)
                                    : host_floats(c->rope) + (uint64_t)b.from * s->rope_dim;
    begin_sums(&m, s->dim, b.resumes ? in : b.follows ? in + 3 * (uint64_t)s->dim : NULL);
    add_tokens(j, &m, b.before, b.from, 0);
    add_tokens(j, &m, b.from, b.to, s->overlaps ? s->dim : 0);
    if (b.is_whole) {
        float *row = m.keep;
        for (uint32_t k = 0; k < s->dim; k++)
            m.weight[k] = m.sum[k] / m.total[k];
        j->loops->norm(m.weight, host_floats(c->norm), s->dim, s->eps, row);
        if (c->plain) {
            uint64_t t = b.to - 1;
            memcpy(host_floats_mut(c->plain) + t * s->dim, row, s->dim * sizeof *row);
            memcpy(host_floats_mut(c->angles) + t * s->rope_dim, angles, s->rope_dim * sizeof *row);
        }
        turn_last(j, angles, row);
        loops_put_row(j->loops, s->kv_type, row, s->dim,
                      compressed_far_at(s, c->blocks, c->layer_off, b.idx));
    }
    if (b.is_last)
        write_state(j, &b, &m, angles);
}

int compressed_pool_cpu(const void *self, const void *what, struct host *h)
{
    const struct compressed_shape *s = &((const struct compressed *)self)->shape;
    return run(self, what, h, compressed_n_blocks(s, what), 5 * (uint64_t)s->dim, pool_block);
}

/* ---- attend ---- */

/* Memory for a block of work. */
struct room {
    float *rows, *angles; /* the rows of a tile; the angles that turn back */
    struct attention_tile tile;
};

/* Returns the floats of a block's memory; lays it out unless `memory` is NULL. */
static uint64_t place(const struct compressed_shape *s, float *memory, struct room *r)
{
    const uint64_t dim = size_round_up(s->dim, WHOLE);
    const uint64_t floats[] = {ATTENTION_POSITIONS * dim,
                               s->rope_dim,
                               HEADS * dim,
                               (uint64_t)HEADS * ATTENTION_POSITIONS,
                               (uint64_t)HEADS * VEC_LANES,
                               HEADS * dim,
                               HEADS,
                               HEADS,
                               HEADS};
    enum { N = sizeof floats / sizeof *floats };
    float *at[N] = {0};
    uint64_t used = 0;
    for (int i = 0; i < N; used += size_round_up(floats[i++], WHOLE))
        at[i] = memory ? memory + used : NULL;
    *r = (struct room){.rows = at[0],
                       .angles = at[1],
                       .tile = {.n_heads = 1,
                                .key_dim = (uint32_t)dim,
                                .value_dim = (uint32_t)dim,
                                .key_stride = dim,
                                .value_stride = dim,
                                .q = at[2],
                                .weights = at[3],
                                .total = at[4],
                                .sums = at[5],
                                .top = at[6],
                                .ends = (uint32_t *)(void *)at[7],
                                .begins = (uint32_t *)(void *)at[8]}};
    return used;
}

/* Begins the rows of heads h .. of token t, which sees n rows. */
static void begin_heads(const struct job *j, struct room *r, uint32_t t, uint32_t h, uint32_t n)
{
    const struct compressed_shape *s = j->shape;
    const struct compressed_attend_call *c = j->call;
    const struct attention_tile *to = &r->tile;
    const float *angles = host_floats(c->rope) + (uint64_t)t * s->rope_dim;
    for (uint32_t i = 0; i < to->n_rows; i++) {
        const float *q = host_floats(c->q) + (uint64_t)t * c->q_stride + (uint64_t)(h + i) * s->dim;
        for (uint32_t k = 0; k < to->key_dim; k++)
            to->q[(uint64_t)i * to->key_dim + k] = k < s->dim ? q[k] * s->scale : 0;
        to->begins[i] = 0;
        to->ends[i] = n;
        to->top[i] = host_floats(c->sinks)[h + i];
        memset(to->total + (uint64_t)i * VEC_LANES, 0, VEC_LANES * sizeof *to->total);
        to->total[(uint64_t)i * VEC_LANES] = 1;
    }
    memset(to->sums, 0, (uint64_t)to->n_rows * to->value_dim * sizeof *to->sums);
    for (uint32_t i = 0; i < s->rope_dim; i += 2) {
        r->angles[i] = angles[i];
        r->angles[i + 1] = -angles[i + 1];
    }
}

static void attend_heads(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct compressed_shape *s = j->shape;
    const struct compressed_attend_call *c = j->call;
    uint32_t blocks = div_up(s->n_heads, HEADS), t = block / blocks, h = block % blocks * HEADS;
    uint32_t n_near = compressed_n_near(s, c->pos + t), n = n_near + compressed_n_far(s, c->pos + t);
    struct room r;
    place(s, j->memory + thread * j->thread_floats, &r);
    r.tile.n_rows = (uint32_t)size_min(HEADS, s->n_heads - h);
    r.tile.keys = r.tile.values = r.tile.next_keys = (const uint8_t *)(const void *)r.rows;
    begin_heads(j, &r, t, h, n);
    for (r.tile.first = 0; r.tile.first < n; r.tile.first += ATTENTION_POSITIONS) {
        r.tile.n = (uint32_t)size_min(n - r.tile.first, ATTENTION_POSITIONS);
        for (uint32_t p = 0; p < r.tile.n; p++) {
            float *row = r.rows + (uint64_t)p * r.tile.key_dim;
            loops_get_row(j->loops, s->kv_type, compressed_seen_at(s, c, t, n_near, r.tile.first + p), s->dim,
                          row);
            memset(row + s->dim, 0, (r.tile.key_dim - s->dim) * sizeof *row);
        }
        j->loops->attention_tile(&r.tile);
    }
    for (uint32_t i = 0; i < r.tile.n_rows; i++) {
        float *dst = host_floats_mut(c->dst) + ((uint64_t)t * s->n_heads + h + i) * s->dim;
        float total = loops_sum_lanes(r.tile.total + (uint64_t)i * VEC_LANES);
        for (uint32_t k = 0; k < s->dim; k++)
            dst[k] = r.tile.sums[(uint64_t)i * r.tile.value_dim + k] / total;
        turn_last(j, r.angles, dst);
    }
}

int compressed_attend_cpu(const void *self, const void *what, struct host *h)
{
    const struct compressed_shape *s = &((const struct compressed *)self)->shape;
    const struct compressed_attend_call *c = what;
    struct room r;
    return run(self, what, h, c->n * div_up(s->n_heads, HEADS), place(s, NULL, &r), attend_heads);
}
