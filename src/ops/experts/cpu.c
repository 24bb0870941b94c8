/* The native implementation of experts.h. */
#include <math.h>
#include <string.h>

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "cpu/isa.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/gating.h"
#include "ops/loops.h"

/* The (token, slot) pairs of one expert. A pair is t * top_k + k. Pairs are sorted by expert, so that its
 * weights are read once. */
struct group {
    uint64_t expert; /* address */
    uint32_t first, n, idx;
};

struct job {
    const struct experts_shape *shape;
    const struct experts_call *call;
    const struct loops *loops;
    const struct cpu_isa *isa;
    uint32_t *pairs; /* sorted by expert */
    struct group *groups;
    uint32_t n_groups, cols; /* cols: columns of the products */
    /* Inputs for gemv. up: one a token. down: one a pair, then the shared expert's, one a token. */
    struct cpu_vector *x;
    uint32_t per_input; /* pairs that share an input */
    float *floats;
    uint8_t *digits;
    uint64_t digits_bytes; /* bytes of one input */
    /* Inputs for gemm or gemm_int16: packed [pair, sorted by expert][cols], and the index of each (picks).
     * For gemm_fixed: one for each group. */
    float *packed;
    uint32_t *picks;
    bool is_many, takes_fixed, takes_int16;
    bool has_blocks; /* some matrix that takes the inputs has a block format */
    struct cpu_fixed *fixed;
    /* Each thread's scratch: gemm's or gemm_fixed's, and the products of a block of rows. */
    uint8_t *rooms;
    uint64_t gemm_bytes, room_bytes;
    uint32_t n_pairs, block_rows, n_blocks;
    float *parts; /* down only: [thread][n_pairs + n][block_rows]; for many tokens [n_pairs][hidden] */
};

/* FEW: chunks of up to that many tokens are computed token by token, which makes them batch-invariant. So are
 * experts with up to that many tokens of a larger chunk, and tokens of several sequences. */
enum { FEW = LOOPS_FEW, LEAST_ROWS = 8, BLOCKS_A_THREAD = 4, STRIP = CPU_STRIP_ROWS };

static struct weights part(uint64_t expert, uint32_t w, uint32_t s, uint32_t b, uint32_t rows, uint32_t cols,
                           uint32_t format)
{
    return (struct weights){expert + w, expert + s, expert + b, rows, cols, format};
}

static struct weights down_of(const struct experts_shape *s, uint64_t expert)
{
    return part(expert, s->down_w, s->down_s, s->down_b, s->hidden, s->inner, s->down_format);
}

static bool takes_many(const struct experts_call *c, const struct host *h)
{
    return c->chunk > FEW && !h->is_batch_invariant;
}

/* ---- which pair meets which expert ---- */

static bool is_there(const struct job *j, uint64_t pair)
{
    uint32_t expert = host_words(j->call->idx)[pair];
    return expert != NO_EXPERT && expert_part_has(&j->call->part, j->shape->n_experts, expert);
}

static bool takes_part(const struct job *j, uint32_t pair, uint64_t skip)
{
    uint32_t k = pair % j->shape->top_k;
    const uint64_t *table = host_at(j->call->table);
    return is_there(j, pair) && table[host_words(j->call->idx)[pair]] != 0 && (k >= 64 || !(skip >> k & 1));
}

/* Fills pairs and groups. Returns false if there is no memory. */
static bool sort_pairs(struct job *j, struct host *h, uint64_t skip)
{
    uint32_t n_experts = j->shape->n_experts, n_pairs = j->call->n * j->shape->top_k, at = 0;
    const uint32_t *idx = host_words(j->call->idx);
    uint32_t *ends = host_scratch(h, n_experts, sizeof *ends);
    j->pairs = host_scratch(h, n_pairs, sizeof *j->pairs);
    j->groups = host_scratch(h, size_min(n_experts, n_pairs), sizeof *j->groups);
    if (!ends || !j->pairs || !j->groups)
        return false;
    memset(ends, 0, n_experts * sizeof *ends);
    for (uint32_t p = 0; p < n_pairs; p++)
        if (takes_part(j, p, skip))
            ends[idx[p]]++;
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t n = ends[e];
        if (n > 0)
            j->groups[j->n_groups++] =
                (struct group){((const uint64_t *)host_at(j->call->table))[e], at, n, e};
        ends[e] = at;
        at += n;
    }
    for (uint32_t p = 0; p < n_pairs; p++)
        if (takes_part(j, p, skip))
            j->pairs[ends[idx[p]]++] = p;
    return true;
}

static bool is_few(const struct job *j, const struct group *g)
{
    return !j->is_many || g->n <= FEW;
}

/* ---- products ---- */

/* Places the inputs for gemm_fixed of the groups that take it. */
static void place_fixed(struct job *j, struct host *h)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < j->n_groups; i++)
        bytes += is_few(j, &j->groups[i]) ? 0 : cpu_fixed_bytes(j->cols, j->groups[i].n);
    j->fixed = host_scratch(h, j->n_groups, sizeof *j->fixed);
    uint8_t *memory = host_scratch(h, bytes, 1);
    for (uint32_t i = 0; j->fixed && memory && i < j->n_groups; i++) {
        uint32_t n = j->groups[i].n;
        if (is_few(j, &j->groups[i]))
            continue;
        cpu_fixed_place(&j->fixed[i], j->cols, n, memory);
        memory += cpu_fixed_bytes(j->cols, n);
    }
}

/* Allocates inputs and results; n_floats: size of `floats`. Returns false if there is no memory. */
static bool make_room(struct job *j, struct host *h, uint32_t n_inputs, uint32_t widest, uint64_t n_floats)
{
    uint32_t most = 0;
    bool packs = false;
    for (uint32_t i = 0; i < j->n_groups; i++) {
        most = (uint32_t)size_max(most, j->groups[i].n);
        packs |= !is_few(j, &j->groups[i]);
    }
    j->digits_bytes = cpu_vector_bytes(widest, j->has_blocks);
    j->x = host_scratch(h, n_inputs, sizeof *j->x);
    j->digits = host_scratch(h, n_inputs, j->digits_bytes);
    j->floats = host_scratch(h, n_floats, sizeof *j->floats);
    j->picks = host_scratch(h, packs ? j->n_pairs : 0, sizeof *j->picks);
    if (packs && j->takes_fixed)
        place_fixed(j, h);
    else
        j->packed = host_scratch(h, packs ? (uint64_t)j->n_pairs * j->cols : 0, sizeof *j->packed);
    j->gemm_bytes = !packs           ? 0
                    : j->takes_fixed ? cpu_gemm_fixed_scratch_bytes(j->cols)
                                     : cpu_gemm_scratch_bytes(j->cols);
    j->room_bytes = j->gemm_bytes + size_round_up(2 * (uint64_t)most * j->block_rows * sizeof(float), 64);
    j->rooms = host_scratch(h, team_n_threads(h->team), j->room_bytes);
    return host_error(h) == 0;
}

static void place_input(const struct job *j, uint32_t i, const float *x, uint32_t cols)
{
    cpu_vector_place(&j->x[i], cols, j->has_blocks, j->digits + i * j->digits_bytes);
    j->isa->quantise(&j->x[i], x);
}

/* Prepares a group's inputs: for gemm from x, whose rows are `cols` apart; for gemm_fixed from j->x. */
static void pack_group(const struct job *j, const struct group *g, const float *x)
{
    uint32_t *picks = j->picks + g->first;
    for (uint32_t i = 0; i < g->n; i++)
        picks[i] = j->pairs[g->first + i] / j->per_input;
    if (j->takes_fixed) {
        const struct cpu_fixed *to = &j->fixed[g - j->groups];
        j->isa->pack_fixed(
            &(struct cpu_pack_fixed_call){.x = j->x, .pick = picks, .to = to, .last = cpu_fixed_tiles(to)});
        return;
    }
    const struct cpu_pack_call call = {.x = x,
                                       .x_stride = j->cols,
                                       .pick = picks,
                                       .n = g->n,
                                       .cols = j->cols,
                                       .last = cpu_n_tiles(g->n),
                                       .packed = j->packed + (uint64_t)g->first * j->cols};
    (j->takes_int16 ? j->isa->pack_int16 : j->isa->pack)(&call);
}

static float *products_of(const struct job *j, uint32_t thread)
{
    return (float *)(void *)(j->rooms + thread * j->room_bytes + j->gemm_bytes);
}

/* Multiplies rows of a group's matrix with the inputs of all its pairs: [pair][rows]. */
static void multiply(const struct job *j, const struct group *g, const struct weights *rows, uint32_t thread,
                     float *out)
{
    const struct cpu_matrix m = loops_matrix(rows);
    if (!is_few(j, g) && j->takes_fixed) {
        j->isa->gemm_fixed(&(struct cpu_gemm_fixed_call){.w = &m,
                                                         .x = &j->fixed[g - j->groups],
                                                         .last = rows->rows,
                                                         .y = out,
                                                         .y_stride = rows->rows,
                                                         .scratch = j->rooms + thread * j->room_bytes});
        return;
    }
    if (!is_few(j, g)) {
        const struct cpu_gemm_call call = {.w = &m,
                                           .packed = j->packed + (uint64_t)g->first * j->cols,
                                           .n = g->n,
                                           .last = rows->rows,
                                           .y = out,
                                           .y_stride = rows->rows,
                                           .scratch = j->rooms + thread * j->room_bytes};
        (j->takes_int16 ? j->isa->gemm_int16 : j->isa->gemm)(&call);
        return;
    }
    for (uint32_t from = 0, n; from < g->n; from += n, out += (uint64_t)n * rows->rows) {
        struct cpu_vector x[CPU_MAX_BATCHED];
        n = (uint32_t)size_min(g->n - from, CPU_MAX_BATCHED);
        for (uint32_t i = 0; i < n; i++)
            x[i] = j->x[j->pairs[g->first + from + i] / j->per_input];
        j->isa->gemv(&(struct cpu_gemv_call){
            .w = &m, .x = x, .n = n, .last = rows->rows, .y = out, .y_stride = rows->rows});
    }
}

/* Adds the biases to a group's products [n][n_rows]. at: index of the first row's bias. */
static void add_biases(const struct job *j, uint64_t biases, uint64_t at, uint32_t n, uint32_t n_rows,
                       float *products)
{
    for (uint32_t i = 0; j->shape->biased && i < n; i++)
        j->loops->add_scaled(products + (uint64_t)i * n_rows, host_floats(biases) + at, 1, n_rows);
}

/* Runs fn for the blocks of all groups. */
static void for_blocks(struct job *j, struct host *h, team_fn *fn)
{
    const uint32_t blocks[] = {0, j->n_blocks};
    team_for_rows(h->team, &(struct team_matrices){blocks, 1, j->n_groups}, fn, j);
}

static void divide_rows(struct job *j, uint32_t rows, uint32_t block_rows)
{
    j->block_rows = (uint32_t)size_min(block_rows, rows);
    j->n_blocks = div_up(rows, j->block_rows);
}

/* Rounds to whole strips if gemm may take the blocks. */
static uint32_t whole_strips(const struct job *j, uint32_t block_rows)
{
    return j->is_many ? (uint32_t)size_max(block_rows / STRIP, 1) * STRIP : block_rows;
}

/* ---- up ---- */

static void prepare_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t hidden = j->shape->hidden;
    float *p = j->floats + (uint64_t)t * hidden;
    (void)thread;
    j->loops->norm(host_floats(j->call->x) + (uint64_t)t * hidden, host_floats(j->call->norm), hidden,
                   j->shape->eps, p);
    place_input(j, t, p, hidden);
}

static void pack_for_up(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    (void)thread;
    if (!is_few(j, &j->groups[i]))
        pack_group(j, &j->groups[i], j->floats);
}

static void up_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct experts_shape *s = j->shape;
    const struct group *g = &j->groups[block / j->n_blocks];
    uint32_t first = block % j->n_blocks * j->block_rows;
    uint32_t n_rows = (uint32_t)size_min(j->block_rows, s->inner - first);
    const struct weights gate = part(g->expert, s->gate_w, s->gate_s, s->gate_b, s->inner, s->hidden,
                                     s->gate_format),
                         up = part(g->expert, s->up_w, s->up_s, s->up_b, s->inner, s->hidden, s->up_format);
    const struct weights gate_rows = weights_rows(&gate, first, n_rows),
                         up_rows = weights_rows(&up, first, n_rows);
    bool is_gateless = experts_are_gateless(s);
    float *gates = products_of(j, thread), *ups = is_gateless ? gates : gates + (uint64_t)g->n * n_rows;
    if (!is_gateless)
        multiply(j, g, &gate_rows, thread, gates);
    multiply(j, g, &up_rows, thread, ups);
    uint64_t bias_at = (uint64_t)g->idx * s->inner + first;
    add_biases(j, j->call->biases.gate_up, bias_at, g->n, n_rows, gates);
    add_biases(j, j->call->biases.gate_up, bias_at + (uint64_t)s->n_experts * s->inner, g->n, n_rows, ups);
    for (uint32_t i = 0; i < g->n; i++)
        gating_run(j->loops, j->shape->gating, gates + (uint64_t)i * n_rows, ups + (uint64_t)i * n_rows,
                   n_rows,
                   host_floats_mut(j->call->act) + (uint64_t)j->pairs[g->first + i] * s->inner + first);
}

int experts_up_cpu(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    struct job j = {.shape = s,
                    .call = c,
                    .loops = loops_of(h),
                    .isa = h->isa,
                    .n_pairs = c->n * s->top_k,
                    .cols = s->hidden,
                    .per_input = s->top_k};
    const struct weights gate = {.rows = s->inner, .cols = s->hidden, .format = s->gate_format};
    j.is_many = takes_many(c, h);
    j.takes_fixed =
        h->takes_fixed && cpu_format_takes_fixed(s->gate_format) && cpu_format_takes_fixed(s->up_format);
    j.takes_int16 =
        h->takes_int16 && cpu_format_takes_int16(s->gate_format) && cpu_format_takes_int16(s->up_format);
    j.has_blocks = format_is_block(s->gate_format) || format_is_block(s->up_format);
    divide_rows(&j, s->inner, whole_strips(&j, loops_block_rows(&gate)));
    if (!sort_pairs(&j, h, c->skip) || !make_room(&j, h, c->n, s->hidden, (uint64_t)c->n * s->hidden))
        return host_error(h);
    team_for(h->team, c->n, prepare_token, &j);
    if (j.is_many)
        team_for(h->team, j.n_groups, pack_for_up, &j);
    for_blocks(&j, h, up_block);
    return 0;
}

/* ---- down ---- */

static void shared_act(const struct job *j, uint32_t t, float *out)
{
    const struct experts_call *c = j->call;
    uint32_t inner = c->shared_down.cols;
    const float *from = host_floats(c->shared_in) + (uint64_t)t * c->shared_stride + j->shape->n_experts +
                        j->shape->shared_gate;
    gating_run(j->loops, j->shape->shared_gating, from, experts_are_gateless(j->shape) ? from : from + inner,
               inner, out);
}

/* Returns the weight of a token's shared expert. */
static float shared_weight(const struct job *j, uint32_t t)
{
    const struct experts_call *c = j->call;
    float w = 1;
    if (j->shape->shared_gate)
        j->loops->sigmoid(host_floats(c->shared_in) + (uint64_t)t * c->shared_stride + j->shape->n_experts, 1,
                          &w);
    return w;
}

/* Prepares the activations of a pair, or of a token's shared expert. */
static void prepare_act(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct experts_call *c = j->call;
    (void)thread;
    if (i < j->n_pairs && !is_there(j, i))
        return;
    if (i < j->n_pairs) {
        place_input(j, i, host_floats(c->act) + (uint64_t)i * j->shape->inner, j->shape->inner);
        return;
    }
    float *act = j->floats + (uint64_t)(i - j->n_pairs) * c->shared_down.cols;
    shared_act(j, i - j->n_pairs, act);
    if (!cpu_format_takes_digits(c->shared_down.format))
        j->x[i] = (struct cpu_vector){.x = act, .cols = c->shared_down.cols};
    else
        place_input(j, i, act, c->shared_down.cols);
}

/* Computes a block of rows of all parts: of all pairs, then of the shared experts. */
static void multiply_all(const struct job *j, uint32_t first, uint32_t n_rows, uint32_t thread, float *parts)
{
    const struct experts_call *c = j->call;
    for (uint32_t e = 0; e < j->n_groups; e++) {
        const struct group *g = &j->groups[e];
        const struct weights all = down_of(j->shape, g->expert), rows = weights_rows(&all, first, n_rows);
        float *some = products_of(j, thread);
        multiply(j, g, &rows, thread, some);
        add_biases(j, c->biases.down, (uint64_t)g->idx * j->shape->hidden + first, g->n, n_rows, some);
        for (uint32_t i = 0; i < g->n; i++)
            memcpy(parts + (uint64_t)j->pairs[g->first + i] * n_rows, some + (uint64_t)i * n_rows,
                   n_rows * sizeof *parts);
    }
    if (c->shared_down.cols == 0)
        return;
    const struct weights rows = weights_rows(&c->shared_down, first, n_rows);
    const struct cpu_matrix m = loops_matrix(&rows);
    j->isa->gemv(&(struct cpu_gemv_call){.w = &m,
                                         .x = &j->x[j->n_pairs],
                                         .n = c->n,
                                         .last = n_rows,
                                         .y = parts + (uint64_t)j->n_pairs * n_rows,
                                         .y_stride = n_rows});
}

static void down_block_of_few(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct experts_shape *s = j->shape;
    const struct experts_call *c = j->call;
    uint32_t first = block * j->block_rows, n_rows = (uint32_t)size_min(j->block_rows, s->hidden - first);
    float *parts = j->parts + (uint64_t)thread * (j->n_pairs + c->n) * j->block_rows;
    multiply_all(j, first, n_rows, thread, parts);
    for (uint32_t t = 0; t < c->n; t++) {
        float sum[LOOPS_MAX_BLOCK_ROWS] = {0}, *x = host_floats_mut(c->x) + (uint64_t)t * s->hidden + first;
        for (uint32_t k = 0; k < s->top_k; k++) {
            uint64_t pair = (uint64_t)t * s->top_k + k;
            if (is_there(j, pair))
                j->loops->add_scaled(sum, parts + pair * n_rows, host_floats(c->weights)[pair], n_rows);
        }
        if (c->shared_down.cols > 0)
            j->loops->add_scaled(sum, parts + (uint64_t)(j->n_pairs + t) * n_rows, shared_weight(j, t),
                                 n_rows);
        for (uint32_t r = 0; r < n_rows; r++)
            x[r] += sum[r];
    }
}

static int down_of_few(struct job *j, struct host *h)
{
    const struct experts_call *c = j->call;
    uint32_t n_all = j->n_pairs + (c->shared_down.cols > 0 ? c->n : 0);
    j->parts = host_scratch(h, (uint64_t)team_n_threads(h->team) * (j->n_pairs + c->n) * j->block_rows,
                            sizeof *j->parts);
    if (!j->parts)
        return host_error(h);
    team_for(h->team, n_all, prepare_act, j);
    team_for(h->team, j->n_blocks, down_block_of_few, j);
    return 0;
}

static void pack_for_down(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct group *g = &j->groups[i];
    for (uint32_t p = 0; (is_few(j, g) || j->takes_fixed) && p < g->n; p++)
        prepare_act(ctx, j->pairs[g->first + p], thread);
    if (!is_few(j, g))
        pack_group(j, g, host_floats(j->call->act));
}

static void down_block_of_many(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct experts_shape *s = j->shape;
    const struct group *g = &j->groups[block / j->n_blocks];
    uint32_t first = block % j->n_blocks * j->block_rows;
    uint32_t n_rows = (uint32_t)size_min(j->block_rows, s->hidden - first);
    const struct weights all = down_of(s, g->expert), rows = weights_rows(&all, first, n_rows);
    float *some = products_of(j, thread);
    multiply(j, g, &rows, thread, some);
    add_biases(j, j->call->biases.down, (uint64_t)g->idx * s->hidden + first, g->n, n_rows, some);
    for (uint32_t i = 0; i < g->n; i++)
        memcpy(j->parts + (uint64_t)j->pairs[g->first + i] * s->hidden + first, some + (uint64_t)i * n_rows,
               n_rows * sizeof *some);
}

/* Adds up a token's parts in the place of the first one. */
static void mix_parts(const struct job *j, uint32_t t)
{
    const struct experts_shape *s = j->shape;
    float *x = host_floats_mut(j->call->x) + (uint64_t)t * s->hidden, *sum = NULL;
    for (uint32_t k = 0; k < s->top_k; k++) {
        uint64_t pair = (uint64_t)t * s->top_k + k;
        float *part = j->parts + pair * s->hidden, w = host_floats(j->call->weights)[pair];
        if (!is_there(j, pair))
            continue;
        if (sum)
            j->loops->add_scaled(sum, part, w, s->hidden);
        for (uint32_t r = 0; !sum && r < s->hidden; r++)
            part[r] *= w;
        sum = sum ? sum : part;
    }
    for (uint32_t r = 0; sum && r < s->hidden; r++)
        x[r] += sum[r];
}

/* Adds up a token's parts, and computes the activations of its shared expert. */
static void mix_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct experts_call *c = j->call;
    uint32_t inner = c->shared_down.cols;
    (void)thread;
    mix_parts(j, t);
    if (inner == 0)
        return;
    float *act = j->floats + (uint64_t)t * inner, by = shared_weight(j, t);
    shared_act(j, t, act);
    for (uint32_t i = 0; i < inner; i++)
        act[i] *= by;
}

static int down_of_many(struct job *j, struct host *h)
{
    const struct experts_shape *s = j->shape;
    const struct experts_call *c = j->call;
    j->parts = host_floats_mut(c->scratch);
    team_for(h->team, j->n_groups, pack_for_down, j);
    for_blocks(j, h, down_block_of_many);
    if (c->more)
        return 0;
    team_for(h->team, c->n, mix_token, j);
    if (c->shared_down.cols == 0)
        return 0;
    return linear_cpu(c->shared_out,
                      &(struct linear_call){.x = (uint64_t)(uintptr_t)j->floats,
                                            .y = c->x,
                                            .x_stride = c->shared_down.cols,
                                            .y_stride = s->hidden,
                                            .n = c->n,
                                            .chunk = c->chunk,
                                            .add = true},
                      h);
}

/* Returns the rows of a block for a few tokens, which reads these rows of every expert: as many as leave each
 * thread some blocks, so that the reads of an expert are long. */
static uint32_t few_rows(uint32_t hidden, uint32_t n_threads)
{
    uint32_t rows = hidden / (BLOCKS_A_THREAD * n_threads) / LEAST_ROWS * LEAST_ROWS;
    return (uint32_t)size_max(size_min(rows, LOOPS_MAX_BLOCK_ROWS), LEAST_ROWS);
}

uint64_t experts_cpu_scratch(const struct experts_shape *s, uint32_t n)
{
    return n > FEW ? (uint64_t)n * s->top_k * s->hidden : 0;
}

/* Returns the bytes of packed inputs of all pairs. The tiles of more than FEW tokens have at most half as
 * many places again. */
static uint64_t packed_bytes(uint32_t cols, uint64_t pairs, bool has_fixed)
{
    uint64_t floats = pairs * cols * sizeof(float);
    return has_fixed ? size_max(floats, cpu_fixed_bytes(cols, (uint32_t)(pairs + pairs / 2))) : floats;
}

uint64_t experts_cpu_host_bytes(const struct experts_shape *s, uint32_t n, bool has_fixed, bool has_blocks)
{
    uint64_t pairs = (uint64_t)n * s->top_k;
    uint64_t up = n * (s->hidden * sizeof(float) + cpu_vector_bytes(s->hidden, has_blocks)) +
                  packed_bytes(s->hidden, pairs, has_fixed);
    uint64_t down = pairs * cpu_vector_bytes(s->inner, has_blocks) + packed_bytes(s->inner, pairs, has_fixed);
    return size_max(up, down);
}

int experts_down_cpu(const void *self, const void *what, struct host *h)
{
    struct experts_shape shape = ((const struct experts *)self)->shape, *s = &shape;
    const struct experts_call *c = what;
    shape.top_k = c->only_shared ? 0 : shape.top_k;
    struct job j = {.shape = s,
                    .call = c,
                    .loops = loops_of(h),
                    .isa = h->isa,
                    .n_pairs = c->n * s->top_k,
                    .cols = s->inner,
                    .per_input = 1};
    const struct weights down = {.rows = s->hidden, .cols = s->inner, .format = s->down_format};
    uint32_t rows = loops_block_rows(&down);
    j.is_many = takes_many(c, h);
    j.takes_fixed = h->takes_fixed && j.is_many && cpu_format_takes_fixed(s->down_format);
    j.takes_int16 = h->takes_int16 && j.is_many && cpu_format_takes_int16(s->down_format);
    j.has_blocks = format_is_block(s->down_format) || format_is_block(c->shared_down.format);
    /* A block of few tokens reads its rows of every expert. */
    divide_rows(&j, s->hidden,
                j.is_many ? whole_strips(&j, rows) : (uint32_t)few_rows(s->hidden, team_n_threads(h->team)));
    if (!sort_pairs(&j, h, 0) ||
        !make_room(&j, h, j.n_pairs + c->n, (uint32_t)size_max(s->inner, c->shared_down.cols),
                   (uint64_t)c->n * c->shared_down.cols))
        return host_error(h);
    return j.is_many ? down_of_many(&j, h) : down_of_few(&j, h);
}
