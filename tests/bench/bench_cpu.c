/* bench_cpu - the speed of the products of src/cpu, compared with a plain read of memory and the peak of the
 * multiply-add units.
 *
 *   bench_cpu [--isa NAME] [--threads N] [--format NAME] [--one-token] [--cols N] [--reps N] [--megabytes N]
 *     --format      a name from base/format.h, such as "Q3 g32 f16"
 *     --megabytes   size of the matrix, larger than the caches (256); gemm with many tokens takes some of its
 *                   rows
 *
 * Measures the things it compares alternately, so that the machine's noise affects all alike. Prints the
 * median and the best of the repetitions, and the average work in a second of processor time, which other
 * programs on the machine change least. */
#include <argtable2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "cpu/isa.h"
#include "cpu_probe.h"

enum {
    MAX_REPS = 200,
    BLOCK_ROWS = 64,
    MAX_WORK = 32,
    MAX_TOKENS = 512,
    MAX_THREADS = 256,
    GEMM_ROWS = 4096
};

struct bench {
    const struct cpu_isa *isa;
    struct team *team;
    struct cpu_matrix w;
    struct cpu_vector x[CPU_MAX_BATCHED];
    float *numbers, *y, *packed; /* [MAX_TOKENS][cols], [rows][CPU_MAX_BATCHED] or more, as numbers */
    void *scratch[MAX_THREADS];
    uint64_t bytes; /* size of the whole matrix, scales and biases included */
    uint32_t n;     /* vectors or tokens */
    uint32_t shift; /* the first strip of gemm: another one each time, so that the rows are cold */
};

struct work {
    char name[40];
    team_fn *run;
    uint32_t n_blocks, n;
    double amount; /* what is done, in the unit printed */
    const char *unit;
    double seconds[MAX_REPS], processor; /* processor: the time of all repetitions */
};

static void *must(void *p)
{
    if (!p) {
        fputs("bench_cpu: no memory\n", stderr);
        exit(1);
    }
    return p;
}

static void fill_words(uint32_t *p, uint64_t n, uint32_t mask, uint32_t base)
{
    uint64_t z = 88172645463325252u;
    for (uint64_t i = 0; i < n; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        p[i] = ((uint32_t)(z >> 20) & mask) + base;
    }
}

static void prepare(struct bench *b, uint32_t format, uint32_t cols, uint64_t megabytes)
{
    const struct format *f = format_of(format);
    bool is_plain = f->scheme == SCHEME_PLAIN;
    uint64_t row = format_code_bytes(f, cols) + (1u + f->has_bias) * format_scale_bytes(f, cols);
    uint32_t rows = (uint32_t)((megabytes << 20) / row / BLOCK_ROWS * BLOCK_ROWS);
    uint64_t codes = format_code_bytes(f, (uint64_t)rows * cols),
             groups = format_scale_bytes(f, (uint64_t)rows * cols);
    uint8_t *memory = must(aligned_alloc(4096, (codes + 2 * groups + 8192) / 4096 * 4096));
    b->w = (struct cpu_matrix){memory, memory + codes, memory + codes + groups, rows, cols, format};
    b->bytes = rows * row;
    /* Numbers of about 1 as bf16, float32 and E4M3 alike. */
    bool is_e4m3 = f->scheme == SCHEME_E4M3;
    fill_words((uint32_t *)(void *)memory, codes / 4,
               is_plain  ? 0x007f007f
               : is_e4m3 ? 0x8f8f8f8f
                         : UINT32_MAX,
               is_plain  ? 0x3f003f00
               : is_e4m3 ? 0x48484848
                         : 0);
    bool is_byte = f->scale_bytes == 1;
    fill_words((uint32_t *)(void *)(memory + codes), groups / 2, is_byte ? 0x07070707 : 0x007f007f,
               is_byte ? 0x70707070 : 0x3c003c00);
    b->numbers = must(malloc(MAX_TOKENS * cols * sizeof(float)));
    for (uint64_t i = 0; i < (uint64_t)MAX_TOKENS * cols; i++)
        b->numbers[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
    for (uint32_t i = 0; i < CPU_MAX_BATCHED; i++) {
        bool has_blocks = format_is_block(format);
        cpu_vector_place(&b->x[i], cols, has_blocks,
                         must(aligned_alloc(64, cpu_vector_bytes(cols, has_blocks))));
        b->x[i].x = b->numbers + (uint64_t)i * cols;
        if (cpu_format_takes_digits(format))
            b->isa->quantise(&b->x[i], b->x[i].x);
    }
    b->packed = must(aligned_alloc(64, MAX_TOKENS * cols * sizeof(float)));
    uint64_t y_bytes =
        size_max((uint64_t)rows * CPU_MAX_BATCHED, (uint64_t)GEMM_ROWS * MAX_TOKENS) * sizeof(float);
    b->y = must(malloc(y_bytes));
    memset(b->y, 0, y_bytes);
    for (uint32_t i = 0; i < team_n_threads(b->team); i++)
        b->scratch[i] = must(aligned_alloc(64, cpu_gemm_scratch_bytes(cols)));
}

static void run_gemv(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    (void)thread;
    const struct cpu_gemv_call call = {.w = &b->w,
                                       .x = b->x,
                                       .n = b->n,
                                       .first = block * BLOCK_ROWS,
                                       .last = (block + 1) * BLOCK_ROWS,
                                       .y = b->y,
                                       .y_stride = b->w.rows};
    b->isa->gemv(&call);
}

static void run_gemm(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    uint64_t row = (b->shift + (uint64_t)block * BLOCK_ROWS) % b->w.rows;
    struct cpu_matrix w = b->w;
    const struct format *f = format_of(w.format);
    w.weight = (const uint8_t *)w.weight + format_code_bytes(f, row * w.cols);
    w.scales = (const uint8_t *)w.scales + format_scale_bytes(f, row * w.cols);
    if (f->has_bias)
        w.biases = (const uint8_t *)w.biases + format_scale_bytes(f, row * w.cols);
    const struct cpu_gemm_call call = {.w = &w,
                                       .packed = b->packed,
                                       .n = b->n,
                                       .last = BLOCK_ROWS,
                                       .y = b->y + (uint64_t)block * BLOCK_ROWS,
                                       .y_stride = GEMM_ROWS,
                                       .scratch = b->scratch[thread]};
    b->isa->gemm(&call);
}

static void run_pack(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    (void)thread;
    const struct cpu_pack_call call = {.x = b->numbers,
                                       .x_stride = b->w.cols,
                                       .n = b->n,
                                       .cols = b->w.cols,
                                       .first = block,
                                       .last = block + 1,
                                       .packed = b->packed};
    b->isa->pack(&call);
}

static void run_read(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    uint64_t each = b->bytes / (b->w.rows / BLOCK_ROWS) / 4096 * 4096;
    (void)thread;
    b->y[block] = cpu_probe_for(b->isa)->read((const uint8_t *)b->w.weight + block * each, each);
}

static void run_peak(void *ctx, uint32_t block, uint32_t thread)
{
    struct bench *b = ctx;
    (void)thread;
    b->y[block] = cpu_probe_for(b->isa)->peak(1000);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(struct bench *b, struct work *all, uint32_t n, uint32_t reps)
{
    for (uint32_t rep = 0; rep <= reps; rep++)
        for (uint32_t i = 0; i < n; i++) {
            b->n = all[i].n;
            uint64_t begin = clock_ns();
            double used = processor_seconds();
            if (all[i].run == run_gemm) {
                b->shift = (b->shift + GEMM_ROWS) % b->w.rows;
                team_for(b->team, cpu_n_tiles(b->n), run_pack, b);
            }
            team_for(b->team, all[i].n_blocks, all[i].run, b);
            if (rep > 0) {
                all[i].seconds[rep - 1] = (double)(clock_ns() - begin) * 1e-9;
                all[i].processor += processor_seconds() - used;
            }
        }
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(struct work *w, uint32_t reps)
{
    qsort(w->seconds, reps, sizeof *w->seconds, order);
    printf("%-24s %7.2f, best %7.2f, a core %7.2f %s\n", w->name, w->amount / w->seconds[reps / 2] * 1e-9,
           w->amount / w->seconds[0] * 1e-9, w->amount * reps / w->processor * 1e-9, w->unit);
}

static void one_token(struct bench *b, uint32_t reps)
{
    static struct work all[MAX_WORK];
    uint32_t n = 2, blocks = b->w.rows / BLOCK_ROWS;
    double weights = (double)b->w.rows * b->w.cols, bytes = (double)b->bytes;
    all[0] = (struct work){"plain read", run_read, blocks, 0, bytes, "GB/s", {0}, 0};
    all[1] = (struct work){"gemv", run_gemv, blocks, 1, bytes, "GB/s", {0}, 0};
    for (uint32_t v = 1; v <= CPU_MAX_BATCHED; v += v < 6 ? 1 : 2, n++) {
        all[n] = (struct work){"", run_gemv, blocks, v, weights * v, "G multiply-adds/s", {0}, 0};
        snprintf(all[n].name, sizeof all[n].name, "gemv, %u vectors", v);
    }
    measure(b, all, n, reps);
    for (uint32_t i = 0; i < n; i++)
        print(&all[i], reps);
}

static void many_tokens(struct bench *b, uint32_t reps)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 48, 96, 192, 512};
    static struct work all[MAX_WORK];
    uint32_t n = 0, rows = b->w.rows < GEMM_ROWS ? b->w.rows / BLOCK_ROWS * BLOCK_ROWS : GEMM_ROWS;
    for (; n < sizeof tokens / sizeof *tokens; n++) {
        double amount = (double)rows * b->w.cols * tokens[n];
        all[n] =
            (struct work){"", run_gemm, rows / BLOCK_ROWS, tokens[n], amount, "G multiply-adds/s", {0}, 0};
        snprintf(all[n].name, sizeof all[n].name, "gemm, %u tokens", tokens[n]);
    }
    all[n++] = (struct work){"multiply-add units", run_peak, 64, 0, 64.0 * 1000 * 12 * 16,
                             "G multiply-adds/s",  {0},      0};
    measure(b, all, n, reps);
    for (uint32_t i = 0; i < n; i++)
        print(&all[i], reps);
}

int main(int argc, char **argv)
{
    struct arg_str *isa = arg_str0(NULL, "isa", "NAME", NULL), *format = arg_str0(NULL, "format", "F", NULL);
    struct arg_int *threads = arg_int0(NULL, "threads", "N", NULL), *cols = arg_int0(NULL, "cols", "N", NULL);
    struct arg_int *reps = arg_int0(NULL, "reps", "N", NULL),
                   *megabytes = arg_int0(NULL, "megabytes", "N", NULL);
    struct arg_lit *alone = arg_lit0(NULL, "one-token", NULL);
    struct arg_end *end = arg_end(4);
    void *table[] = {isa, format, threads, cols, reps, megabytes, alone, end};
    struct moeflux_err e = {0};
    static struct bench b;
    if (arg_parse(argc, argv, table) > 0) {
        arg_print_errors(stderr, end, "bench_cpu");
        return 2;
    }
    uint32_t f = 0;
    while (format->count && f < FORMAT_END &&
           (!format_of(f)->name || strcasecmp(format_of(f)->name, format->sval[0]) != 0))
        f++;
    b.isa = cpu_isa_find(isa->count ? isa->sval[0] : NULL, &e);
    b.team = team_new(threads->count ? (uint32_t)threads->ival[0] : cores_useful(""), &e);
    if (!b.isa || !b.team || f == FORMAT_END) {
        fprintf(stderr, "bench_cpu: %s\n", f == FORMAT_END ? "unknown format" : e.text);
        return 2;
    }
    uint32_t n_reps = reps->count ? (uint32_t)reps->ival[0] : 15;
    prepare(&b, f, cols->count ? (uint32_t)cols->ival[0] : 2048,
            megabytes->count ? (uint64_t)megabytes->ival[0] : 256);
    printf("%s, %u threads, %s, %u x %u\n", b.isa->name, team_n_threads(b.team), format_of(f)->name, b.w.rows,
           b.w.cols);
    one_token(&b, n_reps);
    if (!alone->count)
        many_tokens(&b, n_reps);
    return 0;
}
