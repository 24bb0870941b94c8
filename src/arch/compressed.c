/* Attention over a window and over compressed rows (ops/compressed/compressed.h), DeepSeek-V4's:
 *   [q_a, kv, rows, gates, index rows, index gates, index weights] = W norm(x)
 *   [q, index queries] = q_b norm(q_a)
 *   turn queries, kv and index queries; pool rows and index rows; choose rows (ops/indexer/indexer.h);
 *   attend
 *   x += out_b [out_a_g o_g for each group g of heads]
 * Layers without compressed rows lack rows and gates, layers without an indexer what has its name.
 *
 * DeepSeek-V4.1's differs: index rows are a product of the pooled rows before these are turned. A layer may
 * see the rows of a layer before it, and what that one or another has chosen.
 *
 * Stores: rows of the window, compressed rows, the sums of unfinished blocks (attention's, then the
 * indexer's), index rows. A layer that borrows rows has the first alone. */
#include <math.h>
#include <stdlib.h>

#include "arch/index.h"
#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "ops/compressed/compressed.h"
#include "ops/linear/linear.h"

struct compressed_layer {
    struct linear in, q_b;
    struct linear groups; /* a stack: a matrix for each group of heads */
    struct linear out;
    struct linear index_key; /* product of a pooled row; zero if index rows are pooled themselves */
    uint64_t q_norm, kv_norm, sinks;
    uint64_t bias, row_norm, index_bias, index_row_norm, index_key_norm;
};

struct compressed_mixer {
    const struct part_room *room;
    const struct compressed_config *config;
    struct compressed op, index_op; /* index_op makes the indexer's queries and rows */
    struct index_part index;
    struct compressed_layer *layers; /* [n_layers] */
};

/* indices into room->own; the rest is the indexer's */
enum { Q, HEADS, PLAIN, ANGLES, KEYS };
/* PLAIN, ANGLES: compressed_pool_call's. KEYS: f32 [n][index dim], products of PLAIN */
/* indices of the stores */
enum { NEAR, FAR, SUMS, INDEX_ROWS };

static uint32_t heads_width(const struct compressed_config *c)
{
    return c->n_heads * c->head_dim;
}

/* The number of outputs of q_b. */
static uint32_t q_rows(const struct compressed_config *c)
{
    return heads_width(c) + c->index.n_heads * c->index.dim;
}

/* Where the outputs of the fused product begin. */
struct outputs {
    uint32_t kv, rows, gates, index_rows, index_gates, index_weights;
    uint32_t stride; /* floats from a token's outputs to the next ones */
};

/* Returns whether a layer makes compressed rows, and whether it makes index rows of them. */
static bool makes_rows(const struct compressed_config *c)
{
    return c->ratio && !c->borrows;
}

static bool makes_keys(const struct compressed_config *c)
{
    return makes_rows(c) && c->projects_keys && c->index.n_heads;
}

/* If rows of one position have no gates, the rows themselves take their place: one position has all of the
 * weight. */
static struct outputs outputs_of(const struct compressed_config *c)
{
    uint32_t wide = makes_rows(c) ? c->head_dim * (1 + c->overlaps) : 0;
    uint32_t index_wide = c->index.n_heads && !c->projects_keys ? c->index.dim * (1 + c->overlaps) : 0;
    struct outputs o = {.kv = c->q_lora_rank};
    bool has_gates = !c->projects_keys || c->ratio > 1;
    o.rows = o.kv + c->head_dim;
    o.gates = o.rows + has_gates * wide;
    o.index_rows = o.gates + wide;
    o.index_gates = o.index_rows + index_wide;
    o.index_weights = o.index_gates + index_wide;
    o.stride = (uint32_t)size_round_up(o.index_weights + c->index.n_heads, CONFIG_FOUR);
    return o;
}

static struct compressed_shape shape_of(const struct config *c, const struct compressed_config *a,
                                        enum kv_type type)
{
    return (struct compressed_shape){.dim = a->head_dim,
                                     .rope_dim = a->rope_dim,
                                     .ratio = a->ratio,
                                     .overlaps = a->overlaps,
                                     .eps = c->rms_eps,
                                     .kv_type = type,
                                     .n_heads = a->n_heads,
                                     .window = a->window,
                                     .budget = a->index.ratio ? a->index.budget : 0,
                                     .scale = (float)(1 / sqrt((double)a->head_dim))};
}

static struct compressed_shape index_shape_of(const struct config *c, const struct compressed_config *a,
                                              enum kv_type type)
{
    return (struct compressed_shape){.dim = a->index.dim,
                                     .rope_dim = a->rope_dim,
                                     .ratio = a->ratio,
                                     .overlaps = a->overlaps,
                                     .eps = c->rms_eps,
                                     .kv_type = index_type(type)};
}

static void needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                  const struct part_most *most, struct part_needs *out)
{
    const struct compressed_config *a = &p->compressed;
    uint64_t low = (uint64_t)a->out_groups * a->out_rank;
    *out = (struct part_needs){.proj = outputs_of(a).stride,
                               .mixed = low,
                               .widest = size_max(size_max(low, heads_width(a)), a->q_lora_rank)};
    out->own[Q] = (uint64_t)most->chunk * q_rows(a);
    out->own[HEADS] = (uint64_t)most->chunk * heads_width(a);
    if (makes_keys(a)) {
        out->own[PLAIN] = (uint64_t)most->chunk * a->head_dim;
        out->own[ANGLES] = (uint64_t)most->chunk * a->rope_dim;
        out->own[KEYS] = (uint64_t)most->chunk * a->index.dim;
        out->widest = size_max(out->widest, a->head_dim);
    }
    index_needs(c, &a->index, caps, most, out);
}

static void stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    const struct compressed_config *a = &p->compressed;
    const struct config none = {0};
    struct arch_store near = {.kind = ARCH_WINDOW,
                              .type = type,
                              .width = a->head_dim,
                              .head = a->head_dim,
                              .stride = 1,
                              .window = a->window};
    near.pitch = (uint32_t)arch_store_bytes(&near);
    arch_add_store(out, &near);
    if (!makes_rows(a))
        return;
    struct arch_store far = near;
    far.kind = ARCH_ROWS;
    far.stride = a->ratio;
    far.window = 0;
    arch_add_store(out, &far);
    const struct compressed_shape shape = shape_of(&none, a, type), index = index_shape_of(&none, a, type);
    bool pools_keys = a->index.n_heads && !a->projects_keys;
    uint64_t sums = compressed_state(&shape) + (pools_keys ? compressed_state(&index) : 0);
    arch_add_store(out,
                   &(struct arch_store){.kind = ARCH_FIXED, .type = KV_TYPE_F32, .width = sums, .copies = 2});
    if (a->index.n_heads)
        index_rows(&a->index, (uint64_t)far.pitch * arch_store_block_rows(&far), type, out);
}

static void close(void *self)
{
    struct compressed_mixer *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        struct compressed_layer *y = &d->layers[i];
        struct linear *products[] = {&y->in, &y->q_b, &y->groups, &y->out, &y->index_key};
        for (size_t j = 0; j < sizeof products / sizeof *products; j++)
            linear_close(products[j], d->room->exec);
    }
    free(d->layers);
    free(d);
}

static int open(void **self, const struct part_room *room, const struct part_config *p, struct moeflux_err *e)
{
    const struct compressed_config *a = &p->compressed;
    const struct compressed_shape shape = shape_of(room->config, a, room->kv_type),
                                  index = index_shape_of(room->config, a, room->kv_type);
    struct compressed_mixer *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->config = a;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    int rc = d->layers ? compressed_open(&d->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc == 0 && a->index.n_heads)
        rc = compressed_open(&d->index_op, room->exec, &index, e);
    if (rc == 0)
        rc = index_open(&d->index, room, PART_COMPRESSED, &a->index, a->rope, e);
    if (rc < 0) {
        close(d);
        *self = NULL;
    }
    return rc;
}

/* Loads the output's matrices. A group's rows meet the outputs of its own heads. */
static int load_output(struct compressed_mixer *d, struct loader *l, uint32_t layer,
                       const struct part_tensor *t, struct moeflux_err *e)
{
    struct compressed_layer *y = &d->layers[layer];
    struct weights all;
    int rc = loader_parts(l, layer, t + COMPRESSED_OUT_A, 1, &all, e);
    if (rc < 0)
        return rc;
    const struct weights first = weights_rows(&all, 0, d->config->out_rank);
    rc = linear_open_stack(&y->groups, d->room->exec, &first, d->config->out_groups, first.rows, e);
    return rc < 0 ? rc : loader_fused(l, layer, t + COMPRESSED_OUT_B, 1, &y->out, e);
}

static int load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                struct moeflux_err *e)
{
    struct compressed_mixer *d = self;
    struct compressed_layer *y = &d->layers[layer];
    const struct {
        enum compressed_tensor tensor;
        uint64_t *to;
    } vectors[] = {{COMPRESSED_Q_NORM, &y->q_norm},
                   {COMPRESSED_KV_NORM, &y->kv_norm},
                   {COMPRESSED_SINKS, &y->sinks},
                   {COMPRESSED_BIASES, &y->bias},
                   {COMPRESSED_ROW_NORM, &y->row_norm},
                   {COMPRESSED_INDEX_BIASES, &y->index_bias},
                   {COMPRESSED_INDEX_ROW_NORM, &y->index_row_norm},
                   {COMPRESSED_INDEX_KEY_NORM, &y->index_key_norm}};
    int rc = loader_fused(l, layer, t + COMPRESSED_Q_A, COMPRESSED_Q_B - COMPRESSED_Q_A, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + COMPRESSED_Q_B, COMPRESSED_INDEX_KEY - COMPRESSED_Q_B, &y->q_b, e);
    if (rc == 0 && makes_keys(d->config))
        rc = loader_fused(l, layer, t + COMPRESSED_INDEX_KEY, 1, &y->index_key, e);
    for (size_t i = 0; rc == 0 && i < sizeof vectors / sizeof *vectors; i++)
        rc = loader_vectors(l, layer, t + vectors[i].tensor, 1, vectors[i].to, e);
    return rc < 0 ? rc : load_output(d, l, layer, t, e);
}

/* ---- a chunk ---- */

/* The tokens of a sequence in a layer. */
struct stretch {
    const struct compressed_mixer *d;
    const struct compressed_layer *y;
    const struct arch_store *stores;
    const struct arch_store *rows; /* the stores that compressed rows and index rows are in */
    struct part_tokens part;
    struct outputs at;
    uint64_t proj, q; /* the tokens' outputs of the products */
    uint32_t idx;     /* which of the chunk's sequences it is */
};

/* Returns the table of the blocks that rows of the window lie in. */
static uint64_t near_blocks(const struct stretch *s)
{
    return s->stores[NEAR].kind == ARCH_WINDOW ? s->part.of.ring_blocks : s->part.of.kv_blocks;
}

static void turn_queries(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    compressed_turn_run(&d->op, d->room->exec,
                        &(struct compressed_turn_call){.x = s->q,
                                                       .rope = s->part.rope,
                                                       .y = s->q,
                                                       .n = s->part.n,
                                                       .n_heads = d->config->n_heads,
                                                       .x_stride = q_rows(d->config),
                                                       .y_stride = q_rows(d->config),
                                                       .norms = d->config->norms_heads});
}

static void put_rows(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    compressed_turn_run(&d->op, d->room->exec,
                        &(struct compressed_turn_call){.x = s->proj + s->at.kv * sizeof(float),
                                                       .norm = s->y->kv_norm,
                                                       .rope = s->part.rope,
                                                       .ring = near_blocks(s),
                                                       .n = s->part.n,
                                                       .pos = s->part.of.pos,
                                                       .n_heads = 1,
                                                       .x_stride = s->at.stride,
                                                       .row_off = (uint32_t)s->stores[NEAR].off,
                                                       .norms = true});
}

/* Returns where the tokens' rows of a buffer of their own begin. */
static uint64_t own_at(const struct stretch *s, int buffer, uint32_t width)
{
    return s->d->room->own[PART_COMPRESSED][buffer].address + (uint64_t)s->part.from * width * sizeof(float);
}

/* Compresses rows of attention, or of the indexer. */
static void pool_rows(const struct stretch *s, bool is_index)
{
    const struct compressed_mixer *d = s->d;
    const struct arch_store *sums = &s->stores[SUMS];
    uint64_t bytes = arch_store_bytes(sums),
             off = sums->off + (is_index ? compressed_state(&d->op.shape) * sizeof(float) : 0);
    uint32_t is_odd = s->part.of.parity != 0;
    bool has_keys = makes_keys(d->config);
    compressed_pool_run(is_index ? &d->index_op : &d->op, d->room->exec,
                        &(struct compressed_pool_call){
                            .kv = s->proj + (is_index ? s->at.index_rows : s->at.rows) * sizeof(float),
                            .gates = s->proj + (is_index ? s->at.index_gates : s->at.gates) * sizeof(float),
                            .bias = is_index ? s->y->index_bias : s->y->bias,
                            .norm = is_index ? s->y->index_row_norm : s->y->row_norm,
                            .rope = s->part.rope,
                            .state_in = s->part.of.recurrent + off + is_odd * bytes,
                            .state_out = s->part.of.recurrent_out + off + !is_odd * bytes,
                            .blocks = s->part.of.kv_blocks,
                            .plain = has_keys ? own_at(s, PLAIN, d->config->head_dim) : 0,
                            .angles = has_keys ? own_at(s, ANGLES, d->config->rope_dim) : 0,
                            .n = s->part.n,
                            .pos = s->part.of.pos,
                            .stride = s->at.stride,
                            .layer_off = (uint32_t)s->stores[is_index ? INDEX_ROWS : FAR].off});
}

static void turn_index_queries(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    const struct index_config *x = &d->config->index;
    compressed_turn_run(&d->index_op, d->room->exec,
                        &(struct compressed_turn_call){.x = s->q + heads_width(d->config) * sizeof(float),
                                                       .rope = s->part.rope,
                                                       .y = index_queries_at(&d->index, s->part.from),
                                                       .n = s->part.n,
                                                       .n_heads = x->n_heads,
                                                       .x_stride = q_rows(d->config),
                                                       .y_stride = x->n_heads * x->dim});
}

/* Makes index rows of the products of pooled rows. */
static void put_keys(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    compressed_turn_run(&d->index_op, d->room->exec,
                        &(struct compressed_turn_call){.x = own_at(s, KEYS, d->config->index.dim),
                                                       .norm = s->y->index_key_norm,
                                                       .rope = own_at(s, ANGLES, d->config->rope_dim),
                                                       .blocks = s->part.of.kv_blocks,
                                                       .n = s->part.n,
                                                       .pos = s->part.of.pos,
                                                       .n_heads = 1,
                                                       .x_stride = d->config->index.dim,
                                                       .row_off = (uint32_t)s->rows[INDEX_ROWS].off,
                                                       .norms = true});
}

static void choose(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    uint64_t weights = d->room->proj.address + s->at.index_weights * sizeof(float);
    index_choose(&d->index, &s->part, &s->rows[INDEX_ROWS], weights, s->at.stride, s->idx);
}

static void attend(const struct stretch *s)
{
    const struct compressed_mixer *d = s->d;
    const struct part_room *r = d->room;
    compressed_attend_run(&d->op, r->exec,
                          &(struct compressed_attend_call){
                              .q = s->q,
                              .sinks = s->y->sinks,
                              .rope = s->part.rope,
                              .ring = near_blocks(s),
                              .blocks = s->part.of.kv_blocks,
                              .chosen = index_list_at(&d->index, s->part.from),
                              .dst = r->own[PART_COMPRESSED][HEADS].address +
                                     (uint64_t)s->part.from * heads_width(d->config) * sizeof(float),
                              .n = s->part.n,
                              .pos = s->part.of.pos,
                              .q_stride = q_rows(d->config),
                              .ring_off = (uint32_t)s->stores[NEAR].off,
                              .layer_off = s->rows ? (uint32_t)s->rows[FAR].off : 0});
}

static void write_rows(const struct stretch *s)
{
    const struct compressed_config *c = s->d->config;
    struct exec *x = s->d->room->exec;
    turn_queries(s);
    exec_concurrent(x); /* each writes something of its own */
    put_rows(s);
    if (makes_rows(c)) {
        exec_concurrent(x);
        pool_rows(s, false);
    }
    if (c->index.n_heads && !c->projects_keys) {
        exec_concurrent(x);
        pool_rows(s, true);
    }
    if (c->index.n_heads) {
        exec_concurrent(x);
        turn_index_queries(s);
    }
}

static void see_rows(const struct stretch *s)
{
    if (makes_keys(s->d->config))
        put_keys(s);
    if (s->d->config->index.n_heads)
        choose(s);
    attend(s);
}

static void run_whole(const struct stretch *s)
{
    write_rows(s);
    see_rows(s);
}

/* Computes the products before the attention. */
static void project(const struct compressed_mixer *d, const struct part_call *call)
{
    const struct part_room *r = d->room;
    const struct compressed_layer *y = &d->layers[call->layer];
    uint32_t stride = outputs_of(d->config).stride;
    part_project(r, &y->in, call, stride);
    linear_run(&y->q_b, r->exec,
               &(struct linear_call){.x = r->proj.address,
                                     .norm = y->q_norm,
                                     .y = r->own[PART_COMPRESSED][Q].address,
                                     .x_stride = stride,
                                     .y_stride = q_rows(d->config),
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
}

/* Runs what each sequence has of its own. */
static void run_stretches(const struct compressed_mixer *d, const struct part_call *call,
                          void (*steps)(const struct stretch *))
{
    const struct part_room *r = d->room;
    const struct arch_chunk *c = call->chunk;
    struct part_tokens parts[PART_GROUP];
    bool are_single;
    for (uint32_t first = 0, n;
         (n = part_tokens_with_state(r, c, d->config->rope, first, parts, &are_single)) > 0; first += n)
        for (uint32_t i = 0; i < n; i++) {
            struct stretch s = {.d = d,
                                .y = &d->layers[call->layer],
                                .stores = call->stores,
                                .rows = call->rows,
                                .part = parts[i],
                                .at = outputs_of(d->config),
                                .idx = are_single ? i : 0};
            s.proj = r->proj.address + (uint64_t)s.part.from * s.at.stride * sizeof(float);
            s.q = r->own[PART_COMPRESSED][Q].address +
                  (uint64_t)s.part.from * q_rows(d->config) * sizeof(float);
            steps(&s);
        }
}

/* Computes the index keys of all pooled rows. Tokens that end no block have one that nobody reads. */
static void project_keys(const struct compressed_mixer *d, const struct part_call *call)
{
    const struct exec_buffer *own = d->room->own[PART_COMPRESSED];
    linear_run(&d->layers[call->layer].index_key, d->room->exec,
               &(struct linear_call){.x = own[PLAIN].address,
                                     .y = own[KEYS].address,
                                     .x_stride = d->config->head_dim,
                                     .y_stride = d->config->index.dim,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .f16_scratch = d->room->f16_scratch.address});
}

static void run(const void *self, const struct part_call *call)
{
    const struct compressed_mixer *d = self;
    const struct part_room *r = d->room;
    const struct compressed_layer *y = &d->layers[call->layer];
    uint32_t rank = d->config->out_rank;
    project(d, call);
    if (makes_keys(d->config)) {
        run_stretches(d, call, write_rows);
        project_keys(d, call);
        run_stretches(d, call, see_rows);
    } else {
        run_stretches(d, call, run_whole);
    }
    linear_run(&y->groups, r->exec,
               &(struct linear_call){.x = r->own[PART_COMPRESSED][HEADS].address,
                                     .y = r->mixed.address,
                                     .x_stride = heads_width(d->config),
                                     .y_stride = d->config->out_groups * rank,
                                     .x_step = heads_width(d->config) / d->config->out_groups,
                                     .y_step = rank,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .f16_scratch = r->f16_scratch.address});
    part_add(r, &y->out, call, false);
}

const struct part part_compressed = {
    .needs = needs, .stores = stores, .open = open, .close = close, .load = load, .run = run};
