/* bench_gemm - the cpu's products for many tokens, on 4-bit weights as stored in the file, compared with a
 * BLAS library's sgemm on ready floats and the peak of the multiply-add units.
 *
 *   bench_gemm [--blas LIBRARY] [--isa NAME] [--threads N] [--reps N] [TOKENS ...]
 *     --blas   an OpenBLAS, also the one in numpy's wheel (numpy.libs/libscipy_openblas64_*.so)
 *     TOKENS   default: 64 and 512
 *
 * Runs the things it compares alternately with a pause between, so that the machine's noise affects all alike
 * and no thread of the other one still spins. Prints medians of 10^9 multiply-adds a second by wall time, in
 * brackets the same by the processor time of all threads, which other programs change least, and medians of
 * each turn's ratios. */
#include <argtable2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "bench.h"
#include "cpu_probe.h"
#include "ops/linear/linear.h"

enum { MAX_REPS = 100, MAX_CASES = 8, PEAK_BLOCKS = 64, PEAK_TURNS = 20000, MOST_TOKENS = 4096 };
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* CBLAS's constants */

static const struct {
    uint32_t rows, cols;
} shapes[] = {{8192, 2048}, {2048, 4096}, {1024, 2048}, {2048, 512}};

/* CBLAS with integers of 64 or 32 bits. */
typedef void sgemm_64(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *,
                      int64_t, float, float *, int64_t);
typedef void sgemm_32(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                      float *, int);
typedef void set_threads_fn(int);

struct bench {
    struct exec *x;
    struct team *team;
    const struct cpu_isa *isa;
    sgemm_64 *sgemm64;
    sgemm_32 *sgemm32;
    struct exec_buffer codes, groups, floats, in, out;
    float *sums;
};

static int open_blas(struct bench *b, const char *path, uint32_t n_threads, struct moeflux_err *e)
{
    static const char *const names[][3] = {
        {"scipy_cblas_sgemm64_", "scipy_openblas_set_num_threads64_", "64"},
        {"cblas_sgemm64_", "openblas_set_num_threads64_", "64"},
        {"cblas_sgemm", "openblas_set_num_threads", NULL}};
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_IO, "%s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *product = dlsym(lib, names[i][0]), *set = dlsym(lib, names[i][1]);
        if (!product || !set)
            continue;
        memcpy(names[i][2] ? (void *)&b->sgemm64 : (void *)&b->sgemm32, &product, sizeof product);
        set_threads_fn *set_threads;
        memcpy(&set_threads, &set, sizeof set);
        set_threads((int)n_threads);
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED, "%s has no cblas_sgemm with openblas_set_num_threads", path);
}

static int prepare(struct bench *b, struct moeflux_err *e)
{
    uint64_t most = 0, widest = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        most = size_max(most, (uint64_t)shapes[i].rows * shapes[i].cols);
        widest = size_max(widest, size_max(shapes[i].rows, shapes[i].cols));
    }
    int rc = bench_fill(b->x, &b->codes, most / 2, 0x3c123c21, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->groups, most / 64 * 2, 0x3c003c00, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->floats, most * sizeof(float), 0x3c003c00, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->in, MOST_TOKENS * widest * sizeof(float), 0x3f000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->out, MOST_TOKENS * widest * sizeof(float), 0, e);
    b->sums = rc == 0 ? mem_new(PEAK_BLOCKS, sizeof *b->sums, e) : NULL;
    return rc < 0 ? rc : b->sums ? 0 : ERR_MEMORY;
}

static void peak_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    (void)thread;
    b->sums[block] = cpu_probe_for(b->isa)->peak(PEAK_TURNS);
}

static void run_blas(const struct bench *b, uint32_t rows, uint32_t cols, uint32_t n)
{
    const float *x = (const float *)(const void *)b->in.host,
                *w = (const float *)(const void *)b->floats.host;
    float *y = (float *)(void *)b->out.host;
    if (b->sgemm64)
        b->sgemm64(ROW_MAJOR, NO_TRANS, TRANS, n, rows, cols, 1, x, cols, w, cols, 0, y, rows);
    else
        b->sgemm32(ROW_MAJOR, NO_TRANS, TRANS, (int)n, (int)rows, (int)cols, 1, x, (int)cols, w, (int)cols, 0,
                   y, (int)rows);
}

static int run_own(const struct bench *b, const struct linear *op, uint32_t rows, uint32_t cols, uint32_t n,
                   struct moeflux_err *e)
{
    exec_begin(b->x);
    linear_run(op, b->x,
               &(struct linear_call){
                   .x = b->in.address, .y = b->out.address, .x_stride = cols, .y_stride = rows, .n = n});
    return exec_finish(b->x, e);
}

/* Seconds; of each thread. */
struct moment {
    double wall, processor;
};

static struct moment now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    double all = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    return (struct moment){(double)clock_ns() * 1e-9, all / team_n_threads(b->team)};
}

static struct moment rested(const struct bench *b)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    return now(b);
}

/* What a measured thing did in each turn, in G multiply-adds a second. */
struct speeds {
    double wall[MAX_REPS], processor[MAX_REPS];
};

static void keep(const struct bench *b, struct speeds *s, uint32_t at, double amount, struct moment begin)
{
    struct moment end = now(b);
    s->wall[at] = amount * 1e-9 / (end.wall - begin.wall);
    s->processor[at] = amount * 1e-9 / (end.processor - begin.processor);
}

/* The median of the turns' ratios. */
static double ratio(const double *a, const double *b, uint32_t n)
{
    double r[MAX_REPS] = {0};
    for (uint32_t i = 0; i < n; i++)
        r[i] = a[i] / b[i];
    return bench_median(r, n);
}

static void print(struct speeds *own, struct speeds *blas, struct speeds *peak, bool has_blas, uint32_t n)
{
    double wall = has_blas ? ratio(own->wall, blas->wall, n) : 0;
    double processor = has_blas ? ratio(own->processor, blas->processor, n) : 0;
    double share = ratio(own->processor, peak->processor, n);
    printf(" %6.1f (%6.1f), of the peak %.2f", bench_median(own->wall, n), bench_median(own->processor, n),
           share);
    if (has_blas)
        printf(", sgemm %6.1f (%6.1f), ratio %.2f (%.2f)", bench_median(blas->wall, n),
               bench_median(blas->processor, n), wall, processor);
    printf("\n");
}

static int measure(struct bench *b, uint32_t rows, uint32_t cols, uint32_t n, uint32_t reps,
                   struct moeflux_err *e)
{
    static struct speeds own, blas, peak;
    const struct weights w = {b->codes.address, b->groups.address, b->groups.address, rows, cols, FORMAT_Q4};
    double amount = (double)rows * cols * n;
    bool has_blas = b->sgemm64 || b->sgemm32;
    struct linear op;
    int rc = linear_open(&op, b->x, &w, 1, e);
    for (uint32_t i = 0; rc == 0 && i <= reps; i++) {
        uint32_t at = i > 0 ? i - 1 : 0; /* the first turn touches memory for the first time */
        struct moment begin = rested(b);
        rc = run_own(b, &op, rows, cols, n, e);
        keep(b, &own, at, amount, begin);
        begin = rested(b);
        if (has_blas)
            run_blas(b, rows, cols, n);
        keep(b, &blas, at, amount, begin);
        begin = rested(b);
        team_for(b->team, PEAK_BLOCKS, peak_block, b);
        keep(b, &peak, at, (double)PEAK_BLOCKS * PEAK_TURNS * 12 * 16, begin);
    }
    linear_close(&op, b->x);
    if (rc < 0)
        return rc;
    printf("%5u x %-5u %5u tokens", rows, cols, n);
    print(&own, &blas, &peak, has_blas, reps);
    return 0;
}

int main(int argc, char **argv)
{
    struct arg_str *blas = arg_str0(NULL, "blas", "LIBRARY", NULL);
    struct arg_str *isa = arg_str0(NULL, "isa", "NAME", NULL);
    struct arg_int *threads = arg_int0(NULL, "threads", "N", NULL), *reps = arg_int0(NULL, "reps", "N", NULL);
    struct arg_int *tokens = arg_intn(NULL, NULL, "TOKENS", 0, MAX_CASES, NULL);
    struct arg_end *end = arg_end(4);
    void *table[] = {blas, isa, threads, reps, tokens, end};
    struct moeflux_err e = {0};
    struct bench b = {0};
    if (arg_parse(argc, argv, table) > 0) {
        arg_print_errors(stderr, end, "bench_gemm");
        return 2;
    }
    static const int usual[] = {64, 512};
    const int *n = tokens->count ? tokens->ival : usual;
    int n_cases = tokens->count ? tokens->count : 2;
    uint32_t n_threads = threads->count ? (uint32_t)threads->ival[0] : cores_useful("");
    uint32_t n_reps = reps->count ? (uint32_t)size_min((uint64_t)reps->ival[0], MAX_REPS) : 15;
    const struct exec_options options = {
        .device = "cpu", .n_threads = n_threads, .isa = isa->count ? isa->sval[0] : NULL};
    b.isa = cpu_isa_find(options.isa, &e);
    b.team = b.isa ? team_new(n_threads, &e) : NULL;
    int rc = b.team ? exec_open(&b.x, &options, &e) : ERR_MEMORY;
    if (rc == 0 && blas->count)
        rc = open_blas(&b, blas->sval[0], n_threads, &e);
    if (rc == 0)
        rc = prepare(&b, &e);
    if (rc == 0)
        printf("%s, G multiply-adds/s\n", exec_get_caps(b.x).name);
    for (int c = 0; c < n_cases; c++)
        for (size_t i = 0; rc == 0 && i < sizeof shapes / sizeof *shapes; i++)
            rc = measure(&b, shapes[i].rows, shapes[i].cols, (uint32_t)size_min((uint64_t)n[c], MOST_TOKENS),
                         n_reps, &e);
    if (rc < 0)
        fprintf(stderr, "bench_gemm: %s\n", e.text);
    struct exec_buffer *all[] = {&b.codes, &b.groups, &b.floats, &b.in, &b.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    free(b.sums);
    exec_close(b.x);
    team_free(b.team);
    arg_freetable(table, sizeof table / sizeof *table);
    return rc < 0;
}
