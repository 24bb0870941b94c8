#include "ops/gemm_frag.h"

#include "args.h"
#include "exec/kernel.h"

enum { LANES = 32 };

/* What kernels/frag/probe.comp finds on a device that the kernels can run on: the layout that lib/gemm_frag.glsl tells. */
static void expect(uint32_t lane, uint32_t *want)
{
    const uint32_t g = lane / 4, k = 2 * (lane % 4);
    for (uint32_t i = 0; i < 8; i++)
        want[i] = 16 * (g + (i & 2 ? 8 : 0)) + k + (i & 1) + (i & 4 ? 8 : 0);
    for (uint32_t i = 0; i < 4; i++) {
        want[8 + i] = 8 * (k + (i & 1) + (i & 2 ? 8 : 0)) + g;
        want[12 + i] = 8 * (g + (i & 2 ? 8 : 0)) + k + (i & 1);
    }
    want[16] = 8;
    want[17] = want[18] = 4;
}

static bool is_expected(const uint32_t *found)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t want[FRAG_PROBE_WORDS];
        expect(lane, want);
        for (uint32_t i = 0; i < FRAG_PROBE_WORDS; i++)
            if (found[lane * FRAG_PROBE_WORDS + i] != want[i])
                return false;
    }
    return true;
}

int gemm_frag_probe(struct exec *x, struct moeflux_err *e)
{
    uint32_t found[LANES * FRAG_PROBE_WORDS];
    struct exec_buffer dst = {0};
    struct kernel probe;
    if (!exec_get_caps(x).has_coopmat_8)
        return 0;
    int rc = exec_kernel(x, &probe, "frag_probe", sizeof(struct frag_probe_args), NULL, 0, e);
    if (rc == 0)
        rc = exec_buffer_new(x, &dst, EXEC_DEVICE, sizeof found, e);
    if (rc == 0) {
        const struct frag_probe_args args = {.dst = dst.address};
        exec_begin(x);
        exec_dispatch(x, &probe, &args, 1, 1, 1);
        rc = exec_finish(x, e);
    }
    if (rc == 0)
        rc = exec_read(x, &dst, 0, found, sizeof found, e);
    exec_buffer_free(x, &dst);
    return rc < 0 ? rc : is_expected(found);
}

struct gemm_plan gemm_frag_plan_for(const struct exec *x, uint32_t tokens)
{
    /* Of a workgroup: invocations. Of each: rows of both halves. */
    enum { GROUP = 128, ROWS = 4 };
    return (struct gemm_plan){
        .spec = {exec_get_caps(x).subgroup_size, GROUP, ROWS, tokens / 4, GEMM_FRAG_COLS, 1u << FORMAT_Q4, 1},
        .rows = 8 * ROWS * GROUP / LANES,
        .tokens = tokens,
        .variant = "_frag"};
}
