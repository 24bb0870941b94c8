#include "ops/attention/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "ops/attention/attention.h"
#include "ops/loops.h"

/* FEW: most tokens that are computed one by one, which makes them batch-invariant. ROWS: queries of a block
 * of work. PANEL_ROWS: fewest queries of a key head for which keys are turned into panels; for fewer, that
 * takes longer than it saves. */
enum { FEW = LOOPS_FEW, ROWS = 128, PANEL_ROWS = 32 };
/* Key heads whose rows are contiguous are read together if one alone has less than a page. */
enum { MOST_HEADS = 8, PAGE_FLOATS = 1024 };
/* Splits are multiples of SPLIT_STEP positions, at most MOST_SPLITS for one token. With many tokens there are
 * as many splits as give ENOUGH_BLOCKS. The number of positions decides this, never the number of threads. */
enum { WHOLE = 16 /* channels */, SPLIT_STEP = 64, MOST_SPLITS = 64, LONG_STEP = 256, ENOUGH_BLOCKS = 64 };

_Static_assert(SPLIT_STEP % ATTENTION_POSITIONS == 0 && (1 << KV_BLOCK_SHIFT) % SPLIT_STEP == 0,
               "a tile's positions lie in one block of the cache");

/* How a call is divided. A block of work is some rows of some key heads over one split of the positions. */
struct division {
    uint32_t group;      /* query heads of a key head */
    uint32_t n_rows;     /* rows of a key head: tokens times group */
    uint32_t row_blocks; /* row blocks of a key head */
    uint32_t heads;      /* key heads of a block */
    uint32_t first;      /* first position of the first split: the first that any token sees, rounded down */
    uint32_t split, n_splits;
};

struct job {
    const struct attention_shape *shape;
    const struct attention_call *call;
    const struct loops *loops;
    struct division by;
    const uint32_t *list; /* blocks of the only token; NULL: it sees everything. Tiles count its positions */
    uint32_t key_dim, value_dim; /* rounded up to whole vectors */
    float *memory;               /* thread_floats for each thread */
    uint64_t thread_floats;
    float *partial; /* [n][n_heads][n_splits][value_dim + 2]: sums, top, total */
};

static uint32_t round_up_u32(uint32_t n, uint32_t to)
{
    return div_up(n, to) * to;
}

static struct division divide(const struct attention_shape *s, const struct attention_call *c)
{
    struct division d = {.group = s->n_heads / s->n_kv_heads, .heads = 1};
    d.first = attention_first(s, c->pos) / SPLIT_STEP * SPLIT_STEP;
    uint32_t n_pos = c->pos + c->n - d.first, splits = MOST_SPLITS;
    if (attention_has_lists(s, c))
        n_pos = kv_choice_n_seen(&s->choice, c->pos);
    d.n_rows = c->n * d.group;
    d.row_blocks = div_up(d.n_rows, ROWS);
    uint32_t blocks = c->n_kv_heads * d.row_blocks;
    if (c->n > FEW)
        splits = blocks >= ENOUGH_BLOCKS
                     ? 1
                     : (uint32_t)size_min(ENOUGH_BLOCKS / blocks, div_up(n_pos, LONG_STEP));
    else if (d.row_blocks == 1)
        d.heads = (uint32_t)size_min(size_min(MOST_HEADS, c->n_kv_heads),
                                     size_max(1, size_min(ROWS / d.group, PAGE_FLOATS / s->key_dim)));
    d.split = round_up_u32(div_up(n_pos, splits), SPLIT_STEP);
    d.n_splits = div_up(n_pos, d.split);
    return d;
}

static uint32_t whole_vectors(uint32_t dim)
{
    return round_up_u32(dim, WHOLE);
}

uint64_t attention_cpu_partial_bytes(const struct attention_shape *s, uint32_t n_pos)
{
    uint64_t splits = size_min(MOST_SPLITS, div_up(n_pos, SPLIT_STEP));
    uint64_t rows = size_max(s->n_heads * splits, (uint64_t)ENOUGH_BLOCKS * ROWS);
    return rows * (whole_vectors(s->value_dim) + 2) * sizeof(float);
}

/* ---- a thread's memory ---- */

/* Memory for a block's rows, and for keys and values that the loops cannot read where they lie. */
struct room {
    float *wide_keys, *wide_values, *zeros;
    struct attention_tile tile; /* the first key head's tile, with memory for all rows */
};

static uint64_t place(struct room *r, float *memory, uint32_t key_dim, uint32_t value_dim)
{
    const uint64_t positions = ATTENTION_POSITIONS, rows = ROWS;
    float *at[12];
    const uint64_t floats[12] = {positions * key_dim,
                                 positions * value_dim,
                                 key_dim,
                                 rows * key_dim,
                                 positions * key_dim,
                                 positions * value_dim,
                                 rows * positions,
                                 rows * VEC_LANES,
                                 rows * value_dim,
                                 rows,
                                 rows,
                                 rows};
    uint64_t used = 0;
    for (int i = 0; i < 12; used += size_round_up(floats[i++], 16))
        at[i] = memory ? memory + used : NULL;
    *r = (struct room){.wide_keys = at[0],
                       .wide_values = at[1],
                       .zeros = at[2],
                       .tile = {.key_dim = key_dim,
                                .value_dim = value_dim,
                                .zeros = at[2],
                                .q = at[3],
                                .panel = at[4],
                                .value_panel = at[5],
                                .weights = at[6],
                                .total = at[7],
                                .sums = at[8],
                                .top = at[9],
                                .ends = (uint32_t *)(void *)at[10],
                                .begins = (uint32_t *)(void *)at[11]}};
    return used;
}

/* Returns the tile of the i-th key head. Its rows follow those of the heads before. */
static struct attention_tile tile_of(const struct room *r, uint32_t i)
{
    struct attention_tile t = r->tile;
    uint64_t row = (uint64_t)i * t.n_rows;
    t.q += row * t.key_dim;
    t.weights += row * ATTENTION_POSITIONS;
    t.total += row * VEC_LANES;
    t.sums += row * t.value_dim;
    t.top += row;
    t.ends += row;
    t.begins += row;
    return t;
}

/* ---- keys and values ---- */

static const void *row_at(const struct job *j, uint32_t pos, uint32_t value, uint32_t kv_head)
{
    const struct attention_shape *s = j->shape;
    const struct attention_call *c = j->call;
    const struct kv_rows rows = {c->blocks,  c->layer_off, c->n_kv_heads,
                                 s->key_dim, s->value_dim, s->kv_type};
    if (!s->flat)
        return kv_rows_at(&rows, pos, value, kv_head);
    uint64_t i = (uint64_t)pos * c->n_kv_heads + kv_head;
    return (const uint8_t *)host_at(value ? c->values : c->keys) +
           i * kv_row_bytes(s->kv_type, value ? s->value_dim : s->key_dim);
}

/* Returns the p-th of the positions that a token's key head sees. */
static uint32_t listed(const struct job *j, uint32_t kv_head, uint32_t p)
{
    const struct kv_choice *c = &j->shape->choice;
    const uint32_t *list = j->list + (uint64_t)(c->heads ? kv_head : 0) * (c->budget + 1);
    return list[p / c->ratio] * c->ratio + p % c->ratio;
}

/* Copies the rows of a tile of a list's positions to `wide` as they are stored. */
static const uint8_t *gather_rows(const struct job *j, const struct attention_tile *t, uint32_t value,
                                  uint32_t kv_head, float *wide)
{
    uint64_t bytes = kv_row_bytes(j->shape->kv_type, value ? j->shape->value_dim : j->shape->key_dim);
    uint8_t *to = (uint8_t *)(void *)wide;
    for (uint32_t p = 0; p < t->n; p++)
        memcpy(to + p * bytes, row_at(j, listed(j, kv_head, t->first + p), value, kv_head), bytes);
    return to;
}

/* Returns a tile's rows where they lie, or copied to `wide` as floats with zeros after their channels. Rows
 * of a list are always copied. */
static const uint8_t *rows_at(const struct job *j, const struct attention_tile *t, uint32_t value,
                              uint32_t kv_head, float *wide, uint64_t *stride)
{
    const struct attention_shape *s = j->shape;
    uint32_t dim = value ? s->value_dim : s->key_dim, padded = whole_vectors(dim);
    bool is_ready = dim == padded && (s->kv_type == KV_TYPE_F32 || t->f16);
    const uint8_t *from = j->list ? NULL : row_at(j, t->first, value, kv_head);
    uint64_t step = (uint64_t)j->call->n_kv_heads * kv_row_bytes(s->kv_type, dim);
    if (is_ready) {
        *stride = j->list ? dim : (uint64_t)j->call->n_kv_heads * dim;
        return j->list ? gather_rows(j, t, value, kv_head, wide) : from;
    }
    for (uint32_t p = 0; p < t->n; p++) {
        float *to = wide + (uint64_t)p * padded;
        loops_get_row(j->loops, s->kv_type,
                      j->list ? row_at(j, listed(j, kv_head, t->first + p), value, kv_head) : from + p * step,
                      dim, to);
        memset(to + dim, 0, (padded - dim) * sizeof *to);
    }
    *stride = padded;
    return (const uint8_t *)(const void *)wide;
}

static bool lies_in_place(const struct room *r, const struct attention_tile *t)
{
    return t->keys != (const uint8_t *)r->wide_keys && t->values != (const uint8_t *)r->wide_values;
}

/* Sets the tile's positions, as many as it has from `first` on. If the values are the first channels of the
 * keys, a tile adds up the keys' other channels too; they are left out when the results are written. */
static void show_positions(const struct job *j, const struct room *r, struct attention_tile *t,
                           uint32_t kv_head, uint32_t first, uint32_t end)
{
    const struct attention_shape *s = j->shape;
    t->first = first;
    t->n = (uint32_t)size_min(end - first, ATTENTION_POSITIONS);
    t->f16 =
        s->kv_type == KV_TYPE_F16 && !t->by_panel && s->key_dim == j->key_dim && s->value_dim == j->value_dim;
    t->keys = rows_at(j, t, 0, kv_head, r->wide_keys, &t->key_stride);
    t->values = t->keys;
    t->value_stride = t->key_stride;
    if (!s->latent)
        t->values = rows_at(j, t, 1, kv_head, r->wide_values, &t->value_stride);
    t->next_keys = t->keys;
    if (lies_in_place(r, t) && first + t->n < end)
        t->next_keys = row_at(j, first + t->n, 0, kv_head);
}

/* ---- results ---- */

static void write_row(const struct job *j, uint32_t t, uint32_t head, const float *sums, float total)
{
    const struct attention_shape *s = j->shape;
    const struct attention_call *c = j->call;
    float *dst = host_floats_mut(c->dst) + (uint64_t)t * c->dst_stride + (uint64_t)head * s->value_dim;
    if (!s->gated) {
        for (uint32_t i = 0; i < s->value_dim; i++)
            dst[i] = sums[i] / total;
        return;
    }
    j->loops->sigmoid(host_floats(c->gates) + (uint64_t)t * c->gate_stride +
                          (2 * (uint64_t)head + 1) * s->value_dim,
                      s->value_dim, dst);
    for (uint32_t i = 0; i < s->value_dim; i++)
        dst[i] *= sums[i] / total;
}

static float *partial_at(const struct job *j, uint32_t t, uint32_t head, uint32_t split)
{
    uint64_t row = (uint64_t)t * j->call->n_heads + head;
    return j->partial + (row * j->by.n_splits + split) * (j->value_dim + 2);
}

/* ---- blocks of work ---- */

/* The token and query head of a row. */
struct row {
    uint32_t token, head;
};

static struct row row_of(const struct job *j, uint32_t kv_head, uint32_t row)
{
    return (struct row){row / j->by.group, kv_head * j->by.group + row % j->by.group};
}

static void begin_rows(const struct job *j, struct attention_tile *t, uint32_t kv_head, uint32_t first_row,
                       bool has_sinks)
{
    const struct attention_shape *s = j->shape;
    const struct attention_call *c = j->call;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct row at = row_of(j, kv_head, first_row + i);
        const float *q =
            host_floats(c->q) + (uint64_t)at.token * c->q_stride + (uint64_t)at.head * s->key_dim;
        float *to = t->q + (uint64_t)i * j->key_dim;
        for (uint32_t d = 0; d < j->key_dim; d++)
            to[d] = d < s->key_dim ? q[d] * s->scale : 0;
        t->ends[i] = j->list ? kv_choice_n_seen(&s->choice, c->pos) : c->pos + at.token + 1;
        t->begins[i] = attention_first(s, c->pos + at.token);
        t->top[i] = has_sinks ? host_floats(c->sinks)[at.head] : -INFINITY;
        memset(t->total + (uint64_t)i * VEC_LANES, 0, VEC_LANES * sizeof(float));
        t->total[(uint64_t)i * VEC_LANES] = has_sinks;
    }
    memset(t->sums, 0, (uint64_t)t->n_rows * j->value_dim * sizeof(float));
}

static void end_rows(const struct job *j, const struct attention_tile *t, uint32_t kv_head,
                     uint32_t first_row, uint32_t split)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct row at = row_of(j, kv_head, first_row + i);
        const float *sums = t->sums + (uint64_t)i * j->value_dim;
        float total = loops_sum_lanes(t->total + (uint64_t)i * VEC_LANES);
        if (j->by.n_splits == 1) {
            write_row(j, at.token, at.head, sums, total);
            continue;
        }
        float *to = partial_at(j, at.token, at.head, split);
        memcpy(to, sums, j->value_dim * sizeof *to);
        to[j->value_dim] = t->top[i];
        to[j->value_dim + 1] = total;
    }
}

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t split = block % j->by.n_splits, rows = block / j->by.n_splits;
    uint32_t kv_head = rows / j->by.row_blocks * j->by.heads, first_row = rows % j->by.row_blocks * ROWS;
    uint32_t n_heads = (uint32_t)size_min(j->by.heads, j->call->n_kv_heads - kv_head);
    struct room r;
    struct attention_tile tiles[MOST_HEADS];
    if (n_heads == 0)
        return;
    place(&r, j->memory + thread * j->thread_floats, j->key_dim, j->value_dim);
    r.tile.n_heads = 1;
    r.tile.n_rows = (uint32_t)size_min(ROWS, j->by.n_rows - first_row);
    r.tile.by_panel = j->by.n_rows >= PANEL_ROWS;
    memset(r.zeros, 0, j->key_dim * sizeof *r.zeros);
    for (uint32_t h = 0; h < n_heads; h++) {
        tiles[h] = tile_of(&r, h);
        /* The first split has the sinks. */
        begin_rows(j, &tiles[h], kv_head + h, first_row, j->shape->sinks && split == 0);
    }
    uint32_t begin = j->by.first + split * j->by.split;
    uint32_t end = (uint32_t)size_min((uint64_t)begin + j->by.split, tiles[0].ends[r.tile.n_rows - 1]);
    /* These rows may see nothing of the split's first positions if there is a window. */
    uint32_t hidden = tiles[0].begins[0] / ATTENTION_POSITIONS * ATTENTION_POSITIONS;
    for (uint32_t pos = begin > hidden ? begin : hidden; pos < end; pos += ATTENTION_POSITIONS)
        for (uint32_t h = 0; h < n_heads; h += tiles[h].n_heads) {
            show_positions(j, &r, &tiles[h], kv_head + h, pos, end);
            if (!r.tile.by_panel && lies_in_place(&r, &tiles[h]))
                tiles[h].n_heads = n_heads;
            j->loops->attention_tile(&tiles[h]);
        }
    for (uint32_t h = 0; h < n_heads; h++)
        end_rows(j, &tiles[h], kv_head + h, first_row, split);
}

/* Adds up the splits of one head of a token into the first of them. A split without positions has top
 * -INFINITY. */
static void merge_head(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t t = i / j->call->n_heads, head = i % j->call->n_heads, dim = j->value_dim;
    float top = -INFINITY, total = 0, by[MOST_SPLITS], *sums = partial_at(j, t, head, 0);
    (void)thread;
    for (uint32_t s = 0; s < j->by.n_splits; s++) {
        by[s] = partial_at(j, t, head, s)[dim];
        top = by[s] > top ? by[s] : top;
    }
    j->loops->exp_below(by, j->by.n_splits, top, by);
    for (uint32_t s = 0; s < j->by.n_splits; s++)
        total += partial_at(j, t, head, s)[dim + 1] * by[s];
    for (uint32_t c = 0; c < dim; c++)
        sums[c] *= by[0];
    for (uint32_t s = 1; s < j->by.n_splits; s++)
        j->loops->add_scaled(sums, partial_at(j, t, head, s), by[s], dim);
    write_row(j, t, head, sums, total);
}

static void run_tokens(const struct attention_shape *s, const struct attention_call *c, struct job *j,
                       struct host *h)
{
    j->call = c;
    j->by = divide(s, c);
    j->list = attention_has_lists(s, c) ? host_words(c->chosen) : NULL;
    if (j->by.heads == 0)
        return;
    assert(j->by.n_splits <= 1 ||
           (uint64_t)c->n * c->n_heads * j->by.n_splits * (j->value_dim + 2) * sizeof *j->partial <=
               c->partial_bytes);
    team_for(h->team, div_up(c->n_kv_heads, j->by.heads) * j->by.row_blocks * j->by.n_splits, run_block, j);
    if (j->by.n_splits > 1)
        team_for(h->team, c->n * c->n_heads, merge_head, j);
}

int attention_cpu(const void *self, const void *what, struct host *h)
{
    const struct attention_shape *s = &((const struct attention *)self)->shape;
    const struct attention_call *call = what;
    struct room r;
    struct job j = {.shape = s,
                    .loops = loops_of(h),
                    .key_dim = whole_vectors(s->key_dim),
                    .value_dim = whole_vectors(s->value_dim),
                    .partial = host_floats_mut(call->partial)};
    j.thread_floats = place(&r, NULL, j.key_dim, j.value_dim);
    j.memory = host_scratch(h, team_n_threads(h->team) * j.thread_floats, sizeof(float));
    if (!j.memory)
        return host_error(h);
    /* Each token has its own list. */
    bool is_many = call->n > FEW && !attention_has_lists(s, call);
    if (is_many)
        run_tokens(s, call, &j, h);
    for (uint32_t t = 0; !is_many && t < call->n; t++) {
        struct attention_call one = *call;
        one.q += (uint64_t)t * call->q_stride * sizeof(float);
        one.dst += (uint64_t)t * call->dst_stride * sizeof(float);
        one.gates += (uint64_t)t * call->gate_stride * sizeof(float);
        one.chosen += (uint64_t)t * kv_choice_stride(&s->choice) * sizeof(uint32_t);
        one.pos += t;
        one.n = 1;
        run_tokens(s, &one, &j, h);
    }
    return host_error(h);
}
