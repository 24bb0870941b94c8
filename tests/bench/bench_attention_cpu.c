/* bench_attention_cpu - the speed of the cpu's attention for one token, compared with a plain read of memory
 * and the peak of the multiply-add units.
 *
 *   bench_attention_cpu [--isa NAME] [--threads N] [--reps N] [--shape TEXT] [POSITIONS ...]
 *     --shape     only shapes whose name contains TEXT
 *     POSITIONS   default: 4096, 16384 and 65536
 *
 * Before each measurement all threads read more memory than the caches hold. So the KV cache is cold, and the
 * machine's noise affects both measurements alike. Prints medians of:
 *   - the time
 *   - the work of all threads in a second if they had the processor to themselves, in bytes of keys and
 *     values and in multiply-adds
 *   - the shares of a plain read and of the peak, measured in the same turn, that these are
 *   - the share of the larger limit of the two
 * Other programs change times by the processor's clock least. */
#include <argtable2.h>
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
#include "ops/attention/attention.h"

enum {
    MAX_REPS = 100,
    MAX_POSITIONS = 8,
    READ_BYTES = 256 << 20,
    READ_BLOCK = 1 << 18,
    PEAK_BLOCKS = 64,
    PEAK_TURNS = 20000
};

static const struct {
    const char *name;
    struct attention_shape of;
} shapes[] = {
    {"gqa 16/2 of 256", {.n_heads = 16, .n_kv_heads = 2, .key_dim = 256, .value_dim = 256}},
    {"gqa 32/4 of 128", {.n_heads = 32, .n_kv_heads = 4, .key_dim = 128, .value_dim = 128}},
    {"mla 16 of 512+64", {.n_heads = 16, .n_kv_heads = 1, .key_dim = 576, .value_dim = 512, .latent = true}},
    {"mla 128 of 512+64",
     {.n_heads = 128, .n_kv_heads = 1, .key_dim = 576, .value_dim = 512, .latent = true}},
};

struct bench {
    const struct cpu_isa *isa;
    struct team *team; /* measures the limits; the operation's own has as many threads */
    struct exec *x;
    struct exec_buffer memory, table, q, dst, partial;
    float *sums; /* one for each block read, so that the compiler keeps the reads */
};

/* One entry for each repetition. */
struct times {
    double wall[MAX_REPS], run[MAX_REPS], by_read[MAX_REPS], by_peak[MAX_REPS], of_limit[MAX_REPS];
};

static uint64_t cache_bytes(const struct attention_shape *s, uint64_t positions)
{
    return positions * s->n_kv_heads *
           (kv_row_bytes(s->kv_type, s->key_dim) + (s->latent ? 0 : kv_row_bytes(s->kv_type, s->value_dim)));
}

/* Words that are small numbers as float32 and as two float16. */
static void fill(uint32_t *words, uint64_t n)
{
    uint64_t z = 88172645463325252u;
    for (uint64_t i = 0; i < n; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        words[i] = ((uint32_t)(z >> 20) & 0x80ff80ff) + 0x3c003c00;
    }
}

static int prepare(struct bench *b, uint32_t most_positions, struct moeflux_err *e)
{
    uint64_t bytes = READ_BYTES, partial = 0, channels = 0;
    const struct exec_caps caps = exec_get_caps(b->x);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct attention_shape *s = &shapes[i].of;
        bytes = size_max(bytes, cache_bytes(s, size_round_up(most_positions, 1 << KV_BLOCK_SHIFT)));
        partial = size_max(partial, attention_partial_bytes(s, &caps, 1, most_positions));
        channels = size_max(channels, (uint64_t)s->n_heads * s->key_dim);
    }
    const struct {
        struct exec_buffer *to;
        uint64_t bytes;
    } all[] = {{&b->memory, bytes},
               {&b->table, div_up(most_positions, 1 << KV_BLOCK_SHIFT) * sizeof(uint64_t)},
               {&b->q, channels * sizeof(float)},
               {&b->dst, channels * sizeof(float)},
               {&b->partial, partial}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof all / sizeof *all; i++) {
        rc = exec_buffer_new(b->x, all[i].to, EXEC_DEVICE, all[i].bytes, e);
        if (rc == 0)
            fill((uint32_t *)(void *)all[i].to->host, all[i].bytes / sizeof(uint32_t));
    }
    b->sums = rc == 0 ? mem_new(READ_BYTES / READ_BLOCK, sizeof *b->sums, e) : NULL;
    return rc < 0 ? rc : b->sums ? 0 : ERR_MEMORY;
}

static void read_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    (void)thread;
    b->sums[block] = cpu_probe_for(b->isa)->read(b->memory.host + (uint64_t)block * READ_BLOCK, READ_BLOCK);
}

static void peak_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct bench *b = ctx;
    (void)thread;
    b->sums[block] = cpu_probe_for(b->isa)->peak(PEAK_TURNS);
}

struct moment {
    double wall, processor; /* seconds; of each thread */
};

static struct moment now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    double all = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    return (struct moment){(double)clock_ns() * 1e-9, all / team_n_threads(b->team)};
}

static struct moment since(const struct bench *b, struct moment begin)
{
    struct moment end = now(b);
    return (struct moment){end.wall - begin.wall, end.processor - begin.processor};
}

static double seconds_of(struct bench *b, uint32_t n_blocks, team_fn *fn)
{
    struct moment begin = now(b);
    team_for(b->team, n_blocks, fn, b);
    return since(b, begin).processor;
}

static int run_once(struct bench *b, const struct attention *op, uint32_t positions, struct moment *took,
                    struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    const struct attention_call call = {.q = b->q.address,
                                        .blocks = b->table.address,
                                        .partial = b->partial.address,
                                        .partial_bytes = b->partial.bytes,
                                        .dst = b->dst.address,
                                        .n = 1,
                                        .pos = positions - 1,
                                        .q_stride = s->n_heads * s->key_dim,
                                        .dst_stride = s->n_heads * s->value_dim,
                                        .n_heads = s->n_heads,
                                        .n_kv_heads = s->n_kv_heads};
    struct moment begin = now(b);
    exec_begin(b->x);
    attention_run(op, b->x, &call);
    int rc = exec_finish(b->x, e);
    *took = since(b, begin);
    return rc;
}

static void print(const char *name, const struct attention_shape *s, uint32_t positions, struct times *t,
                  uint32_t reps)
{
    static const char *const types[] = {"f32", "f16", "q8 "};
    double bytes = (double)cache_bytes(s, positions);
    double pairs = (double)positions * s->n_heads * (s->key_dim + s->value_dim),
           run = bench_median(t->run, reps);
    printf("%-18s %s %7u %8.3f %7.1f %6.2f %8.1f %6.2f %6.2f\n", name, types[s->kv_type], positions,
           bench_median(t->wall, reps) * 1e3, bytes / run * 1e-9, bench_median(t->by_read, reps),
           pairs / run * 1e-9, bench_median(t->by_peak, reps), bench_median(t->of_limit, reps));
}

static int measure(struct bench *b, const char *name, const struct attention_shape *s, uint32_t positions,
                   uint32_t reps, struct moeflux_err *e)
{
    static struct times t;
    struct attention op;
    double bytes = (double)cache_bytes(s, positions);
    double pairs = (double)positions * s->n_heads * (s->key_dim + s->value_dim);
    int rc = attention_open(&op, b->x, s, e);
    for (uint32_t i = 0; i < div_up(positions, 1 << KV_BLOCK_SHIFT); i++)
        ((uint64_t *)(void *)b->table.host)[i] = b->memory.address + i * cache_bytes(s, 1 << KV_BLOCK_SHIFT);
    for (uint32_t i = 0; rc == 0 && i <= reps; i++) {
        double peak = seconds_of(b, PEAK_BLOCKS, peak_block) * pairs / (PEAK_BLOCKS * PEAK_TURNS * 12.0 * 16);
        double read = seconds_of(b, READ_BYTES / READ_BLOCK, read_block) * bytes / READ_BYTES;
        struct moment took = {0};
        rc = run_once(b, &op, positions, &took, e);
        double run = took.processor;
        if (i == 0)
            continue; /* memory is touched for the first time */
        t.wall[i - 1] = took.wall;
        t.run[i - 1] = run;
        t.by_read[i - 1] = read / run;
        t.by_peak[i - 1] = peak / run;
        t.of_limit[i - 1] = (read > peak ? read : peak) / run;
    }
    if (rc == 0)
        print(name, s, positions, &t, reps);
    return rc;
}

static int measure_all(struct bench *b, const char *part, const uint32_t *positions, uint32_t n,
                       uint32_t reps, struct moeflux_err *e)
{
    int rc = 0;
    printf("%-18s %s %7s %8s %7s %6s %8s %6s %6s\n", "shape", "kv ", "tokens", "ms", "GB/s", "memory",
           "G fma/s", "peak", "limit");
    for (size_t i = 0; rc == 0 && i < sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < 3 && strstr(shapes[i].name, part); type++)
            for (uint32_t p = 0; rc == 0 && p < n; p++) {
                struct attention_shape s = shapes[i].of;
                s.kv_type = (enum kv_type)type;
                s.scale = 1.0f / 16;
                rc = measure(b, shapes[i].name, &s, positions[p], reps, e);
            }
    return rc;
}

int main(int argc, char **argv)
{
    struct arg_str *isa = arg_str0(NULL, "isa", "NAME", NULL), *shape = arg_str0(NULL, "shape", "TEXT", NULL);
    struct arg_int *threads = arg_int0(NULL, "threads", "N", NULL), *reps = arg_int0(NULL, "reps", "N", NULL);
    struct arg_int *where = arg_intn(NULL, NULL, "POSITIONS", 0, MAX_POSITIONS, NULL);
    struct arg_end *end = arg_end(4);
    void *table[] = {isa, shape, threads, reps, where, end};
    uint32_t positions[MAX_POSITIONS] = {4096, 16384, 65536}, n = 3, most = 65536;
    struct moeflux_err e = {0};
    struct bench b = {0};
    if (arg_parse(argc, argv, table) > 0) {
        arg_print_errors(stderr, end, "bench_attention_cpu");
        return 2;
    }
    for (int i = 0; i < where->count; i++) {
        positions[i] = (uint32_t)where->ival[i];
        most = i == 0 || positions[i] > most ? positions[i] : most;
        n = (uint32_t)where->count;
    }
    const struct exec_options options = {.device = "cpu",
                                         .n_threads =
                                             threads->count ? (uint32_t)threads->ival[0] : cores_useful(""),
                                         .isa = isa->count ? isa->sval[0] : NULL};
    uint32_t n_reps = reps->count ? (uint32_t)size_min((uint64_t)reps->ival[0], MAX_REPS) : 15;
    b.isa = cpu_isa_find(options.isa, &e);
    b.team = b.isa ? team_new(options.n_threads, &e) : NULL;
    int rc = b.team ? exec_open(&b.x, &options, &e) : ERR_MEMORY;
    if (rc == 0)
        rc = prepare(&b, most, &e);
    if (rc == 0) {
        printf("%s\n", exec_get_caps(b.x).name);
        rc = measure_all(&b, shape->count ? shape->sval[0] : "", positions, n, n_reps, &e);
    }
    if (rc < 0)
        fprintf(stderr, "bench_attention_cpu: %s\n", e.text);
    struct exec_buffer *all[] = {&b.memory, &b.table, &b.q, &b.dst, &b.partial};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    free(b.sums);
    exec_close(b.x);
    team_free(b.team);
    arg_freetable(table, sizeof table / sizeof *table);
    return rc < 0;
}
