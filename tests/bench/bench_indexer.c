/* bench_indexer - the speed of indexed attention with the dims of Qwen3.8-Flash-Next: the indexer, attention
 * over what it chose, and dense attention over all positions.
 *
 *   bench_indexer [--device D] POSITIONS TOKENS [REPS]
 *
 * Prints, for a chunk of TOKENS after POSITIONS, the device's time, the fastest of REPS (3), and each
 * kernel's part of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/gqa/gqa.h"
#include "ops/indexer/indexer.h"

static const struct indexer_shape index_shape = {.n_heads = 4,
                                                 .dim = 128,
                                                 .rotary_dim = 64,
                                                 .choice = {.ratio = 4, .budget = 512},
                                                 .eps = 1e-6f,
                                                 .kv_type = KV_TYPE_F16};
static const struct gqa_shape dense_shape = {.n_heads = 24,
                                             .n_kv_heads = 2,
                                             .head_dim = 256,
                                             .rotary_dim = 64,
                                             .eps = 1e-6f,
                                             .kv_type = KV_TYPE_F16,
                                             .gated = true,
                                             .norm = ATTENTION_NORM_HEADS};

enum { INDEX = 5 * 128, QKV = 24 * 512 + 4 * 256, OUT = 24 * 256, KV_BYTES = 2 * 256 * 2 * 256 * 2 };

struct bench {
    struct exec *x;
    struct exec_buffer cache, table, index, qkv, rope, norm, windows, index_q, scores, chosen, q, partial,
        out;
    uint32_t pos, n;
};

/* Numbers in [-1, 1): float32, or float16 if `half`. */
static int fill(struct bench *b, struct exec_buffer *to, uint64_t bytes, bool half, struct moeflux_err *e)
{
    enum { WORDS = 1 << 18 };
    uint64_t rng = 88172645463325252u + bytes;
    uint32_t *v = mem_new(WORDS, sizeof *v, e);
    int rc = v ? exec_buffer_new(b->x, to, EXEC_DEVICE, size_round_up(bytes, 16) + 16, e) : ERR_MEMORY;
    for (uint64_t at = 0; rc == 0 && at < bytes; at += WORDS * sizeof *v) {
        for (uint32_t i = 0; i < WORDS; i++) {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            float x = 2 * (float)(rng >> 40) / (float)(1 << 24) - 1;
            memcpy(&v[i], &x, sizeof x);
            if (half) /* below 1, either sign */
                v[i] = (uint32_t)rng & 0xbbffbbffu;
        }
        rc = exec_write(b->x, to, at, v, size_min(bytes - at, WORDS * sizeof *v), e);
    }
    free(v);
    return rc;
}

static int prepare(struct bench *b, const char *device, struct moeflux_err *e)
{
    int rc = exec_open(&b->x, &(struct exec_options){.device = device, .profile = true}, e);
    if (rc < 0)
        return rc;
    const struct exec_caps caps = exec_get_caps(b->x);
    uint64_t n = b->n, n_pos = b->pos + n, n_blocks = div_up((uint32_t)n_pos, 1 << KV_BLOCK_SHIFT);
    uint64_t block = KV_BYTES + indexer_block_bytes(&index_shape);
    struct gqa_shape chosen = dense_shape;
    chosen.choice = index_shape.choice;
    uint64_t partial = size_max(gqa_partial_bytes(&chosen, &caps, b->n, (uint32_t)n_pos),
                                gqa_partial_bytes(&dense_shape, &caps, b->n, (uint32_t)n_pos));
    const struct {
        struct exec_buffer *to;
        uint64_t bytes;
    } all[] = {{&b->table, 8 * n_blocks},
               {&b->index, n * INDEX * 4},
               {&b->qkv, n * QKV * 4},
               {&b->rope, n * 64 * 4},
               {&b->norm, 1024},
               {&b->windows, 2 * 4 * indexer_window(&index_shape)},
               {&b->index_q, n * 4 * 128 * 4},
               {&b->scores, 4 * indexer_scratch(&index_shape, &caps, b->n, (uint32_t)n_pos)},
               {&b->chosen, 4 * n * kv_choice_stride(&index_shape.choice)},
               {&b->q, n * OUT * 4},
               {&b->partial, partial},
               {&b->out, n * OUT * 4}};
    rc = fill(b, &b->cache, n_blocks * block, true, e);
    for (size_t i = 0; rc == 0 && i < sizeof all / sizeof *all; i++)
        rc = fill(b, all[i].to, all[i].bytes, false, e);
    for (uint64_t i = 0; rc == 0 && i < n_blocks; i++) {
        uint64_t address = b->cache.address + i * block;
        rc = exec_write(b->x, &b->table, 8 * i, &address, 8, e);
    }
    return rc;
}

/* Runs the indexer and attention over its choice, or attention over everything. */
static int run(struct bench *b, const struct indexer *indexer, const struct gqa *gqa, struct bench_time *t,
               struct moeflux_err *e)
{
    const struct indexer_call index = {.queries = b->index.address,
                                       .keys = b->index.address + (uint64_t)4 * 4 * 128,
                                       .q_norm = b->norm.address,
                                       .k_norm = b->norm.address,
                                       .rope = b->rope.address,
                                       .window_in = b->windows.address,
                                       .window_out = b->windows.address + 4 * indexer_window(&index_shape),
                                       .blocks = b->table.address,
                                       .q = b->index_q.address,
                                       .scores = b->scores.address,
                                       .chosen = b->chosen.address,
                                       .n = b->n,
                                       .pos = b->pos,
                                       .stride = INDEX,
                                       .key_stride = INDEX,
                                       .layer_off = KV_BYTES};
    const struct gqa_call call = {.qkv = b->qkv.address,
                                  .q_norm = b->norm.address,
                                  .k_norm = b->norm.address,
                                  .rope = b->rope.address,
                                  .blocks = b->table.address,
                                  .chosen = b->chosen.address,
                                  .q = b->q.address,
                                  .partial = b->partial.address,
                                  .partial_bytes = b->partial.bytes,
                                  .dst = b->out.address,
                                  .n = b->n,
                                  .pos = b->pos,
                                  .stride = QKV,
                                  .use_f16 = true};
    bench_begin(b->x, t);
    if (gqa->shape.choice.ratio)
        indexer_run(indexer, b->x, &index, 1);
    gqa_run(gqa, b->x, &call);
    return bench_end(b->x, t, e);
}

static int measure(struct bench *b, bool chooses, uint32_t reps, struct moeflux_err *e)
{
    struct indexer indexer;
    struct gqa gqa;
    struct gqa_shape shape = dense_shape;
    struct bench_time time, best = {0};
    if (chooses)
        shape.choice = index_shape.choice;
    int rc = indexer_open(&indexer, b->x, &index_shape, e);
    if (rc == 0)
        rc = gqa_open(&gqa, b->x, &shape, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i <= reps; i++) {
        rc = run(b, &indexer, &gqa, &time, e);
        if (i > 0) /* the first run compiles */
            bench_keep(&best, &time);
    }
    gqa_close(&gqa, b->x);
    if (rc < 0)
        return rc;
    printf("%-7s %6u + %4u: %9.1f us, processor %9.1f us;", chooses ? "indexed" : "dense", b->pos, b->n,
           (double)best.device_ns / 1e3, (double)best.processor_ns / 1e3);
    bench_print_parts(&best);
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        device = argv[2];
        at = 3;
    }
    struct bench b = {.pos = at < argc ? (uint32_t)strtoul(argv[at], NULL, 10) : 0,
                      .n = at + 1 < argc ? (uint32_t)strtoul(argv[at + 1], NULL, 10) : 0};
    uint32_t reps = at + 2 < argc ? (uint32_t)strtoul(argv[at + 2], NULL, 10) : 3;
    if (b.n == 0 || reps == 0)
        return fprintf(stderr, "usage: bench_indexer [--device D] POSITIONS TOKENS [REPS]\n"), 2;
    struct moeflux_err e = {0};
    int rc = prepare(&b, device, &e);
    if (rc == 0)
        rc = measure(&b, true, reps, &e);
    if (rc == 0)
        rc = measure(&b, false, reps, &e);
    if (rc < 0)
        fprintf(stderr, "bench_indexer: %s\n", e.text);
    struct exec_buffer *all[] = {&b.cache,   &b.table,  &b.index,  &b.qkv, &b.rope,    &b.norm, &b.windows,
                                 &b.index_q, &b.scores, &b.chosen, &b.q,   &b.partial, &b.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    exec_close(b.x);
    return rc < 0;
}
