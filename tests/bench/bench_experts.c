/* bench_experts - the speed of a chunk's routed experts by the shape of their tiles.
 *
 *   bench_experts [OPTIONS] TOKENS...
 *     -d DEVICE   -e EXPERTS (256)   -k TOP_K (8)   -s HIDDEN (2048)   -i INNER (512)
 *     -q BITS of a weight (4)   -r REPS (5)   -f: float32 throughout
 *     -t GROUP,ROWS,ACROSS,DEPTH,ALONG: only this tile (tests/bench/tiles.h)
 *
 * Prints, for each number of tokens, the device's time for sort, up and down, the fastest of REPS. It
 * measures the sizes of tiles that the program has ("*": the one that it would choose) and, on devices with
 * float16 tiles, others. GB/s: the weights of the experts that have tokens, read once. Every token chooses
 * different experts at random. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/experts/experts.h"
#include "tiles.h"

enum { MAX_TOKENS = 8192, SHARED = 64, PER_BATCH = 8, WARM_NS = 60000000 };

struct bench {
    struct exec *x;
    struct experts_shape shape;
    uint64_t expert_bytes;
    uint32_t reps, n, n_used;    /* experts that have tokens */
    struct experts_grouped many; /* the operation as opened, with all tiles */
    struct experts op;
    struct exec_buffer pool, table, in, norm, idx, act, scratch;
    struct moeflux_err err; /* the first failure */
};

struct times {
    uint64_t sort, up, down;
};

static uint32_t random_below(uint32_t n)
{
    return (uint32_t)(((uint64_t)random() * n) >> 31);
}

static void fill(struct bench *b, struct exec_buffer *to, uint64_t bytes, uint32_t word)
{
    if (!b->err.code)
        bench_fill(b->x, to, bytes, word, &b->err);
}

static void write_words(struct bench *b, struct exec_buffer *to, const void *words, uint64_t bytes)
{
    if (!b->err.code)
        exec_buffer_new(b->x, to, EXEC_DEVICE, bytes, &b->err);
    if (!b->err.code)
        exec_write(b->x, to, 0, words, bytes, &b->err);
}

static void lay_out(struct bench *b)
{
    struct experts_shape *s = &b->shape;
    const struct format *f = format_of(s->up_format);
    uint64_t n = (uint64_t)s->inner * s->hidden;
    uint32_t w = (uint32_t)format_code_bytes(f, n), g = (uint32_t)format_scale_bytes(f, n), part = w + 2 * g;
    s->gate_format = s->down_format = s->up_format;
    s->down_formats = format_set(s->down_format);
    s->eps = 1e-6f;
    s->gate_s = w;
    s->gate_b = w + g;
    s->up_w = part;
    s->up_s = part + w;
    s->up_b = part + w + g;
    s->down_w = 2 * part;
    s->down_s = 2 * part + w;
    s->down_b = 2 * part + w + g;
    b->expert_bytes = 3 * (uint64_t)part;
}

static void prepare(struct bench *b, const char *device, bool float32)
{
    const struct experts_shape *s = &b->shape;
    lay_out(b);
    if (exec_open(&b->x, &(struct exec_options){.device = device, .profile = true}, &b->err) < 0)
        return;
    if (float32)
        exec_keep_f32(b->x);
    uint64_t step = size_round_up(b->expert_bytes, 4096);
    fill(b, &b->pool, step * s->n_experts, 0x3c123c21);
    uint64_t *table = calloc(s->n_experts, sizeof *table);
    for (uint32_t i = 0; table && i < s->n_experts; i++)
        table[i] = b->pool.address + i * step;
    if (table)
        write_words(b, &b->table, table, s->n_experts * sizeof *table);
    free(table);
    fill(b, &b->norm, 4 * (uint64_t)s->hidden, 0x3f800000);
    if (!b->err.code)
        experts_open(&b->op, b->x, s, &b->err);
    if (!b->err.code && b->op.gpu.grouped.from == UINT32_MAX)
        err_set(&b->err, ERR_UNSUPPORTED, "the device has one way for any number of tokens");
    b->many = b->op.gpu.grouped;
}

static void forget_tokens(struct bench *b)
{
    struct exec_buffer *all[] = {&b->in, &b->idx, &b->act, &b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b->x, all[i]);
}

/* Whether v[n] stands before. */
static bool is_repeated(const uint32_t *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (v[i] == v[n])
            return true;
    return false;
}

/* Inputs and choices of n tokens. */
static void take_tokens(struct bench *b, uint32_t n)
{
    const struct experts_shape *s = &b->shape;
    uint64_t pairs = (uint64_t)n * s->top_k;
    uint32_t *idx = calloc(pairs, sizeof *idx);
    bool *used = calloc(s->n_experts, sizeof *used);
    forget_tokens(b);
    b->n = n;
    b->n_used = 0;
    for (uint64_t i = 0; idx && used && i < pairs; i++) {
        do
            idx[i] = random_below(s->n_experts);
        while (is_repeated(idx + i / s->top_k * s->top_k, (uint32_t)(i % s->top_k)));
        b->n_used += !used[idx[i]];
        used[idx[i]] = true;
    }
    if (idx && used)
        write_words(b, &b->idx, idx, pairs * sizeof *idx);
    free(idx);
    free(used);
    fill(b, &b->in, (uint64_t)n * s->hidden * 4, 0x3f800000);
    fill(b, &b->act, pairs * s->inner * 4, 0);
    fill(b, &b->scratch, 4 * experts_grouped_scratch(s, n, SHARED), 0);
}

static uint64_t time_of(const struct exec_stats *s, const char *kernel)
{
    uint64_t ns = 0;
    for (uint32_t i = 0; i < s->n_times; i++)
        if (strncmp(s->times[i].name, kernel, strlen(kernel)) == 0)
            ns += s->times[i].ns;
    return ns;
}

static struct times run_once(struct bench *b)
{
    struct exec_stats s;
    const struct experts_call call = {.x = b->in.address,
                                      .norm = b->norm.address,
                                      .table = b->table.address,
                                      .idx = b->idx.address,
                                      .act = b->act.address,
                                      .shared_down = {.cols = SHARED},
                                      .n = b->n,
                                      .chunk = b->n,
                                      .scratch = b->scratch.address,
                                      .more = true};
    exec_reset_stats(b->x);
    exec_begin(b->x);
    for (int i = 0; i < PER_BATCH; i++) {
        experts_grouped_up(&b->op.gpu.grouped, b->x, &b->shape, &call);
        experts_grouped_down(&b->op.gpu.grouped, b->x, &b->shape, &call);
    }
    exec_finish(b->x, &b->err);
    exec_begin(b->x); /* collects the times */
    exec_abandon(b->x);
    exec_get_stats(b->x, &s);
    return (struct times){time_of(&s, "experts_prefill_sort"), time_of(&s, "experts_prefill_up"),
                          time_of(&s, "experts_prefill_down")};
}

/* Measures the only tiles of b->op. */
static void measure(struct bench *b, const char *name)
{
    struct times best = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    /* While kernels were compiled the device was idle: its clocks rise again. */
    for (uint64_t start = clock_ns(); clock_ns() - start < WARM_NS && !b->err.code;)
        run_once(b);
    for (uint32_t i = 0; i < b->reps && !b->err.code; i++) {
        struct times t = run_once(b);
        best.sort = size_min(best.sort, t.sort);
        best.up = size_min(best.up, t.up);
        best.down = size_min(best.down, t.down);
    }
    if (b->err.code)
        return;
    double bytes = (double)b->n_used * (double)b->expert_bytes / 3;
    printf("%6u  %-28s %8.1f %8.1f %8.1f %8.1f %8.0f %8.0f\n", b->n, name,
           (double)best.sort / 1e3 / PER_BATCH, (double)best.up / 1e3 / PER_BATCH,
           (double)best.down / 1e3 / PER_BATCH, (double)(best.sort + best.up + best.down) / 1e3 / PER_BATCH,
           2 * PER_BATCH * bytes / (double)best.up, PER_BATCH * bytes / (double)best.down);
    fflush(stdout);
}

static void measure_own(struct bench *b)
{
    uint32_t chosen = b->many.n_tiles - 1;
    while (chosen > 0 &&
           (uint64_t)b->n * b->shape.top_k < (uint64_t)b->many.tiles[chosen].from * b->shape.n_experts)
        chosen--;
    for (uint32_t i = 0; i < b->many.n_tiles && !b->err.code; i++) {
        char name[64];
        b->op.gpu.grouped.n_tiles = 1;
        b->op.gpu.grouped.tiles[0] = b->many.tiles[i];
        snprintf(name, sizeof name, "%s%ux%u/%u", i == chosen ? "*" : "", b->many.tiles[i].tokens,
                 b->many.tiles[i].up_rows, b->many.tiles[i].down_rows);
        measure(b, name);
    }
}

static void measure_tile(struct bench *b, const struct tile *t)
{
    const struct experts_shape *s = &b->shape;
    struct experts_tiles *mine = &b->op.gpu.grouped.tiles[0];
    const struct gemm_plan p = tile_plan(b->x, t, format_constant(format_set(s->up_format)));
    char name[64];
    if (b->err.code || !tile_fits(b->x, t, s->hidden) || !tile_fits(b->x, t, s->inner))
        return;
    *mine = (struct experts_tiles){.up_rows = p.rows, .down_rows = p.rows, .tokens = p.tokens};
    b->op.gpu.grouped.n_tiles = 1;
    gemm_kernel(b->x, &mine->up, "experts_prefill_up", sizeof(struct experts_prefill_up_args), &p, &b->err);
    if (!b->err.code)
        gemm_kernel(b->x, &mine->down, "experts_prefill_down", sizeof(struct experts_prefill_down_args), &p,
                    &b->err);
    tile_name(t, name, sizeof name);
    measure(b, name);
}

static void close_all(struct bench *b)
{
    struct exec_buffer *all[] = {&b->pool, &b->table, &b->norm};
    forget_tokens(b);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b->x, all[i]);
    exec_close(b->x);
}

static int usage(void)
{
    fputs("usage: bench_experts [-d DEVICE] [-e EXPERTS] [-k TOP_K] [-s HIDDEN] [-i INNER] [-q BITS] [-r "
          "REPS] [-f] "
          "[-t GROUP,ROWS,ACROSS,DEPTH,ALONG] TOKENS...\n",
          stderr);
    return 2;
}

static bool is_sound(const struct bench *b)
{
    const struct experts_shape *s = &b->shape;
    return s->n_experts > 0 && s->top_k > 0 && s->top_k <= s->n_experts && s->up_format != FORMAT_NONE &&
           s->hidden % 64 == 0 && s->inner % 64 == 0 && s->hidden > 0 && s->inner > 0 && b->reps > 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.shape = {.n_experts = 256, .top_k = 8, .hidden = 2048, .inner = 512}, .reps = 5};
    const char *device = NULL;
    struct tile tile, *only = NULL;
    bool float32 = false;
    for (int c; (c = getopt(argc, argv, "d:e:k:s:i:q:r:t:f")) != -1;) {
        uint32_t v = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        switch (c) {
        case 'd':
            device = optarg;
            break;
        case 'e':
            b.shape.n_experts = v;
            break;
        case 'k':
            b.shape.top_k = v;
            break;
        case 's':
            b.shape.hidden = v;
            break;
        case 'i':
            b.shape.inner = v;
            break;
        case 'q':
            b.shape.up_format = format_find_affine(v, 64, SCALE_BF16);
            break;
        case 'r':
            b.reps = v;
            break;
        case 'f':
            float32 = true;
            break;
        case 't':
            if (!tile_read(optarg, &tile))
                return usage();
            only = &tile;
            break;
        default:
            return usage();
        }
    }
    if (optind == argc || !is_sound(&b))
        return usage();
    prepare(&b, device, float32);
    if (only && !b.err.code &&
        (!b.many.is_f16 || !tile_fits(b.x, only, b.shape.hidden) || !tile_fits(b.x, only, b.shape.inner)))
        err_set(&b.err, ERR_UNSUPPORTED, "the device or the shape does not allow this tile");
    if (!b.err.code)
        printf(
            "tokens  tile                          sort us    up us  down us   sum us  up GB/s down GB/s\n");
    for (int i = optind; i < argc && !b.err.code; i++) {
        uint32_t n = (uint32_t)strtoul(argv[i], NULL, 10);
        if (n == 0 || n > MAX_TOKENS)
            return usage();
        take_tokens(&b, n);
        if (!only)
            measure_own(&b);
        for (uint32_t j = 0; j < (only ? 1 : TILES_TO_TRY) && b.many.is_f16; j++)
            measure_tile(&b, only ? only : &tiles_to_try[j]);
    }
    if (b.err.code)
        fprintf(stderr, "bench_experts: %s\n", b.err.text);
    close_all(&b);
    return b.err.code ? 1 : 0;
}
