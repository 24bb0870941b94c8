/* bench_attention - the speed of one token's grouped-query attention on a device, with a float16 KV cache.
 *
 *   bench_attention [--device D] [--f32 | --q8] [--shape HEADS KV_HEADS DIM ROTARY] POS...
 *     --f32   the KV cache in float32
 *
 * Prints, for a token at each position, the time of a call in a chain of dependent ones, barriers included,
 * and each kernel's part. The calls go round as many layers' caches as fill 256 MB, at most 64, so that
 * caches near the processors are cold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/gqa/gqa.h"

enum { CALLS = 128, REPS = 9 };

struct bench {
    struct exec *x;
    struct gqa_shape shape;
    struct gqa op;
    struct exec_buffer cache, table, qkv, norm, rope, q, partial, out;
    uint32_t pos, n_layers;
};

static uint64_t layer_bytes(const struct bench *b)
{
    return ((uint64_t)2 * b->shape.n_kv_heads * kv_row_bytes(b->shape.kv_type, b->shape.head_dim))
           << KV_BLOCK_SHIFT;
}

static uint32_t stride_of(const struct gqa_shape *s)
{
    return ((1 + s->gated) * s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
}

static int make_cache(struct bench *b, struct moeflux_err *e)
{
    uint32_t n_blocks = div_up(b->pos + 1, 1 << KV_BLOCK_SHIFT);
    b->n_layers = (uint32_t)size_max(1, size_min(64, ((uint64_t)256 << 20) / (n_blocks * layer_bytes(b))));
    uint64_t block = b->n_layers * layer_bytes(b), *at = calloc(n_blocks, sizeof *at);
    int rc = bench_fill(b->x, &b->cache, n_blocks * block, 0x2c002e00, e);
    for (uint32_t i = 0; at && i < n_blocks; i++)
        at[i] = b->cache.address + i * block;
    if (rc == 0)
        rc = exec_buffer_new(b->x, &b->table, EXEC_DEVICE, n_blocks * sizeof *at, e);
    if (rc == 0 && at)
        rc = exec_write(b->x, &b->table, 0, at, n_blocks * sizeof *at, e);
    free(at);
    return rc;
}

static int prepare(struct bench *b, struct moeflux_err *e)
{
    const struct gqa_shape *s = &b->shape;
    const struct exec_caps caps = exec_get_caps(b->x);
    uint64_t width = (uint64_t)s->n_heads * s->head_dim * sizeof(float);
    int rc = gqa_open(&b->op, b->x, s, e);
    if (rc == 0)
        rc = make_cache(b, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->qkv, stride_of(s) * sizeof(float), 0x3e000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->norm, s->head_dim * sizeof(float), 0x3f800000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->rope, s->rotary_dim * sizeof(float), 0x3f000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->q, width, 0, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->out, width, 0, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->partial, gqa_partial_bytes(s, &caps, 1, b->pos + 1), 0, e);
    return rc;
}

static void finish(struct bench *b)
{
    gqa_close(&b->op, b->x);
    struct exec_buffer *all[] = {&b->cache, &b->table, &b->qkv,     &b->norm,
                                 &b->rope,  &b->q,     &b->partial, &b->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b->x, all[i]);
}

static void record(struct bench *b, uint32_t n_calls)
{
    for (uint32_t i = 0; i < n_calls; i++)
        gqa_run(&b->op, b->x,
                &(struct gqa_call){.qkv = b->qkv.address,
                                   .q_norm = b->norm.address,
                                   .k_norm = b->norm.address,
                                   .rope = b->rope.address,
                                   .blocks = b->table.address,
                                   .q = b->q.address,
                                   .partial = b->partial.address,
                                   .partial_bytes = b->partial.bytes,
                                   .dst = b->out.address,
                                   .n = 1,
                                   .pos = b->pos,
                                   .stride = stride_of(&b->shape),
                                   .layer_off = (uint32_t)(i % b->n_layers * layer_bytes(b)),
                                   .use_f16 = true});
}

static int run_ns(struct bench *b, uint32_t n_calls, double *ns, struct moeflux_err *e)
{
    exec_begin(b->x);
    record(b, n_calls);
    uint64_t start = clock_ns();
    int rc = exec_finish(b->x, e);
    *ns = (double)(clock_ns() - start);
    return rc;
}

/* Measures a call of a chain without the cost of a submission: the difference of two lengths. */
static int measure_chain(struct bench *b, double *us, struct moeflux_err *e)
{
    double v[REPS];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < REPS; i++) {
        double one = 0, two = 0;
        rc = run_ns(b, CALLS, &one, e);
        if (rc == 0)
            rc = run_ns(b, 2 * CALLS, &two, e);
        v[i] = (two - one) / CALLS / 1e3;
    }
    *us = rc == 0 ? bench_median(v, REPS) : 0;
    return rc;
}

static int measure(const struct bench *with, const char *device, bool is_timed, struct bench_time *best,
                   double *us, struct moeflux_err *e)
{
    struct bench b = *with;
    int rc = exec_open(&b.x, &(struct exec_options){.device = device, .profile = is_timed}, e);
    if (rc == 0)
        rc = prepare(&b, e);
    if (rc == 0 && !is_timed)
        rc = measure_chain(&b, us, e);
    for (uint32_t i = 0; rc == 0 && is_timed && i < REPS; i++) {
        struct bench_time t;
        bench_begin(b.x, &t);
        record(&b, 1);
        rc = bench_end(b.x, &t, e);
        bench_keep(best, &t);
    }
    if (b.x)
        finish(&b);
    exec_close(b.x);
    return rc;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    struct bench b = {.shape = {16, 2, 256, 64, 1e-6f, KV_TYPE_F16, true, ATTENTION_NORM_HEADS, false}};
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--f32") == 0) {
            b.shape.kv_type = KV_TYPE_F32;
        } else if (strcmp(argv[at], "--q8") == 0) {
            b.shape.kv_type = KV_TYPE_Q8_0;
        } else if (strcmp(argv[at], "--shape") == 0 && at + 4 < argc) {
            uint32_t *dims[] = {&b.shape.n_heads, &b.shape.n_kv_heads, &b.shape.head_dim,
                                &b.shape.rotary_dim};
            for (int i = 0; i < 4; i++)
                *dims[i] = (uint32_t)strtoul(argv[++at], NULL, 10);
        } else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc) {
            device = argv[++at];
        }
    }
    if (at == argc)
        return fprintf(
                   stderr,
                   "usage: bench_attention [--device D] [--f32 | --q8] [--shape HEADS KV_HEADS DIM ROTARY] "
                   "POS...\n"),
               2;
    for (; at < argc; at++) {
        struct moeflux_err e = {0};
        struct bench_time parts = {0};
        double us;
        b.pos = (uint32_t)strtoul(argv[at], NULL, 10);
        int rc = measure(&b, device, false, NULL, &us, &e);
        if (rc == 0)
            rc = measure(&b, device, true, &parts, NULL, &e);
        if (rc < 0)
            return fprintf(stderr, "bench_attention: %s\n", e.text), 1;
        printf("%u/%u heads of %u, position %6u: %8.1f us a call;", b.shape.n_heads, b.shape.n_kv_heads,
               b.shape.head_dim, b.pos, us);
        bench_print_parts(&parts);
        printf("\n");
    }
    return 0;
}
