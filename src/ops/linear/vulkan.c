/* The Vulkan implementation of linear.h: groups the matrices, chooses a kernel for each path, and
 * dispatches. */
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "exec/fragment_layout.h"
#include "ops/linear/gemm_plan.h"
#include "ops/linear/gemv_plan.h"
#include "ops/linear/linear.h"

/* Most tokens at once in kernels/linear/decode.comp and kernels/linear/plain.comp. */
enum { FEW_TOKENS = 4 };
/* Most rows for which LINEAR_SPLIT is faster than LINEAR_GEMV_SOME (257 x 2,048 on an H100: 64 tokens 11 us
 * instead of 18; 512 tokens 67, 101 in tiles). */
enum { SPLIT_MOST_ROWS = 1024 };
/* Fewest rows for which LINEAR_F16_REGISTERS has enough workgroups without smaller tiles. */
enum { MANY_ROWS = 6000 };
/* The constants of kernels/linear/plain.comp. */
enum { PLAIN_N_SPEC = 4 };
/* The constants of kernels/linear/prefill_split.comp, and what one of its workgroups computes. */
enum { SPLIT_N_SPEC = 5, SPLIT_GROUP = 256, SPLIT_ROWS = 8, SPLIT_TOKENS = 4 };
/* The constants of kernels/linear/decode_token.comp after those of lib/gemv.glsl. */
enum { TOKEN_HEAD_SHIFT = GEMV_N_SPEC, TOKEN_SEVERAL, TOKEN_N_SPEC };

/* Returns whether only kernels/linear/plain.comp takes the matrices. */
static bool is_uneven(const struct linear *op)
{
    return weights_are_uneven(&op->w[0]);
}

/* What a workgroup of a path's kernel computes, and how the kernel is specialised. */
struct tile {
    enum { TILE_PLAIN, TILE_GEMV, TILE_LONG, TILE_SPLIT, TILE_GEMM } kind;
    union {
        uint32_t plain[PLAIN_N_SPEC];
        uint32_t split[SPLIT_N_SPEC];
        struct gemv_plan gemv;
        struct gemm_plan gemm;
    };
    uint32_t rows, tokens; /* a workgroup's */
};

/* Returns whether the path takes blocked float16 inputs (ops/cast_f16.h). */
static bool is_in_registers(enum linear_path path)
{
    return path == LINEAR_F16_REGISTERS || path == LINEAR_F16_REGISTERS_LARGE;
}

/* A matrix has few tiles if there are few tokens. Subgroups share its columns, so that there are enough of
 * them to load the weights. Small tiles take few registers, so that all of them run at once. (H100, 64
 * tokens: 12,352 x 2,048 with 32 tokens and 64 rows a tile instead of 64 and 128, and 2,048 x 4,096 with 16
 * tokens instead of 32: 23.5 us on average instead of 31.8.) */
static struct gemm_plan registers_plan(const struct exec *x, enum linear_path path, uint32_t rows)
{
    if (path == LINEAR_F16_REGISTERS_LARGE)
        return gemm_frag_plan_for(x, 64, 4, 1);
    return rows >= MANY_ROWS ? gemm_frag_plan_for(x, 32, 2, 2) : gemm_frag_plan_for(x, 16, 1, 8);
}

/* Returns the most tokens at once of a path before LINEAR_GEMV_SOME. */
static uint32_t tokens_of(enum linear_path path)
{
    return path == LINEAR_GEMV ? 1 : path == LINEAR_GEMV_TWO ? 2 : FEW_TOKENS;
}

static enum gemm_tile gemm_tile_for(enum linear_path path)
{
    switch (path) {
    case LINEAR_F16_GEMM_SMALL:
        return GEMM_TILE_16;
    case LINEAR_GEMM:
    case LINEAR_F16_GEMM:
        return GEMM_TILE_64;
    default:
        return GEMM_TILE_128;
    }
}

/* formats, here and below: a part of a set (base/format.h). */
static struct tile plain_tile(const struct exec *x, enum linear_path path, uint64_t formats)
{
    struct exec_caps c = exec_get_caps(x);
    uint32_t subgroups = (uint32_t)size_max(1, size_min(256, c.max_workgroup) / c.subgroup_size);
    uint32_t tokens = path == LINEAR_GEMV ? 1 : FEW_TOKENS;
    return (struct tile){
        .kind = TILE_PLAIN,
        .plain = {c.subgroup_size, subgroups * c.subgroup_size, format_constant(formats), tokens},
        .rows = subgroups,
        .tokens = tokens};
}

/* Gives an invocation eight columns. */
static struct tile split_tile(const struct exec *x, uint32_t cols, uint64_t formats)
{
    struct exec_caps c = exec_get_caps(x);
    uint32_t group =
        (uint32_t)size_min(size_min(SPLIT_GROUP, c.max_workgroup), size_round_up(cols / 8, c.subgroup_size));
    return (struct tile){.kind = TILE_SPLIT,
                         .split = {c.subgroup_size, group - group % c.subgroup_size, SPLIT_ROWS, SPLIT_TOKENS,
                                   format_constant(formats)},
                         .rows = SPLIT_ROWS,
                         .tokens = SPLIT_TOKENS};
}

static uint64_t lowest_address(const struct weights *w, uint32_t n)
{
    uint64_t low = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const struct format *f = format_of(w[i].format);
        low = size_min(low, w[i].weight);
        low = f->scale_bytes ? size_min(low, w[i].scales) : low;
        low = f->has_bias || f->has_factor ? size_min(low, w[i].biases) : low;
    }
    return low / 4 * 4;
}

/* Sets *out to the words from base to address. Returns false if their number does not fit or address is not a
 * multiple of 4. */
static bool words_from(uint64_t base, uint64_t address, uint32_t *out)
{
    uint64_t words = (address - base) / 4;
    *out = (uint32_t)words;
    return words <= UINT32_MAX && address % 4 == 0;
}

/* Returns whether kernels/linear/decode_token.comp suits the segments; if so, *out describes them. */
static bool describe_token(const struct linear *op, const struct linear_part *part, uint32_t workgroup_rows,
                           struct linear_decode_token_args *out)
{
    const struct weights *first = &op->w[part->first];
    struct linear_decode_token_args all = {.base = lowest_address(first, part->n), .cols = op->cols};
    uint32_t row = 0, block = 0;
    bool suits = op->n_stacked == 1 && part->n <= LINEAR_TOKEN_SEGMENTS;
    memset(all.later_blocks, 0xff, sizeof all.later_blocks);
    for (uint32_t i = 0; i < part->n && suits; i++) {
        const struct weights *w = &first[i];
        const struct format *f = format_of(w->format);
        if (i > 0)
            all.later_blocks[i - 1] = block;
        row += w->rows;
        block += div_up(w->rows, workgroup_rows);
        all.end_row[i] = row;
        all.call |= (format_is_basic(w->format) ? w->format : 0) << 2 * i;
        suits = words_from(all.base, w->weight, &all.weight[i]);
        if (suits && f->scale_bytes)
            suits = words_from(all.base, w->scales, &all.scales[i]);
        if (suits && (f->has_bias || f->has_factor))
            suits = words_from(all.base, w->biases, &all.biases[i]);
    }
    if (format_is_block(first->format)) { /* the address of the code books */
        all.scales[0] = (uint32_t)first->scales;
        all.scales[1] = (uint32_t)(first->scales >> 32);
    }
    if (suits)
        *out = all;
    return suits;
}

static struct tile tile_for(const struct exec *x, enum linear_path path, const struct linear *op,
                            const struct linear_part *part)
{
    uint64_t formats = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < part->n; i++) {
        formats |= format_set(op->w[part->first + i].format);
        least = (uint32_t)size_min(least, op->w[part->first + i].rows);
    }
    if (is_uneven(op))
        return plain_tile(x, path, formats);
    if (path == LINEAR_SPLIT)
        return split_tile(x, op->cols, formats);
    if (path >= LINEAR_GEMM) {
        struct gemm_plan p = is_in_registers(path) ? registers_plan(x, path, op->rows)
                             : path >= LINEAR_F16_GEMM_SMALL
                                 ? gemm_f16_plan_for(x, gemm_tile_for(path), formats)
                                 : gemm_plan_for(x, gemm_tile_for(path), formats);
        return (struct tile){.kind = TILE_GEMM, .gemm = p, .rows = p.rows, .tokens = p.tokens};
    }
    bool is_some = path == LINEAR_GEMV_SOME;
    struct linear_decode_token_args unused;
    bool can_stream = !is_some && describe_token(op, part, 1, &unused);
    const struct gemv_shape shape = {
        part->rows * op->n_stacked, op->cols, is_some ? FEW_TOKENS : 1, formats, 1, least,
        can_stream ? part->n : 0};
    uint32_t cols = can_stream && part->n == 1 ? gemv_part_cols(x, &shape) : 0;
    struct gemv_plan p = cols ? gemv_plan_parts(x, &shape, cols) : gemv_plan_for(x, &shape);
    if (!cols && !is_some)
        p = gemv_plan_concurrent(x, &shape, &p, tokens_of(path));
    return (struct tile){
        .kind = cols ? TILE_LONG : TILE_GEMV, .gemv = p, .rows = p.workgroup_rows, .tokens = p.tokens};
}

/* Opens kernels/linear/decode_token.comp or decode_long.comp. */
static int make_token_kernel(struct exec *x, struct kernel *k, const struct tile *t, enum linear_path path,
                             uint32_t head_shift, struct moeflux_err *e)
{
    uint32_t spec[TOKEN_N_SPEC] = {[TOKEN_HEAD_SHIFT] = head_shift, [TOKEN_SEVERAL] = path != LINEAR_GEMV};
    memcpy(spec, t->gemv.spec, sizeof t->gemv.spec);
    return (path == LINEAR_GEMV ? gemv_kernel : gemv_kernel_later)(
        x, k, t->kind == TILE_LONG ? "linear_decode_long" : "linear_decode_token",
        sizeof(struct linear_decode_token_args), spec, TOKEN_N_SPEC, e);
}

/* Kernels that only prompts need are compiled when one needs them. */
static int make_kernel(struct exec *x, struct kernel *k, const struct tile *t, enum linear_path path,
                       uint64_t formats, struct moeflux_err *e)
{
    const uint32_t bytes = sizeof(struct linear_args);
    char name[64];
    if (t->kind == TILE_GEMM)
        return gemm_kernel(x, k, "linear_prefill", bytes, &t->gemm, e);
    if (t->kind != TILE_PLAIN && t->kind != TILE_SPLIT)
        return (path == LINEAR_GEMV ? gemv_kernel : gemv_kernel_later)(x, k, "linear_decode", bytes,
                                                                       t->gemv.spec, GEMV_N_SPEC, e);
    snprintf(name, sizeof name, "%s%s", t->kind == TILE_PLAIN ? "linear_plain" : "linear_prefill_split",
             gemv_suffix(formats));
    if (t->kind == TILE_PLAIN)
        return (path == LINEAR_GEMV ? exec_kernel : exec_kernel_later)(x, k, name, bytes, t->plain,
                                                                       PLAIN_N_SPEC, e);
    return exec_kernel_later(x, k, name, bytes, t->split, SPLIT_N_SPEC, e);
}

/* table: the path's table of the part, an entry for each of its segments. */
static int plan_path(struct linear *op, enum linear_path path, struct linear_part *part, struct exec *x,
                     struct linear_segment *table, struct moeflux_err *e)
{
    struct linear_plan *plan = &part->paths[path];
    uint32_t row = part->row;
    struct tile t = tile_for(x, path, op, part);
    plan->tokens = t.tokens;
    memset(plan->later_blocks, 0xff, sizeof plan->later_blocks);
    for (uint32_t i = 0; i < part->n; row += op->w[part->first + i++].rows) {
        const struct weights *w = &op->w[part->first + i];
        if (i > 0)
            plan->later_blocks[i - 1] = plan->blocks;
        table[i] = (struct linear_segment){.weight = w->weight,
                                           .scales = w->scales,
                                           .biases = w->biases,
                                           .rows = w->rows,
                                           .format = w->format,
                                           .first_row = row,
                                           .first_block = plan->blocks};
        plan->blocks += div_up(w->rows, t.rows);
    }
    part->is_long |= t.kind == TILE_LONG;
    if (path < LINEAR_GEMV_SOME && t.kind != TILE_PLAIN &&
        describe_token(op, part, t.rows, &part->token[path]))
        return make_token_kernel(x, &plan->kernel, &t, path, 0, e);
    return make_kernel(x, &plan->kernel, &t, path, format_set(op->w[part->first].format), e);
}

static bool goes_with(uint32_t a, uint32_t b)
{
    return a == b || (format_is_basic(a) && format_is_basic(b));
}

static void find_parts(struct linear *op)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < op->n_segments; row += op->w[i++].rows) {
        if (i == 0 || !goes_with(op->w[i - 1].format, op->w[i].format))
            op->gpu.parts[op->gpu.n_parts++] = (struct linear_part){.first = i, .row = row};
        op->gpu.parts[op->gpu.n_parts - 1].n++;
        op->gpu.parts[op->gpu.n_parts - 1].rows += op->w[i].rows;
    }
}

/* Returns the index of a part's table; the parts' tables are contiguous. */
static uint64_t first_entry(const struct linear_part *part, uint32_t path)
{
    return (uint64_t)part->first * LINEAR_PATHS + (uint64_t)path * part->n;
}

/* Fewest rows times tokens. GEMM_WORK: 32 tiles of 64 x 64, GEMM_WORK_AFTER_SPLIT: 48. GEMM_LARGE_WORK: 256
 * of 128 x 128. F16_WORK: 128 of 64 x 64, F16_LARGE_WORK: of 128 x 128. REGISTERS_WORK: 264 of 128 x 64. */
enum {
    GEMM_WORK = 32 * 64 * 64,
    GEMM_WORK_AFTER_SPLIT = 48 * 64 * 64,
    GEMM_LARGE_WORK = 256 * 128 * 128,
    F16_WORK = 128 * 64 * 64,
    F16_LARGE_WORK = 128 * 128 * 128,
    REGISTERS_WORK = 264 * 128 * 64
};

/* Returns whether LINEAR_F16_REGISTERS is possible: 1, 0 or an error. */
static int may_use_registers(const struct linear *op, struct exec *x, struct moeflux_err *e)
{
    bool suits = op->cols % GEMM_FRAG_COLS == 0 && op->n_stacked == 1 && !is_uneven(op);
    for (uint32_t i = 0; i < op->n_segments; i++)
        suits = suits && op->w[i].format == FORMAT_Q4;
    return suits ? fragment_layout_probe(x, e) : 0;
}

/* Sets the number of tokens from which each path is the fastest. */
static void set_limits(struct linear *op, const struct exec *x, bool has_known_layout)
{
    const struct exec_caps caps = exec_get_caps(x);
    bool has_gemm = gemm_is_possible(&caps) && !is_uneven(op), has_f16 = gemm_has_f16(x) && !is_uneven(op);
    uint32_t rows = op->rows * op->n_stacked, *from = op->gpu.from;
    from[LINEAR_GEMV] = 0;
    from[LINEAR_GEMV_TWO] = 2;
    from[LINEAR_GEMV_FEW] = 3;
    from[LINEAR_GEMV_SOME] = EXEC_MAX_INVARIANT + 1;
    bool splits = rows <= SPLIT_MOST_ROWS && !is_uneven(op);
    from[LINEAR_SPLIT] = splits ? EXEC_MAX_INVARIANT + 1 : UINT32_MAX;
    /* Few tiles leave most of a GPU idle. */
    uint32_t gemm_work = splits ? GEMM_WORK_AFTER_SPLIT : GEMM_WORK;
    from[LINEAR_GEMM] = has_gemm ? (uint32_t)size_max(16, gemm_work / rows) : UINT32_MAX;
    from[LINEAR_GEMM_LARGE] = has_gemm ? (uint32_t)size_max(256, GEMM_LARGE_WORK / rows) : UINT32_MAX;
    /* H200, 35B-A3B: a prompt of 16 tokens 8.6 ms instead of 15, one of 24 tokens 9.9 instead of 16. */
    from[LINEAR_F16_GEMM_SMALL] = has_f16 ? EXEC_MAX_INVARIANT + 1 : UINT32_MAX;
    from[LINEAR_F16_REGISTERS] = has_known_layout ? EXEC_MAX_INVARIANT + 1 : UINT32_MAX;
    from[LINEAR_F16_GEMM] =
        has_f16 ? (uint32_t)size_max(has_known_layout ? 97 : 64, F16_WORK / rows) : UINT32_MAX;
    from[LINEAR_F16_GEMM_LARGE] = has_f16 ? (uint32_t)size_max(512, F16_LARGE_WORK / rows) : UINT32_MAX;
    from[LINEAR_F16_REGISTERS_LARGE] =
        has_known_layout ? (uint32_t)size_max(97, REGISTERS_WORK / rows) : UINT32_MAX;
    op->f16_from = from[LINEAR_F16_GEMM_SMALL];
}

/* Block formats have no scales: the kernels get the address of the code books in their place. */
static int place_books(struct linear *op, struct exec *x, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < op->n_segments; i++)
        if (format_is_block(op->w[i].format)) {
            rc = code_books_open(x, e);
            op->w[i].scales = code_books_or_scales(x, op->w[i].format, 0);
        }
    return rc;
}

int linear_vulkan_open(struct linear *op, struct exec *x, struct moeflux_err *e)
{
    struct linear_segment table[LINEAR_PATHS * LINEAR_MAX_SEGMENTS] = {0};
    uint32_t n = op->n_segments;
    int rc = place_books(op, x, e);
    if (rc < 0)
        return rc;
    int has_known_layout = may_use_registers(op, x, e);
    if (has_known_layout < 0)
        return has_known_layout;
    set_limits(op, x, has_known_layout);
    if (gemm_has_f16(x))
        rc = cast_f16_open(&op->gpu.cast, x, e);
    find_parts(op);
    for (uint32_t k = 0; k < op->gpu.n_parts; k++)
        for (uint32_t i = 0; rc == 0 && i < LINEAR_PATHS; i++)
            if (op->gpu.from[i] < UINT32_MAX)
                rc = plan_path(op, (enum linear_path)i, &op->gpu.parts[k], x,
                               table + first_entry(&op->gpu.parts[k], i), e);
    if (rc == 0)
        rc =
            exec_buffer_new(x, &op->gpu.segments, EXEC_DEVICE, LINEAR_PATHS * (uint64_t)n * sizeof *table, e);
    if (rc == 0)
        rc = exec_write(x, &op->gpu.segments, 0, table, op->gpu.segments.bytes, e);
    for (uint32_t k = 0; k < op->gpu.n_parts; k++)
        op->gpu.parts[k].segments =
            op->gpu.segments.address + first_entry(&op->gpu.parts[k], 0) * sizeof *table;
    if (rc < 0)
        linear_close(op, x);
    return rc;
}

static int make_heads(const struct linear *op, struct linear_part *part, struct exec *x, uint32_t shift,
                      struct moeflux_err *e)
{
    int rc = 0;
    for (enum linear_path path = LINEAR_GEMV; rc == 0 && path < LINEAR_GEMV_SOME; path++) {
        const struct tile t = tile_for(x, path, op, part);
        rc = make_token_kernel(x, &part->heads[path], &t, path, shift, e);
    }
    return rc;
}

int linear_vulkan_expect_squares(struct linear *op, struct exec *x, uint32_t head_dim, struct moeflux_err *e)
{
    uint32_t shift = 2;
    while (shift < 31 && 1u << shift < head_dim)
        shift++;
    bool can = 1u << shift == head_dim && op->cols % head_dim == 0;
    for (uint32_t i = 0; i < op->gpu.n_parts; i++)
        can = can && op->gpu.parts[i].token[LINEAR_GEMV].base && !op->gpu.parts[i].is_long;
    op->gpu.head_dim = can ? head_dim : 0;
    int rc = 0;
    for (uint32_t i = 0; can && rc == 0 && i < op->gpu.n_parts; i++)
        rc = make_heads(op, &op->gpu.parts[i], x, shift, e);
    return rc;
}

/* Replaces the float32 input by a float16 one, with its norm. */
static void cast_input(const struct linear *op, struct exec *x, const struct linear_call *call,
                       bool is_blocked, struct linear_args *a)
{
    uint32_t cols = a->n_stacked > 1 && call->x_step ? a->n_stacked * call->x_step : op->cols;
    if (!call->is_cast)
        cast_f16_run(&op->gpu.cast, x,
                     &(struct cast_f16_call){.x = call->x,
                                             .norm = call->norm,
                                             .dst = call->f16_scratch,
                                             .n = call->n,
                                             .cols = cols,
                                             .x_stride = call->x_stride,
                                             .eps = call->eps,
                                             .is_blocked = is_blocked});
    a->x = call->f16_scratch;
    a->norm = 0;
    a->x_stride = cols;
}

static enum linear_path path_of(const struct linear *op, const struct linear_call *call)
{
    /* The kernels read eight float16 numbers at once. */
    bool may_cast = (call->f16_scratch || call->is_f16) && call->x_step % 8 == 0;
    uint32_t path = may_cast ? LINEAR_PATHS - 1 : LINEAR_GEMM_LARGE;
    /* Inputs that already are float16 are not blocked. */
    while ((call->chunk ? call->chunk : call->n) < op->gpu.from[path] ||
           (call->is_f16 && is_in_registers((enum linear_path)path)))
        path--;
    return (enum linear_path)path;
}

bool linear_vulkan_takes_blocked(const struct linear *op, uint32_t n)
{
    return is_in_registers(path_of(op, &(struct linear_call){.n = n, .f16_scratch = 1}));
}

static void run_token(const struct linear_part *part, struct exec *x, enum linear_path path,
                      const struct linear_call *call)
{
    const struct linear_plan *plan = &part->paths[path];
    struct linear_decode_token_args a = part->token[path];
    a.x = call->x;
    a.norm = call->squares ? call->squares : call->norm;
    a.y = call->y + 4 * (uint64_t)part->row;
    a.call = LINEAR_TOKEN_CALL(a.call, call->add, call->n);
    a.x_stride = call->x_stride;
    a.y_stride = call->y_stride;
    a.eps = call->eps;
    exec_dispatch(x, call->squares ? &part->heads[path] : &plan->kernel, &a, plan->blocks,
                  div_up(call->n, plan->tokens), 1);
}

/* a: all arguments except the part's. */
static void run_part(const struct linear_part *part, struct exec *x, enum linear_path path,
                     const struct linear_call *call, struct linear_args *a)
{
    const struct linear_plan *plan = &part->paths[path];
    a->segments = part->segments + (uint64_t)path * part->n * sizeof(struct linear_segment);
    a->n_segments = part->n;
    memcpy(a->later_blocks, plan->later_blocks, sizeof a->later_blocks);
    exec_dispatch(x, &plan->kernel, a, plan->blocks, div_up(call->n, plan->tokens), a->n_stacked);
}

void linear_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct linear *op = self;
    const struct linear_call *call = what;
    enum linear_path path = path_of(op, call);
    struct linear_args a = {.x = call->x,
                            .norm = call->norm,
                            .y = call->y,
                            .cols = op->cols,
                            .x_stride = call->x_stride,
                            .y_stride = call->y_stride,
                            .n = call->n,
                            .store = call->is_f16 ? LINEAR_F16
                                     : call->add  ? LINEAR_ADD
                                                  : LINEAR_SET,
                            .x_step = call->x_step,
                            .y_step = call->y_step,
                            .n_stacked = call->n_stacked ? call->n_stacked : op->n_stacked,
                            .first_stacked = call->first_stacked,
                            .step = op->step,
                            .eps = call->eps};
    if (path >= LINEAR_F16_GEMM_SMALL && !call->is_f16)
        cast_input(op, x, call, is_in_registers(path), &a);
    for (uint32_t i = 0; i < op->gpu.n_parts; i++) {
        const struct linear_part *part = &op->gpu.parts[i];
        if (i > 0) /* they write different rows */
            exec_concurrent(x);
        if (path < LINEAR_GEMV_SOME && part->token[path].base)
            run_token(part, x, path, call);
        else
            run_part(part, x, path, call, &a);
    }
}
