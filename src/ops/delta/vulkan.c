/* The Vulkan implementation of delta.h: chooses the kernels of kernels/delta/ and dispatches them. */
#include <stdbool.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/delta/delta.h"

/* DECODE_PARTS: lanes that share a row of S; enough to read 128 contiguous bytes, few enough for short sums
 * over the row. DECODE_GROUP: lanes of a head. The work besides the rows, which all lanes of a workgroup take
 * part in, takes longer the more there are (H200, 35B-A3B: 6.2 us with 512, 6.5 with 1,024). */
enum { DECODE_PARTS = 8, DECODE_GROUP = 512 };
/* EACH_GROUP: lanes of a head of one of many sequences. Several such workgroups fit a processor, so that
 * some load states while others compute (H200, 128 sequences: 155 us with 256 lanes, 180 with 512, 196 with
 * 1,024). Few registers do not hold twice the rows (exec_has_few_registers). */
enum { EACH_GROUP = 256 };

static uint32_t parts_for(const struct exec_caps *c, uint32_t k_dim)
{
    uint32_t parts = (uint32_t)size_min(DECODE_PARTS, c->subgroup_size);
    while (parts > 1 && parts > k_dim)
        parts /= 2;
    return parts;
}

static uint32_t n_channels(const struct delta_shape *s)
{
    return 2 * s->n_k * s->k_dim + s->n_v * s->v_dim;
}

/* The lower bound as a constant of a kernel, which is a float there. */
static uint32_t lower_bits(const struct delta_shape *s)
{
    uint32_t bits;
    memcpy(&bits, &s->lower, sizeof bits);
    return bits;
}

static uint32_t prepared_row(const struct delta_shape *s)
{
    return DELTA_PREPARED(n_channels(s), delta_decays(s) + s->n_v);
}

uint64_t delta_scratch(const struct delta_shape *s, const struct exec_caps *caps, uint32_t n)
{
    if (caps->is_host)
        return caps->is_native ? delta_cpu_scratch(s, n) : 0;
    return (uint64_t)n * prepared_row(s) + (uint64_t)div_up(n, DELTA_BLOCK) * s->n_v * DELTA_COEFS;
}

/* SCAN_PARTS: lanes that share a row of delta_prefill_scan. SCAN_FROM, WALK_FROM: fewest tokens for which it
 * and delta_prefill_walk are the faster way (H200). */
enum { SCAN_PARTS = 8, SCAN_FROM = 16, WALK_FROM = 32, PREP_WORKGROUP = 128 };
/* A workgroup of delta_prefill_walk has 32 rows of 128 columns, so that the rows of 32 heads keep 128
 * workgroups busy. Two rows for 8 lanes need half the shared memory reads of one. The tokens of a stage take
 * longer to compute than memory takes to answer. bench_delta --tiles compares (H200, 2,048 tokens of 35B-A3B:
 * 290 us; stages of 8 tokens 330, of 32 290; one row for 8 lanes 330, four 599). */
enum { WALK_WORKGROUP = 128, WALK_EACH = 2, WALK_STAGE = 16, WALK_COLS = 16 };

static uint32_t tile_rows(const struct delta_tile *t)
{
    return t->workgroup / t->parts * t->each;
}

static uint64_t tile_bytes(const struct delta_tile *t, const struct delta_shape *s)
{
    return t->stage * ((2 + s->by_channel) * (uint64_t)s->k_dim + tile_rows(t) + DELTA_COEFS / DELTA_BLOCK) *
           sizeof(float);
}

static struct delta_tile choose_tile(const struct delta_shape *s, const struct exec_caps *c)
{
    struct delta_tile t = {.workgroup = (uint32_t)size_round_up(WALK_WORKGROUP, c->subgroup_size),
                           .parts = 2 * DELTA_BLOCK,
                           .each = WALK_EACH,
                           .stage = WALK_STAGE};
    if (s->tile.workgroup)
        return s->tile;
    while (t.parts < size_min(c->subgroup_size, 32) && t.parts * WALK_COLS < s->k_dim)
        t.parts *= 2;
    while (t.stage > DELTA_BLOCK && tile_bytes(&t, s) > c->max_shared_bytes)
        t.stage /= 2;
    return t;
}

static bool tile_fits(const struct delta_tile *t, const struct delta_shape *s, const struct exec_caps *c)
{
    return t->parts <= c->subgroup_size && t->workgroup % c->subgroup_size == 0 &&
           t->workgroup <= c->max_workgroup && tile_rows(t) % 4 == 0 &&
           tile_bytes(t, s) <= c->max_shared_bytes;
}

/* Leaves op->gpu.walk_from unchanged if the device cannot run it. */
static int open_walk(struct delta *op, struct exec *x, const struct delta_shape *s, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    const struct delta_tile t = choose_tile(s, &caps);
    if (!tile_fits(&t, s, &caps))
        return 0;
    const uint32_t blocks[] = {caps.subgroup_size, s->k_dim, s->tiled, s->by_channel},
                   walk[] = {caps.subgroup_size, t.workgroup, t.parts,  t.each,       t.stage,
                             s->k_dim,           s->v_dim,    s->tiled, s->by_channel};
    op->gpu.walk_from = s->form == DELTA_BLOCKS ? 1 : WALK_FROM;
    op->gpu.walk_rows = tile_rows(&t);
    int rc = exec_kernel_later(x, &op->gpu.blocks, "delta_prefill_blocks",
                               sizeof(struct delta_prefill_blocks_args), blocks, 4, e);
    return rc < 0 ? rc
                  : exec_kernel_later(x, &op->gpu.walk, "delta_prefill_walk",
                                      sizeof(struct delta_prefill_walk_args), walk, 9, e);
}

static int open_scan(struct delta *op, struct exec *x, const struct delta_shape *s, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size, parts = (uint32_t)size_min(SCAN_PARTS, subgroup);
    const uint32_t scan[] = {subgroup, parts, s->k_dim, s->v_dim, s->tiled, s->by_channel};
    op->gpu.scan_from = s->form != DELTA_FASTER ? 1 : SCAN_FROM;
    op->gpu.scan_rows = subgroup / parts;
    return exec_kernel_later(x, &op->gpu.scan, "delta_prefill_scan", sizeof(struct delta_prefill_scan_args),
                             scan, 6, e);
}

static int open_prep(struct delta *op, struct exec *x, const struct delta_shape *s, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    uint64_t lanes = size_min(PREP_WORKGROUP, size_max(s->k_dim, s->v_dim));
    const uint32_t prep[] = {caps.subgroup_size, (uint32_t)size_round_up(lanes, caps.subgroup_size),
                             s->k_dim,           s->v_dim,
                             s->conv_kernel,     s->by_channel,
                             lower_bits(s)};
    return exec_kernel_later(x, &op->gpu.prep, "delta_prefill_prep", sizeof(struct delta_args), prep, 7, e);
}

static int open_chunk_kernels(struct delta *op, struct exec *x, const struct delta_shape *s,
                              struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    uint32_t subgroup = caps.subgroup_size;
    op->gpu.scan_from = op->gpu.walk_from = UINT32_MAX;
    if (s->k_dim % 4 || s->v_dim % 4 || s->form == DELTA_SINGLE || s->form == DELTA_SHARED)
        return 0;
    int rc = open_prep(op, x, s, e);
    for (uint32_t form = 0; rc == 0 && form < DELTA_OUT_FORMS; form++) {
        const uint32_t out[] = {subgroup, s->v_dim, form, s->sigmoid};
        rc = exec_kernel_later(x, &op->gpu.out[form], "delta_prefill_out",
                               sizeof(struct delta_prefill_out_args), out, 4, e);
    }
    if (rc == 0)
        rc = open_scan(op, x, s, e);
    return rc == 0 && s->form != DELTA_TOKENS ? open_walk(op, x, s, e) : rc;
}

/* Returns the lanes of a workgroup for `rows` rows of a head. */
static uint32_t decode_group(const struct exec_caps *c, uint32_t rows, uint32_t parts, uint32_t most)
{
    return exec_workgroup(c, size_min((uint64_t)rows * parts, most));
}

/* One way to run delta_decode: workgroups of a head, their lanes, lanes of a row. */
struct decode_way {
    uint32_t blocks, workgroup, parts;
};
enum { DECODE_SPECS = 12 };

static void decode_spec(const struct delta_shape *s, const struct exec_caps *caps, const struct decode_way *w,
                        uint32_t spec[DECODE_SPECS])
{
    const uint32_t all[DECODE_SPECS] = {
        caps->subgroup_size, w->workgroup,    w->parts,   s->k_dim, s->v_dim,      s->conv_kernel,
        w->blocks,           s->n_v / s->n_k, s->sigmoid, s->tiled, s->by_channel, lower_bits(s)};
    memcpy(spec, all, sizeof all);
}

/* Opens the kernel for a token of many sequences, and for positions of one. */
static int open_records(struct exec *x, struct kernel *each, struct kernel *chain,
                        const uint32_t each_spec[DECODE_SPECS], const uint32_t chain_spec[DECODE_SPECS],
                        struct moeflux_err *e)
{
    int rc =
        exec_kernel_later(x, each, "delta_decode_each", sizeof(struct each_args), each_spec, DECODE_SPECS, e);
    return rc < 0 ? rc
                  : exec_kernel_later(x, chain, "delta_decode_chain", sizeof(struct each_args), chain_spec,
                                      DECODE_SPECS, e);
}

/* Opens the kernel with several workgroups a head. It pays on devices where one workgroup a head leaves most
 * processors idle. */
static int open_shared(struct delta *op, struct exec *x, uint32_t parts, struct moeflux_err *e)
{
    const struct delta_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t rows = s->v_dim / HEAD_SQUARES, channels = 2 * s->k_dim + rows, spec[DECODE_SPECS];
    /* There are few rows, so more lanes share one, and each channel has a lane of its own. */
    uint32_t most = (uint32_t)size_min(caps.subgroup_size, s->k_dim);
    parts = 2 * parts <= most ? 2 * parts : parts;
    uint32_t lanes =
        decode_group(&caps, (uint32_t)size_max(rows, div_up(channels, parts)), parts, DECODE_GROUP);
    bool pays = caps.n_processors >= 2 * s->n_v;
    op->gpu.has_shared = s->v_dim % HEAD_SQUARES == 0 && (pays || s->form == DELTA_SHARED);
    if (!op->gpu.has_shared)
        return 0;
    decode_spec(s, &caps, &(struct decode_way){HEAD_SQUARES, lanes, parts}, spec);
    int rc =
        exec_kernel(x, &op->gpu.shared, "delta_decode", sizeof(struct delta_args), spec, DECODE_SPECS, e);
    return rc < 0 ? rc : open_records(x, &op->gpu.shared_each, &op->gpu.shared_chain, spec, spec, e);
}

int delta_vulkan_open(struct delta *op, struct exec *x, struct moeflux_err *e)
{
    const struct delta_shape *s = &op->shape;
    struct exec_caps caps = exec_get_caps(x);
    if (((2 + s->by_channel) * (uint64_t)s->k_dim + 2 * (uint64_t)s->v_dim + 512) * sizeof(float) >
        caps.max_shared_bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "delta net: heads of %u and %u channels do not fit %u bytes of shared memory",
                       s->k_dim, s->v_dim, caps.max_shared_bytes);
    uint32_t parts = parts_for(&caps, s->k_dim), spec[DECODE_SPECS], each[DECODE_SPECS],
             lanes = exec_has_few_registers(&caps) ? DECODE_GROUP : EACH_GROUP;
    const struct decode_way one = {1, decode_group(&caps, s->v_dim, parts, DECODE_GROUP), parts},
                            many = {1, decode_group(&caps, s->v_dim, parts, lanes), parts};
    decode_spec(s, &caps, &one, spec);
    decode_spec(s, &caps, &many, each);
    int rc =
        exec_kernel(x, &op->gpu.single, "delta_decode", sizeof(struct delta_args), spec, DECODE_SPECS, e);
    if (rc == 0)
        rc = open_records(x, &op->gpu.single_each, &op->gpu.single_chain, each, spec, e);
    if (rc == 0)
        rc = open_shared(op, x, parts, e);
    return rc < 0 ? rc : open_chunk_kernels(op, x, s, e);
}

static void run_scan(const struct delta *op, struct exec *x, const struct delta_call *call)
{
    const struct delta_shape *s = &op->shape;
    const struct delta_prefill_scan_args scan = {.prepared = call->scratch,
                                                 .state = call->state,
                                                 .state_out = call->state_out,
                                                 .dst = call->dst,
                                                 .n = call->n,
                                                 .row = prepared_row(s),
                                                 .n_k = s->n_k,
                                                 .n_v = s->n_v};
    exec_dispatch(x, &op->gpu.scan, &scan, s->n_v, div_up(s->v_dim, op->gpu.scan_rows), 1);
}

static void run_walk(const struct delta *op, struct exec *x, const struct delta_call *call)
{
    const struct delta_shape *s = &op->shape;
    uint64_t coefs = call->scratch + (uint64_t)call->n * prepared_row(s) * sizeof(float);
    const struct delta_prefill_blocks_args blocks = {.prepared = call->scratch,
                                                     .coefs = coefs,
                                                     .n = call->n,
                                                     .row = prepared_row(s),
                                                     .n_k = s->n_k,
                                                     .n_v = s->n_v,
                                                     .v_dim = s->v_dim};
    const struct delta_prefill_walk_args walk = {.prepared = call->scratch,
                                                 .coefs = coefs,
                                                 .state = call->state,
                                                 .state_out = call->state_out,
                                                 .dst = call->dst,
                                                 .n = call->n,
                                                 .row = prepared_row(s),
                                                 .n_k = s->n_k,
                                                 .n_v = s->n_v};
    exec_dispatch(x, &op->gpu.blocks, &blocks, div_up(call->n, DELTA_BLOCK), s->by_channel ? s->n_v : s->n_k,
                  1);
    exec_dispatch(x, &op->gpu.walk, &walk, s->n_v, div_up(s->v_dim, op->gpu.walk_rows), 1);
}

/* a: the single kernel's arguments. */
static void run_chunk(const struct delta *op, struct exec *x, const struct delta_call *call,
                      const struct delta_args *a)
{
    const struct delta_shape *s = &op->shape;
    struct delta_args prep = *a;
    uint32_t form = call->f16 == 0 ? DELTA_OUT_F32 : call->is_blocked ? DELTA_OUT_BLOCKED : DELTA_OUT_F16;
    const struct delta_prefill_out_args out = {.proj = call->proj,
                                               .norm = call->norm,
                                               .dst = call->dst,
                                               .f16 = call->f16,
                                               .n = call->n,
                                               .stride = call->stride,
                                               .z_at = call->z_at,
                                               .n_v = s->n_v,
                                               .eps = s->eps};
    prep.dst = call->scratch;
    exec_dispatch(x, &op->gpu.prep, &prep, div_up(call->n, DELTA_RUN), s->n_k + s->n_v, 1);
    if (call->n >= op->gpu.walk_from)
        run_walk(op, x, call);
    else
        run_scan(op, x, call);
    exec_dispatch(x, &op->gpu.out[form], &out, call->n, s->n_v, 1);
}

static struct delta_args args_of(const struct delta_shape *s, const struct delta_call *call)
{
    return (struct delta_args){.proj = call->proj,
                               .conv = call->conv,
                               .a_log = call->a_log,
                               .dt_bias = call->dt_bias,
                               .norm = call->norm,
                               .window_in = call->window_in,
                               .window_out = call->window_out,
                               .state = call->state,
                               .state_out = call->state_out,
                               .dst = call->dst,
                               .squares = call->squares,
                               .n = call->n,
                               .stride = call->stride,
                               .n_k = s->n_k,
                               .n_v = s->n_v,
                               .z_at = call->z_at,
                               .b_at = call->b_at,
                               .a_at = call->a_at,
                               .eps = s->eps};
}

void delta_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct delta *op = self;
    const struct delta_call *call = what;
    const struct delta_args a = args_of(&op->shape, call);
    if (call->squares)
        exec_dispatch(x, &op->gpu.shared, &a, op->shape.n_v, HEAD_SQUARES, 1);
    else if (call->scratch && call->n >= op->gpu.scan_from)
        run_chunk(op, x, call, &a);
    else
        exec_dispatch(x, &op->gpu.single, &a, op->shape.n_v, 1, 1);
}

void delta_vulkan_concurrent(const struct delta *op, struct exec *x, const struct delta_call *calls,
                             uint32_t n)
{
    struct delta_args all[DELTA_CONCURRENT];
    bool is_shared = calls->squares != 0;
    for (uint32_t i = 0; i < n; i++)
        all[i] = args_of(&op->shape, &calls[i]);
    exec_dispatch_each(x, is_shared ? &op->gpu.shared_each : &op->gpu.single_each, all, sizeof *all, n,
                       op->shape.n_v, is_shared ? HEAD_SQUARES : 1);
}

void delta_vulkan_chain(const struct delta *op, struct exec *x, const struct delta_call *calls, uint32_t n)
{
    struct delta_args all[DELTA_CONCURRENT];
    bool is_shared = calls->squares != 0;
    for (uint32_t i = 0; i < n; i++)
        all[i] = args_of(&op->shape, &calls[i]);
    all[0].n = n;
    exec_dispatch_records(x, is_shared ? &op->gpu.shared_chain : &op->gpu.single_chain, all, sizeof *all, n,
                          op->shape.n_v, is_shared ? HEAD_SQUARES : 1, 1);
}
