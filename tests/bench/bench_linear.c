/* bench_linear - the speed of the dense products of a chunk.
 *
 *   bench_linear [--device D] [--ways | --chain N [--shapes]] ROWS COLS TOKENS [FORMAT [REPS]]
 *     FORMAT      its number, 0 q4, 1 q8, 2 bf16, 3 f32 and so on (kernels/args.h)
 *     --ways      every kernel that the operation has for more than one token ("*": the one that it would
 *                 choose if float16 is allowed), and on devices with float16 tiles those of
 *                 tests/bench/tiles.h. The time to round the vectors to float16 is not counted; GB/s: the
 *                 weights, read once. The weights stay in a large cache from one run to the next.
 *     --chain N   N matrices, each waiting for the one before, as in decoding; prints the time of one by the
 *                 host's clock, of many rounds minus that of one. So their weights come from memory if N of
 *                 them are larger than the caches.
 *     --shapes    with one token, workgroups of several shapes in place of the chosen one ("*"); with a few,
 *                 the numbers of rows and vectors that they take at once
 *
 * Prints the device's time for a product and 10^9 multiply-adds a second, the fastest of REPS; for software
 * devices also the same for a second of processor time, which does not depend on other work of the machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/linear/gemv_plan.h"
#include "ops/linear/linear.h"
#include "tiles.h"

enum { PER_BATCH = 8, WARM_NS = 60000000 };

struct bench {
    struct exec *x;
    struct exec_buffer weight, groups, in, norm, out, f16;
    struct linear op;
};

static int prepare(struct bench *b, const char *device, uint32_t rows, uint32_t cols, uint32_t n,
                   uint32_t format, bool profile, struct moeflux_err *e)
{
    const struct format *f = format_of(format);
    uint64_t weights = (uint64_t)rows * cols;
    int rc = exec_open(&b->x, &(struct exec_options){.device = device, .profile = profile}, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->weight, format_code_bytes(f, weights), 0x3c123c21, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->groups, (format_scale_bytes(f, weights) + 3) / 4 * 4 + 4, 0x3c003c00, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->in, (uint64_t)n * cols * 4, 0x3f800000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->norm, (uint64_t)cols * 4, 0x3f800000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->out, (uint64_t)n * rows * 4, 0, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->f16, (uint64_t)n * cols * 2, 0, e);
    const struct weights w = {b->weight.address, b->groups.address, b->groups.address, rows, cols, format};
    return rc < 0 ? rc : linear_open(&b->op, b->x, &w, 1, e);
}

/* The time of all products. */
static int run(struct bench *b, uint32_t n, bool use_f16, struct bench_time *t, struct moeflux_err *e)
{
    const struct linear_call call = {.x = b->in.address,
                                     .norm = b->norm.address,
                                     .y = b->out.address,
                                     .x_stride = b->op.cols,
                                     .y_stride = b->op.rows,
                                     .n = n,
                                     .eps = 1e-6f,
                                     .f16_scratch = use_f16 ? b->f16.address : 0};
    bench_begin(b->x, t);
    for (int i = 0; i < PER_BATCH; i++)
        linear_run(&b->op, b->x, &call);
    int rc = bench_end(b->x, t, e);
    for (uint32_t i = 0; i < t->stats.n_times; i++)
        t->device_ns -= strcmp(t->stats.times[i].name, "cast_f16") == 0 ? t->stats.times[i].ns : 0;
    t->device_ns /= PER_BATCH;
    return rc;
}

/* Measures b->op with `path` alone. */
static int measure_way(struct bench *b, enum linear_path path, const char *name, uint32_t n, uint32_t reps,
                       struct moeflux_err *e)
{
    struct bench_time time, best = {0};
    int rc = 0;
    for (uint32_t i = 1; i < LINEAR_PATHS; i++)
        b->op.gpu.from[i] = i <= path ? 0 : UINT32_MAX;
    /* While the kernel was compiled the device was idle: its clocks rise again. */
    for (uint64_t start = clock_ns(); rc == 0 && clock_ns() - start < WARM_NS;)
        rc = run(b, n, true, &time, e);
    for (uint32_t i = 0; rc == 0 && i < reps; i++) {
        rc = run(b, n, true, &time, e);
        bench_keep(&best, &time);
    }
    if (rc < 0)
        return rc;
    double weights = (double)b->op.rows * b->op.cols, ns = (double)best.device_ns;
    printf("%5ux%-5u %5u  %-28s %9.1f us %9.0f G/s %8.0f GB/s\n", b->op.rows, b->op.cols, n, name, ns / 1e3,
           weights * n / ns, (double)b->weight.bytes / ns);
    fflush(stdout);
    return 0;
}

/* The operation as opened comes back after each tile. */
static int measure_ways(struct bench *b, uint32_t n, uint32_t format, uint32_t reps, struct moeflux_err *e)
{
    static const char *const names[LINEAR_PATHS] = {"one",          "two at a time",   "four at a time",
                                                    "four of some", "split columns",   "tiles",
                                                    "large tiles",  "small f16 tiles", "in registers",
                                                    "f16 tiles",    "large f16 tiles", "many in registers"};
    const struct linear op = b->op;
    uint32_t chosen = LINEAR_PATHS - 1;
    int rc = 0;
    while (n < op.gpu.from[chosen])
        chosen--;
    for (uint32_t i = 1; rc == 0 && i < LINEAR_PATHS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", i == chosen ? "*" : "", names[i]);
        if (op.gpu.from[i] < UINT32_MAX)
            rc = measure_way(b, (enum linear_path)i, name, n, reps, e);
    }
    for (uint32_t i = 0; rc == 0 && i < TILES_TO_TRY && op.gpu.from[LINEAR_F16_GEMM_SMALL] < UINT32_MAX;
         i++) {
        const struct tile *t = &tiles_to_try[i];
        struct gemm_plan p = tile_plan(b->x, t, format_constant(format_set(format)));
        struct linear_plan *plan = &b->op.gpu.parts[0].paths[LINEAR_F16_GEMM_SMALL];
        char name[64];
        if (!tile_fits(b->x, t, op.cols))
            continue;
        plan->tokens = p.tokens;
        plan->blocks = (op.rows + p.rows - 1) / p.rows;
        rc = gemm_kernel(b->x, &plan->kernel, "linear_prefill", sizeof(struct linear_args), &p, e);
        tile_name(t, name, sizeof name);
        if (rc == 0)
            rc = measure_way(b, LINEAR_F16_GEMM_SMALL, name, n, reps, e);
    }
    b->op = op;
    return rc;
}

enum { MAX_CHAIN = 64 };
struct chain {
    struct bench *b; /* its vectors */
    struct exec_buffer weight[MAX_CHAIN], groups[MAX_CHAIN];
    struct linear op[MAX_CHAIN];
    uint32_t n;
};

/* The host's time of `rounds` through the chain. */
static int run_chain(const struct chain *c, uint32_t n, uint32_t rounds, uint64_t *ns, struct moeflux_err *e)
{
    struct exec *x = c->b->x;
    exec_begin(x);
    for (uint32_t i = 0; i < rounds * c->n; i++) {
        const struct linear *op = &c->op[i % c->n];
        const struct linear_call call = {.x = c->b->in.address,
                                         .norm = c->b->norm.address,
                                         .y = c->b->out.address,
                                         .x_stride = op->cols,
                                         .y_stride = op->rows,
                                         .n = n,
                                         .eps = 1e-6f};
        linear_run(op, x, &call);
    }
    uint64_t start = clock_ns();
    int rc = exec_finish(x, e);
    *ns = clock_ns() - start;
    return rc;
}

/* The median of `reps`. */
static int measure_chain(const struct chain *c, uint32_t n, uint32_t reps, const char *name,
                         struct moeflux_err *e)
{
    enum { MAX_REPS = 64, ROUNDS = 20 };
    double us[MAX_REPS];
    int rc = 0;
    reps = reps < MAX_REPS ? reps : MAX_REPS;
    for (uint32_t i = 0; rc == 0 && i < reps; i++) {
        uint64_t one = 0, all = 0;
        rc = run_chain(c, n, 1, &one, e);
        if (rc == 0)
            rc = run_chain(c, n, 1 + ROUNDS, &all, e);
        us[i] = (double)(all - one) / 1e3 / ROUNDS / c->n;
    }
    if (rc < 0)
        return rc;
    const struct linear *op = &c->op[0];
    double bytes = (double)format_all_bytes(format_of(op->w[0].format), (uint64_t)op->rows * op->cols);
    double median = bench_median(us, reps);
    printf("%6ux%-5u %u token%s %-34s %8.2f us (least %.2f) %6.0f GB/s\n", op->rows, op->cols, n,
           n == 1 ? "" : "s", name, median, us[0], bytes / median / 1e3);
    fflush(stdout);
    return 0;
}

static int measure_shapes(struct chain *c, uint32_t format, uint32_t reps, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(c->b->x);
    const struct gemv_shape shape = {
        c->op[0].rows, c->op[0].cols, 1, format_set(format), 1, c->op[0].rows, 0};
    const struct gemv_plan chosen = gemv_plan_for(c->b->x, &shape);
    uint32_t pieces = gemv_pieces(c->op[0].cols, format_set(format));
    int rc = 0;
    for (uint32_t lanes = 128; rc == 0 && lanes <= 512; lanes *= 2)
        for (uint32_t split = 1; rc == 0 && split <= 8; split *= 2)
            for (uint32_t rows = 1; rc == 0 && rows <= 4; rows *= 2) {
                uint32_t steps = div_up(pieces, split * caps.subgroup_size);
                struct gemv_plan p = chosen;
                if (lanes < split * caps.subgroup_size || lanes > caps.max_workgroup || steps > 4)
                    continue;
                p.spec[GEMV_WORKGROUP] = lanes;
                p.spec[GEMV_ROWS] = rows;
                p.spec[GEMV_SPLIT] = split;
                p.spec[GEMV_STEPS] = steps;
                p.workgroup_rows = lanes / caps.subgroup_size / split * rows;
                char name[64];
                snprintf(name, sizeof name, "%s%u lanes, split %u, %u rows, %u groups",
                         memcmp(&p, &chosen, sizeof p) == 0 ? "*" : "", lanes, split, rows,
                         div_up(c->op[0].rows, p.workgroup_rows));
                for (uint32_t i = 0; rc == 0 && i < c->n; i++) {
                    struct linear_plan *plan = &c->op[i].gpu.parts[0].paths[LINEAR_GEMV];
                    plan->blocks = div_up(c->op[i].rows, p.workgroup_rows);
                    rc = gemv_kernel(c->b->x, &plan->kernel, "linear_decode_token",
                                     sizeof(struct linear_decode_token_args), p.spec, GEMV_N_SPEC, e);
                }
                if (rc == 0)
                    rc = measure_chain(c, 1, reps, name, e);
            }
    return rc;
}

/* Rows and vectors at once in place of those that are chosen ("*") for n tokens; "loop": LINEAR_GEMV_SOME's
 * kernel. */
static int measure_few(struct chain *c, uint32_t n, uint32_t reps, struct moeflux_err *e)
{
    enum { SEVERAL = GEMV_N_SPEC + 1, N_SPEC };
    const struct exec_caps caps = exec_get_caps(c->b->x);
    const struct linear *op = &c->op[0];
    const struct gemv_shape shape = {op->rows, op->cols, 1, format_set(op->w[0].format), 1, op->rows, 1};
    const struct gemv_plan one = gemv_plan_for(c->b->x, &shape);
    int rc = 0;
    for (uint32_t tokens = 1; rc == 0 && tokens <= 4; tokens *= 2)
        for (uint32_t rows = 1; rc == 0 && rows <= 4; rows *= 2) {
            uint32_t spec[N_SPEC] = {[SEVERAL] = 1};
            memcpy(spec, one.spec, sizeof one.spec);
            spec[GEMV_ROWS] = rows;
            spec[GEMV_TOKENS] = tokens;
            uint32_t workgroup_rows = one.workgroup_rows / one.spec[GEMV_ROWS] * rows;
            if (tokens * op->cols * sizeof(float) > caps.max_shared_bytes / 8 * 7)
                continue;
            for (uint32_t i = 0; rc == 0 && i < c->n; i++) {
                struct linear_plan *plan = &c->op[i].gpu.parts[0].paths[LINEAR_GEMV_FEW];
                c->op[i].gpu.from[LINEAR_GEMV_FEW] = 2;
                plan->blocks = div_up(op->rows, workgroup_rows);
                plan->tokens = tokens;
                rc = gemv_kernel(c->b->x, &plan->kernel, "linear_decode_token",
                                 sizeof(struct linear_decode_token_args), spec, N_SPEC, e);
            }
            char name[64];
            snprintf(name, sizeof name, "%u lanes, split %u, %u rows, %u tokens", one.workgroup,
                     one.spec[GEMV_SPLIT], rows, tokens);
            if (rc == 0)
                rc = measure_chain(c, n, reps, name, e);
        }
    for (uint32_t i = 0; i < c->n; i++)
        c->op[i].gpu.from[LINEAR_GEMV_SOME] = 2;
    return rc < 0 ? rc : measure_chain(c, n, reps, "loop", e);
}

static int chain(struct bench *b, uint32_t length, bool shapes, uint32_t n, uint32_t format, uint32_t reps,
                 struct moeflux_err *e)
{
    struct chain c = {.b = b, .n = length};
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < length; i++) {
        struct weights w = b->op.w[0];
        rc = bench_fill(b->x, &c.weight[i], b->weight.bytes, 0x3c123c21, e);
        if (rc == 0)
            rc = bench_fill(b->x, &c.groups[i], b->groups.bytes, 0x3c003c00, e);
        w.weight = c.weight[i].address;
        w.scales = w.biases = c.groups[i].address;
        if (rc == 0)
            rc = linear_open(&c.op[i], b->x, &w, 1, e);
    }
    if (rc == 0)
        rc = measure_chain(&c, n, reps, "", e);
    if (rc == 0 && shapes)
        rc = n > 1 ? measure_few(&c, n, reps, e) : measure_shapes(&c, format, reps, e);
    for (uint32_t i = 0; i < length; i++) {
        linear_close(&c.op[i], b->x);
        exec_buffer_free(b->x, &c.weight[i]);
        exec_buffer_free(b->x, &c.groups[i]);
    }
    return rc;
}

/* A flag with a value; -1: it is not next. */
static long take_value(int *argc, char ***argv, const char *name)
{
    long v = -1;
    if (*argc > 2 && strcmp((*argv)[1], name) == 0) {
        v = strtol((*argv)[2], NULL, 10);
        *argc -= 2;
        *argv += 2;
    }
    return v;
}

static bool take_flag(int *argc, char ***argv, const char *name)
{
    bool is_next = *argc > 1 && strcmp((*argv)[1], name) == 0;
    *argc -= is_next;
    *argv += is_next;
    return is_next;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        device = argv[2];
        argc -= 2;
        argv += 2;
    }
    bool ways = take_flag(&argc, &argv, "--ways");
    long length = take_value(&argc, &argv, "--chain");
    bool shapes = take_flag(&argc, &argv, "--shapes");
    if (argc < 4 || length == 0 || length > MAX_CHAIN)
        return fprintf(stderr, "usage: bench_linear [--device D] [--ways | --chain N [--shapes]] ROWS COLS "
                               "TOKENS [FORMAT [REPS]]\n"),
               2;
    uint32_t v[5] = {0, 0, 0, FORMAT_Q4, 5};
    for (int i = 1; i < argc && i <= 5; i++)
        v[i - 1] = (uint32_t)strtoul(argv[i], NULL, 10);
    if (v[3] >= FORMAT_END || !format_of(v[3])->bits)
        return fprintf(stderr, "bench_linear: no format has the number %u\n", v[3]), 2;
    struct moeflux_err e = {0};
    struct bench b = {0};
    struct bench_time time, best = {0};
    uint64_t start = clock_ns();
    bool is_chain = length > 0;
    int rc = prepare(&b, device, v[0], v[1], v[2], v[3], !is_chain, &e);
    double opened = (double)(clock_ns() - start) / 1e9;
    if (rc == 0 && ways)
        rc = measure_ways(&b, v[2], v[3], v[4], &e);
    if (rc == 0 && is_chain)
        rc = chain(&b, (uint32_t)length, shapes, v[2], v[3], v[4], &e);
    for (uint32_t i = 0; rc == 0 && !ways && !is_chain && i < v[4]; i++) {
        rc = run(&b, v[2], false, &time, &e);
        bench_keep(&best, &time);
    }
    if (rc < 0)
        return fprintf(stderr, "bench_linear: %s\n", e.text), 1;
    double work = (double)v[0] * v[1] * v[2];
    if (!ways && !is_chain)
        printf("%ux%u, %u tokens: %.3f ms, %.2f G/s, %.2f G/s of processor time (open %.2f s)\n", v[0], v[1],
               v[2], (double)best.device_ns / 1e6, work / (double)best.device_ns,
               work / (double)best.processor_ns, opened);
    linear_close(&b.op, b.x);
    struct exec_buffer *all[] = {&b.weight, &b.groups, &b.in, &b.norm, &b.out, &b.f16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    exec_close(b.x);
    return 0;
}
