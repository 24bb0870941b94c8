/* bench_linear - the speed of the dense products of a chunk.
 *   bench_linear [--device D] ROWS COLS TOKENS [FORMAT [REPS]]   FORMAT: 0 q4, 1 q8, 2 bf16, 3 f32
 * Prints the device's time a product and billions of multiply-adds a second, the fastest of REPS; for software
 * devices also the same for a second of processor time, which does not change with what else the machine does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "base/clock.h"
#include "base/err.h"
#include "ops/linear.h"

struct bench {
    struct exec *x;
    struct exec_buffer weight, groups, in, norm, out;
    struct linear op;
};

static int fill(struct exec *x, struct exec_buffer *b, uint64_t bytes, uint32_t word, struct err *e)
{
    int rc = exec_buffer_new(x, b, EXEC_DEVICE, bytes, e);
    uint32_t *v = rc == 0 ? malloc(bytes) : NULL;
    for (uint64_t i = 0; v && i < bytes / 4; i++)
        v[i] = word;
    rc = v ? exec_write(x, b, 0, v, bytes, e) : rc;
    free(v);
    return rc;
}

static int prepare(struct bench *b, const char *device, uint32_t rows, uint32_t cols, uint32_t n,
                   uint32_t format, struct err *e)
{
    static const uint32_t bits[] = {4, 8, 16, 32};
    uint64_t weights = (uint64_t)rows * cols;
    int rc = exec_open(&b->x, device, true, false, e);
    if (rc == 0)
        rc = fill(b->x, &b->weight, weights * bits[format] / 8, 0x3c123c21, e);
    if (rc == 0)
        rc = fill(b->x, &b->groups, (weights / 64 + 1) / 2 * 4, 0x3c003c00, e);
    if (rc == 0)
        rc = fill(b->x, &b->in, (uint64_t)n * cols * 4, 0x3f800000, e);
    if (rc == 0)
        rc = fill(b->x, &b->norm, (uint64_t)cols * 4, 0x3f800000, e);
    if (rc == 0)
        rc = fill(b->x, &b->out, (uint64_t)n * rows * 4, 0, e);
    const struct weights w = {b->weight.address, b->groups.address, b->groups.address, rows, cols, format};
    return rc < 0 ? rc : linear_open(&b->op, b->x, &w, 1, e);
}

static uint64_t device_ns(const struct exec *x)
{
    struct exec_stats s;
    exec_get_stats(x, &s);
    uint64_t ns = 0;
    for (uint32_t i = 0; i < s.n_times; i++)
        ns += s.times[i].ns;
    return ns;
}

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int run(struct bench *b, uint32_t n, uint64_t *ns, uint64_t *cpu_ns, struct err *e)
{
    const struct linear_call call = {.x = b->in.address,
                                     .norm = b->norm.address,
                                     .y = b->out.address,
                                     .x_stride = b->op.cols,
                                     .y_stride = b->op.rows,
                                     .n = n,
                                     .eps = 1e-6f};
    exec_reset_stats(b->x);
    uint64_t start = processor_ns();
    exec_begin(b->x);
    linear_run(&b->op, b->x, &call);
    int rc = exec_finish(b->x, e);
    *cpu_ns = processor_ns() - start;
    exec_begin(b->x); /* collects the times */
    exec_abandon(b->x);
    *ns = device_ns(b->x);
    return rc;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        device = argv[2];
        argc -= 2;
        argv += 2;
    }
    if (argc < 4)
        return fprintf(stderr, "usage: bench_linear [--device D] ROWS COLS TOKENS [FORMAT [REPS]]\n"), 2;
    uint32_t v[5] = {0, 0, 0, FORMAT_Q4, 5};
    for (int i = 1; i < argc && i <= 5; i++)
        v[i - 1] = (uint32_t)strtoul(argv[i], NULL, 10);
    struct err e = {0};
    struct bench b = {0};
    uint64_t start = clock_ns(), best = UINT64_MAX, least = UINT64_MAX, ns, cpu;
    int rc = prepare(&b, device, v[0], v[1], v[2], v[3] & 3, &e);
    double opened = (double)(clock_ns() - start) / 1e9;
    for (uint32_t i = 0; rc == 0 && i < v[4]; i++) {
        rc = run(&b, v[2], &ns, &cpu, &e);
        best = ns && ns < best ? ns : best;
        least = cpu < least ? cpu : least;
    }
    if (rc < 0)
        return fprintf(stderr, "bench_linear: %s\n", e.text), 1;
    double work = (double)v[0] * v[1] * v[2];
    printf("%ux%u, %u tokens: %.3f ms, %.2f G/s, %.2f G/s of processor time (open %.2f s)\n", v[0], v[1],
           v[2], (double)best / 1e6, work / (double)best, work / (double)least, opened);
    linear_close(&b.op, b.x);
    struct exec_buffer *all[] = {&b.weight, &b.groups, &b.in, &b.norm, &b.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    exec_close(b.x);
    return 0;
}
