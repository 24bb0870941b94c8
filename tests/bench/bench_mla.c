/* bench_mla - the speed of latent attention in both of its forms, with the dims of DeepSeek-V3.
 *
 *   bench_mla [--device D] [--f32] [--kv-b] POS TOKENS [REPS]
 *     --f32    no float16 products
 *     --kv-b   keys and values stored as kv_b_proj, not as embed_q and unembed_out
 *
 * Prints, for a chunk of TOKENS from position POS on, the device's time, the fastest of REPS, and each
 * kernel's part of it; for software devices also the processor's time. A single token is computed 32 times in
 * a row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla.h"

/* Calls with a single token, which cycle through the KV caches of LAYERS layers. When a layer comes again,
 * the GPU's own caches have lost its positions, as in a model. */
enum { CALLS = 32, LAYERS = 8 };

struct bench {
    struct exec *x;
    struct exec_buffer codes, groups, q, kv, norm, rope, cache, table, scratch, out;
    struct mla_matrices matrices;
    struct mla_shape shape;
    uint32_t pos, n;
};

/* Returns the bytes of a layer in a block of the cache. */
static uint64_t layer_bytes(const struct bench *b)
{
    return (uint64_t)kv_row_bytes(b->shape.kv_type, b->shape.latent_dim + b->shape.rope_dim)
           << KV_BLOCK_SHIFT;
}

static int make_cache(struct bench *b, struct moeflux_err *e)
{
    uint32_t n_blocks = div_up(b->pos + b->n, 1 << KV_BLOCK_SHIFT);
    uint64_t block = LAYERS * layer_bytes(b);
    uint64_t *at = calloc(n_blocks, sizeof *at);
    int rc = bench_fill(b->x, &b->cache, n_blocks * block, 0, e);
    for (uint32_t i = 0; at && i < n_blocks; i++)
        at[i] = b->cache.address + i * block;
    if (rc == 0)
        rc = exec_buffer_new(b->x, &b->table, EXEC_DEVICE, n_blocks * sizeof *at, e);
    if (rc == 0 && at)
        rc = exec_write(b->x, &b->table, 0, at, n_blocks * sizeof *at, e);
    free(at);
    return rc;
}

static int make_matrices(struct bench *b, struct moeflux_err *e)
{
    const struct mla_shape *s = &b->shape;
    uint32_t latent = s->latent_dim, value_rows = s->n_heads * s->v_dim, key_rows = s->n_heads * s->nope_dim;
    uint64_t numbers = (uint64_t)(key_rows + value_rows) * latent;
    int rc = bench_fill(b->x, &b->codes, numbers / 2, 0x3c123c21, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->groups, numbers / 32, 0x3c003c00, e);
    uint64_t codes = b->codes.address, groups = b->groups.address;
    const struct weights apart[2] = {{codes, groups, groups, s->n_heads * latent, s->nope_dim, FORMAT_Q4},
                                     {codes, groups, groups, value_rows, latent, FORMAT_Q4}},
                         joint[2] = {{codes, groups, groups, key_rows + value_rows, latent, FORMAT_Q4}, {0}};
    return rc < 0 ? rc : mla_matrices_open(&b->matrices, b->x, s, s->keys_by_rows ? joint : apart, e);
}

static int prepare(struct bench *b, const char *device, bool f32, bool kv_b, struct moeflux_err *e)
{
    int rc = exec_open(&b->x, &(struct exec_options){.device = device, .profile = true}, e);
    if (rc < 0)
        return rc;
    if (f32)
        exec_keep_f32(b->x);
    struct exec_caps caps = exec_get_caps(b->x);
    b->shape = (struct mla_shape){.n_heads = 128,
                                  .nope_dim = 128,
                                  .rope_dim = 64,
                                  .latent_dim = 512,
                                  .v_dim = 128,
                                  .interleaved = true,
                                  .scale = 0.135f,
                                  .eps = 1e-6f,
                                  .kv_type = caps.has_coopmat ? KV_TYPE_F16 : KV_TYPE_F32,
                                  .keys_by_rows = kv_b};
    const struct mla_shape *s = &b->shape;
    rc = make_matrices(b, e);
    if (rc == 0)
        rc = make_cache(b, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->q, (uint64_t)b->n * s->n_heads * (s->nope_dim + s->rope_dim) * 4,
                        0x3f000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->kv, (uint64_t)b->n * (s->latent_dim + s->rope_dim) * 4, 0x3f000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->norm, s->latent_dim * 4, 0x3f800000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->rope, (uint64_t)b->n * s->rope_dim * 4, 0x3f000000, e);
    if (rc == 0)
        rc = bench_fill(b->x, &b->out, (uint64_t)b->n * s->n_heads * s->v_dim * 4, 0, e);
    struct mla_shape either = *s; /* the expanded form's memory is there only where it may be taken */
    either.form = MLA_EXPANDED;
    uint64_t bytes = mla_scratch_bytes(&either, &caps, b->n, b->pos + b->n);
    if (rc == 0)
        rc = exec_buffer_new(b->x, &b->scratch, EXEC_DEVICE, bytes, e);
    return rc;
}

static int run(struct bench *b, const struct mla *op, struct bench_time *t, struct moeflux_err *e)
{
    const struct mla_shape *s = &b->shape;
    struct mla_call call = {.q = b->q.address,
                            .kv = b->kv.address,
                            .norm = b->norm.address,
                            .rope = b->rope.address,
                            .blocks = b->table.address,
                            .matrices = &b->matrices,
                            .dst = b->out.address,
                            .use_f16 = exec_get_caps(b->x).has_coopmat,
                            .n = b->n,
                            .pos = b->pos,
                            .q_stride = s->n_heads * (s->nope_dim + s->rope_dim),
                            .kv_stride = s->latent_dim + s->rope_dim};
    uint32_t n_calls = b->n == 1 ? CALLS : 1;
    bench_begin(b->x, t);
    for (uint32_t i = 0; i < n_calls; i++) {
        call.layer_off = (uint32_t)(i % LAYERS * layer_bytes(b));
        mla_run(op, b->x, &call);
    }
    int rc = bench_end(b->x, t, e);
    t->device_ns /= n_calls;
    t->processor_ns /= n_calls;
    for (uint32_t i = 0; i < t->stats.n_times; i++)
        t->stats.times[i].ns /= n_calls;
    return rc;
}

static int measure(struct bench *b, enum mla_form form, uint32_t reps, struct moeflux_err *e)
{
    struct mla op;
    struct bench_time time, best = {0};
    struct mla_shape shape = b->shape;
    shape.form = form;
    int rc = mla_open(&op, b->x, &shape, &b->scratch, e);
    for (uint32_t i = 0; rc == 0 && i < reps; i++) {
        rc = run(b, &op, &time, e);
        bench_keep(&best, &time);
    }
    mla_close(&op, b->x);
    if (rc < 0)
        return rc;
    printf("%-8s %5u + %4u: %9.1f us, processor %9.1f us;", form == MLA_ABSORBED ? "absorbed" : "expanded",
           b->pos, b->n, (double)best.device_ns / 1e3, (double)best.processor_ns / 1e3);
    bench_print_parts(&best);
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    bool f32 = false, kv_b = false;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--f32") == 0)
            f32 = true;
        else if (strcmp(argv[at], "--kv-b") == 0)
            kv_b = true;
        else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc)
            device = argv[++at];
    }
    if (argc - at < 2)
        return fprintf(stderr, "usage: bench_mla [--device D] [--f32] [--kv-b] POS TOKENS [REPS]\n"), 2;
    struct moeflux_err e = {0};
    struct bench b = {.pos = (uint32_t)strtoul(argv[at], NULL, 10),
                      .n = (uint32_t)strtoul(argv[at + 1], NULL, 10)};
    uint32_t reps = argc - at > 2 ? (uint32_t)strtoul(argv[at + 2], NULL, 10) : 3;
    int rc = prepare(&b, device, f32, kv_b, &e);
    if (rc == 0)
        rc = measure(&b, MLA_ABSORBED, reps, &e);
    if (rc == 0)
        rc = measure(&b, MLA_EXPANDED, reps, &e);
    if (rc < 0)
        fprintf(stderr, "bench_mla: %s\n", e.text);
    mla_matrices_close(&b.matrices, b.x);
    struct exec_buffer *all[] = {&b.codes, &b.groups, &b.q,     &b.kv,      &b.norm,
                                 &b.rope,  &b.cache,  &b.table, &b.scratch, &b.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    exec_close(b.x);
    return rc < 0;
}
