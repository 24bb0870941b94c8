/* The Vulkan implementation of ssd.h: chooses the kernels of kernels/ssd/ and dispatches them. */
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/ssd/ssd.h"

/* PARTS: lanes that share a row of S. ROWS: rows of a lane; FEW_ROWS: of one with few registers. STAGE:
 * tokens whose inputs lie in shared memory. */
enum { PARTS = 8, ROWS = 4, FEW_ROWS = 2, STAGE = 8, NORM_GROUP = 256 };
/* The places of ssd/scan.comp's constants. */
enum {
    SCAN_SUBGROUP,
    SCAN_WORKGROUP,
    SCAN_PARTS,
    SCAN_STATE,
    SCAN_HEAD_DIM,
    SCAN_TAPS,
    SCAN_BLOCKS,
    SCAN_REPEATS,
    SCAN_STAGE,
    SCAN_LOW,
    SCAN_HIGH,
    SCAN_N_SPEC
};

/* Returns how many workgroups share a head, so that each processor has one if the rows suffice. */
static uint32_t choose_blocks(const struct ssd_shape *s, const struct exec_caps *c)
{
    uint32_t blocks = 1;
    while (s->head_dim % (2 * blocks) == 0 && s->head_dim / (2 * blocks) >= ROWS &&
           s->n_heads * blocks < c->n_processors)
        blocks *= 2;
    return s->blocks ? s->blocks : blocks;
}

static uint64_t stage_floats(const struct ssd_shape *s, uint32_t blocks)
{
    return 2 * (uint64_t)(s->head_dim / blocks + s->state_dim) + 2;
}

static int open_norm(struct ssd *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t norm[] = {caps.subgroup_size, exec_workgroup(&caps, NORM_GROUP)};
    return exec_kernel(x, &op->gpu.norm, "ssd_norm", sizeof(struct ssd_norm_args), norm, 2, e);
}

int ssd_vulkan_open(struct ssd *op, struct exec *x, struct moeflux_err *e)
{
    const struct ssd_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t blocks = op->gpu.blocks = choose_blocks(s, &caps), stage = STAGE,
             parts = (uint32_t)size_min(PARTS, caps.subgroup_size);
    while (stage > 1 && stage * stage_floats(s, blocks) * sizeof(float) > caps.max_shared_bytes)
        stage /= 2;
    if (s->head_dim % blocks || stage * stage_floats(s, blocks) * sizeof(float) > caps.max_shared_bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "Mamba-2: heads of %u channels and %u states do not fit %u bytes of shared memory",
                       s->head_dim, s->state_dim, caps.max_shared_bytes);
    uint32_t rows = exec_has_few_registers(&caps) ? FEW_ROWS : ROWS;
    uint64_t lanes = (uint64_t)div_up(s->head_dim / blocks, rows) * parts;
    uint32_t spec[SCAN_N_SPEC] = {[SCAN_SUBGROUP] = caps.subgroup_size,
                                  [SCAN_WORKGROUP] = exec_workgroup(&caps, lanes),
                                  [SCAN_PARTS] = parts,
                                  [SCAN_STATE] = s->state_dim,
                                  [SCAN_HEAD_DIM] = s->head_dim,
                                  [SCAN_TAPS] = s->conv_kernel,
                                  [SCAN_BLOCKS] = blocks,
                                  [SCAN_REPEATS] = s->n_heads / s->n_groups,
                                  [SCAN_STAGE] = stage};
    const float bounds[] = {s->low, s->high < 3e38f ? s->high : 3e38f};
    memcpy(&spec[SCAN_LOW], bounds, sizeof bounds); /* the constants are floats */
    int rc = exec_kernel(x, &op->gpu.scan, "ssd_scan", sizeof(struct ssd_scan_args), spec, SCAN_N_SPEC, e);
    if (rc == 0)
        rc = exec_kernel_later(x, &op->gpu.scan_each, "ssd_scan_each", sizeof(struct each_args), spec,
                               SCAN_N_SPEC, e);
    if (rc == 0)
        rc = exec_kernel_later(x, &op->gpu.scan_chain, "ssd_scan_chain", sizeof(struct each_args), spec,
                               SCAN_N_SPEC, e);
    return rc < 0 ? rc : open_norm(op, x, e);
}

static struct ssd_scan_args args_of(const struct ssd_shape *s, const struct ssd_call *call)
{
    return (struct ssd_scan_args){.proj = call->proj,
                                  .conv = call->conv,
                                  .conv_bias = call->conv_bias,
                                  .a_log = call->a_log,
                                  .dt_bias = call->dt_bias,
                                  .d = call->d,
                                  .window_in = call->window_in,
                                  .window_out = call->window_out,
                                  .state = call->state,
                                  .state_out = call->state_out,
                                  .dst = call->dst,
                                  .n = call->n,
                                  .stride = call->stride,
                                  .n_heads = s->n_heads,
                                  .n_groups = s->n_groups,
                                  .z_at = call->z_at,
                                  .x_at = call->x_at,
                                  .dt_at = call->dt_at};
}

void ssd_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct ssd *op = self;
    const struct ssd_scan_args a = args_of(&op->shape, what);
    exec_dispatch(x, &op->gpu.scan, &a, op->shape.n_heads, op->gpu.blocks, 1);
}

void ssd_vulkan_concurrent(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n)
{
    struct ssd_scan_args all[SSD_CONCURRENT];
    for (uint32_t i = 0; i < n; i++)
        all[i] = args_of(&op->shape, &calls[i]);
    exec_dispatch_each(x, &op->gpu.scan_each, all, sizeof *all, n, op->shape.n_heads, op->gpu.blocks);
}

void ssd_vulkan_chain(const struct ssd *op, struct exec *x, const struct ssd_call *calls, uint32_t n)
{
    struct ssd_scan_args all[SSD_CONCURRENT];
    for (uint32_t i = 0; i < n; i++)
        all[i] = args_of(&op->shape, &calls[i]);
    all[0].n = n;
    exec_dispatch_records(x, &op->gpu.scan_chain, all, sizeof *all, n, op->shape.n_heads, op->gpu.blocks, 1);
}

void ssd_norm_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct ssd *op = self;
    const struct ssd_norm_call *call = what;
    const struct ssd_shape *s = &op->shape;
    const struct ssd_norm_args a = {.x = call->x,
                                    .norm = call->norm,
                                    .n_groups = s->n_groups,
                                    .size = s->n_heads / s->n_groups * s->head_dim,
                                    .eps = s->eps};
    exec_dispatch(x, &op->gpu.norm, &a, s->n_groups, call->n, 1);
}
