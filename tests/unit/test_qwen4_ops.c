/* The operations that qwen4_exp adds, against transformers 5.24's modules with random weights in float32
 * (tests/data/qwen4_ops.safetensors: Qwen4ExpTextGatedResidual, PLELayer, Attention with its indexer): on the
 * reference and on MOEFLUX_DEVICE, in chunks of several sizes.
 *
 * suites: check vulkan cpu */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "check.h"
#include "device.h"
#include "exec/exec.h"
#include "golden.h"
#include "model/ngram.h"
#include "ops/gqa/gqa.h"
#include "ops/indexer/indexer.h"
#include "ops/linear/linear.h"
#include "ops/ngram/ngram.h"
#include "ops/streams/streams.h"

/* Relative to the largest output. */
static const double BOUND = 2e-6;
enum { MOST_BUFFERS = 64 };

struct lab {
    struct exec *x;
    struct golden golden;
    uint32_t n_case;
    struct exec_buffer buffers[MOST_BUFFERS];
    uint32_t n_buffers;
    struct moeflux_err e;
};

static void lab_open(struct lab *l, const char *device, uint32_t n_case)
{
    *l = (struct lab){.n_case = n_case};
    check_ok(exec_open(&l->x, &(struct exec_options){.device = device}, &l->e), &l->e);
    exec_keep_f32(l->x);
    golden_open(&l->golden, "tests/data/qwen4_ops.safetensors");
}

static void lab_close(struct lab *l)
{
    for (uint32_t i = 0; i < l->n_buffers; i++)
        exec_buffer_free(l->x, &l->buffers[i]);
    exec_close(l->x);
    golden_close(&l->golden);
}

/* A buffer with n 4-byte words; NULL: zeros. */
static const struct exec_buffer *words(struct lab *l, const void *from, uint64_t n)
{
    assert_true(l->n_buffers < MOST_BUFFERS);
    struct exec_buffer *b = &l->buffers[l->n_buffers++];
    void *zeros = calloc(n, 4);
    check_ok(exec_buffer_new(l->x, b, EXEC_DEVICE, 4 * n, &l->e), &l->e);
    check_ok(exec_write(l->x, b, 0, from ? from : zeros, 4 * n, &l->e), &l->e);
    free(zeros);
    return b;
}

static uint64_t room(struct lab *l, uint64_t n)
{
    return words(l, NULL, n ? n : 1)->address;
}

static uint64_t size_of(const struct golden_tensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < 4 && t->shape[i]; i++)
        n *= t->shape[i];
    return n;
}

static const struct exec_buffer *tensor(struct lab *l, const char *name)
{
    const struct golden_tensor *t = golden_find(&l->golden, l->n_case, name);
    assert_non_null(t);
    return words(l, t->data, size_of(t));
}

static uint64_t at(struct lab *l, const char *name)
{
    return tensor(l, name)->address;
}

static struct weights matrix(struct lab *l, const char *name)
{
    const struct golden_tensor *t = golden_find(&l->golden, l->n_case, name);
    assert_non_null(t);
    return (struct weights){.weight = at(l, name),
                            .rows = (uint32_t)t->shape[0],
                            .cols = (uint32_t)t->shape[1],
                            .format = FORMAT_F32};
}

static void check_equal(struct lab *l, const struct exec_buffer *b, const char *name)
{
    const struct golden_tensor *t = golden_find(&l->golden, l->n_case, name);
    const float *want = t->data;
    uint64_t n = size_of(t);
    float *got = calloc(n, sizeof *got);
    double worst = 0, largest = 0;
    check_ok(exec_read(l->x, b, 0, got, n * sizeof *got, &l->e), &l->e);
    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        worst = d <= worst ? worst : d;
        largest = fmax(largest, fabs((double)want[i]));
    }
    free(got);
    printf("%s: case %u, %s: %.1e\n", exec_get_caps(l->x).name, l->n_case, name, worst / largest);
    assert_true(worst <= BOUND * largest);
}

/* Runs `run` for n tokens in chunks. */
static void in_chunks(struct lab *l, uint32_t n, uint32_t chunk,
                      void (*run)(struct lab *l, void *ctx, uint32_t first, uint32_t n), void *ctx)
{
    for (uint32_t first = 0; first < n; first += chunk) {
        exec_begin(l->x);
        run(l, ctx, first, (uint32_t)size_min(chunk, n - first));
        check_ok(exec_finish(l->x, &l->e), &l->e);
    }
}

static uint64_t floats_on(uint64_t address, uint64_t n)
{
    return address + n * sizeof(float);
}

/* ---- residual streams ---- */

static void run_streams(struct lab *l)
{
    enum { N = 6, STREAMS = 3, HIDDEN = 40, RANK = 20, STRIDE = RANK + STREAMS };
    const struct streams_shape shape = {STREAMS, HIDDEN, .eps = 1e-6f};
    const struct weights down[] = {matrix(l, "down"), matrix(l, "inject")}, up = matrix(l, "up");
    struct streams op;
    struct linear both, last;
    uint64_t normed = room(l, N * STREAMS * HIDDEN), low = room(l, N * STRIDE),
             ups = room(l, N * STREAMS * HIDDEN);
    const struct exec_buffer *x = tensor(l, "x"), *mixed = words(l, NULL, N * HIDDEN);
    uint64_t norm = at(l, "norm"), y = at(l, "y");
    check_ok(streams_open(&op, l->x, &shape, &l->e), &l->e);
    check_ok(linear_open(&both, l->x, down, 2, &l->e), &l->e);
    check_ok(linear_open(&last, l->x, &up, 1, &l->e), &l->e);
    exec_begin(l->x);
    streams_norm_run(&op, l->x,
                     &(struct streams_norm_call){.x = x->address, .norm = norm, .dst = normed, .n = N});
    linear_run(&both, l->x,
               &(struct linear_call){
                   .x = normed, .y = low, .x_stride = STREAMS * HIDDEN, .y_stride = STRIDE, .n = N});
    streams_low_run(&op, l->x,
                    &(struct streams_low_call){.low = low, .n = N, .rank = RANK, .stride = STRIDE});
    linear_run(
        &last, l->x,
        &(struct linear_call){.x = low, .y = ups, .x_stride = STRIDE, .y_stride = STREAMS * HIDDEN, .n = N});
    streams_mix_run(&op, l->x,
                    &(struct streams_mix_call){.up = ups, .normed = normed, .dst = mixed->address, .n = N});
    streams_norm_run(&op, l->x,
                     &(struct streams_norm_call){.x = x->address,
                                                 .add = y,
                                                 .by = floats_on(low, RANK),
                                                 .norm = norm,
                                                 .dst = normed,
                                                 .n = N,
                                                 .by_stride = STRIDE});
    check_ok(exec_finish(l->x, &l->e), &l->e);
    check_equal(l, mixed, "mixed");
    check_equal(l, x, "after");
    linear_close(&both, l->x);
    linear_close(&last, l->x);
}

/* ---- n-gram rows ---- */

enum { PLE_STREAMS = 3, PLE_HIDDEN = 40, PLE_ROW = 12, PLE_STRIDE = (PLE_STREAMS + 1) * PLE_HIDDEN };

struct ple {
    struct ngram op;
    struct linear proj;
    struct ngram_hash hash;
    uint32_t before[NGRAM_MAX_SIZE];
    struct ngram_call call; /* the first chunk's */
    uint64_t windows[2], x;
    uint32_t n_chunks;
};

/* Hashes the chunk's tokens and gathers their rows. */
static uint64_t gather(struct lab *l, struct ple *p, uint32_t first, uint32_t n)
{
    const uint32_t *ids = golden_find(&l->golden, l->n_case, "ids")->data;
    const float *table = golden_find(&l->golden, l->n_case, "table")->data;
    uint32_t *rows = calloc((uint64_t)n * p->hash.n_heads, sizeof *rows);
    float *values = calloc((uint64_t)n * p->hash.n_heads * PLE_ROW, sizeof *values);
    ngram_hash_rows(&p->hash, p->before, ids + first, n, rows);
    ngram_advance(&p->hash, p->before, ids + first, n);
    for (uint32_t i = 0; i < n * p->hash.n_heads; i++)
        memcpy(values + (uint64_t)i * PLE_ROW, table + (uint64_t)rows[i] * PLE_ROW, PLE_ROW * sizeof *values);
    uint64_t address = words(l, values, (uint64_t)n * p->hash.n_heads * PLE_ROW)->address;
    free(rows);
    free(values);
    return address;
}

static void run_ple(struct lab *l, void *ctx, uint32_t first, uint32_t n)
{
    struct ple *p = ctx;
    uint32_t cols = p->hash.n_heads * PLE_ROW;
    struct ngram_call call = p->call;
    exec_abandon(l->x);
    uint64_t rows = gather(l, p, first, n);
    exec_begin(l->x);
    linear_run(
        &p->proj, l->x,
        &(struct linear_call){.x = rows, .y = call.proj, .x_stride = cols, .y_stride = PLE_STRIDE, .n = n});
    call.x = floats_on(call.x, (uint64_t)first * PLE_STREAMS * PLE_HIDDEN);
    call.window_in = p->windows[p->n_chunks % 2];
    call.window_out = p->windows[++p->n_chunks % 2];
    call.n = n;
    ngram_run(&p->op, l->x, &call);
}

static void run_ngram(struct lab *l, uint32_t chunk)
{
    enum { N = 26 };
    const struct ngram_table table = {3, 2, 50, 8, 250, 7, 0, 1234, 0};
    const struct ngram_shape shape = {PLE_STREAMS, PLE_HIDDEN, 4, 3, 1, 1e-6f};
    const struct weights w[] = {matrix(l, "key"), matrix(l, "value")};
    const struct exec_buffer *x = tensor(l, "x");
    struct ple p = {.windows = {room(l, ngram_window(&shape)), room(l, ngram_window(&shape))}};
    check_ok(ngram_hash_make(&p.hash, &table, &l->e), &l->e);
    assert_int_equal(p.hash.n_rows, golden_find(&l->golden, l->n_case, "table")->shape[0]);
    ngram_before_first(&p.hash, p.before);
    check_ok(ngram_open(&p.op, l->x, &shape, &l->e), &l->e);
    check_ok(linear_open(&p.proj, l->x, w, 2, &l->e), &l->e);
    p.call = (struct ngram_call){.proj = room(l, N * PLE_STRIDE),
                                 .x_norm = at(l, "query_norm"),
                                 .k_norm = at(l, "key_norm"),
                                 .u_norm = at(l, "conv_norm"),
                                 .conv = at(l, "conv"),
                                 .x = x->address,
                                 .scratch = room(l, ngram_scratch(&shape, N)),
                                 .stride = PLE_STRIDE};
    in_chunks(l, N, chunk, run_ple, &p);
    check_equal(l, x, "after");
    linear_close(&p.proj, l->x);
}

/* ---- the indexer and attention ---- */

enum { TOKENS = 56, QKV = 240, INDEX = 80, OUT = 80, ROTARY = 8 };

struct attend {
    struct indexer indexer;
    struct gqa gqa;
    struct indexer_call index; /* the first chunk's, like the other */
    struct gqa_call call;
    uint64_t windows[2];
    uint32_t n_chunks;
};

static void run_attend(struct lab *l, void *ctx, uint32_t first, uint32_t n)
{
    struct attend *a = ctx;
    struct indexer_call index = a->index;
    struct gqa_call call = a->call;
    index.queries = floats_on(index.queries, (uint64_t)first * INDEX);
    index.keys = floats_on(index.keys, (uint64_t)first * INDEX);
    index.rope = call.rope = floats_on(call.rope, (uint64_t)first * ROTARY);
    index.window_in = a->windows[a->n_chunks % 2];
    index.window_out = a->windows[++a->n_chunks % 2];
    call.qkv = floats_on(call.qkv, (uint64_t)first * QKV);
    call.dst = floats_on(call.dst, (uint64_t)first * OUT);
    index.n = call.n = n;
    index.pos = call.pos = first;
    indexer_run(&a->indexer, l->x, &index, 1);
    gqa_run(&a->gqa, l->x, &call);
}

static void run_attention(struct lab *l, uint32_t chunk)
{
    const struct kv_choice choice = {.ratio = 4, .budget = 5};
    const struct indexer_shape index = {.n_heads = 3,
                                        .dim = 20,
                                        .rotary_dim = ROTARY,
                                        .choice = choice,
                                        .eps = 1e-6f,
                                        .kv_type = KV_TYPE_F32};
    const struct gqa_shape shape = {.n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = 20,
                                    .rotary_dim = ROTARY,
                                    .eps = 1e-6f,
                                    .gated = true,
                                    .norm = ATTENTION_NORM_HEADS,
                                    .choice = choice};
    const struct exec_caps caps = exec_get_caps(l->x);
    uint32_t index_off = (2 << KV_BLOCK_SHIFT) * 2 * 20 * 4;
    uint64_t block = room(l, (index_off + indexer_block_bytes(&index)) / 4);
    uint64_t table = words(l, &block, 2)->address, chosen = room(l, TOKENS * kv_choice_stride(&index.choice));
    const struct exec_buffer *out = words(l, NULL, TOKENS * OUT);
    struct attend a = {.windows = {room(l, indexer_window(&index)), room(l, indexer_window(&index))}};
    check_ok(indexer_open(&a.indexer, l->x, &index, &l->e), &l->e);
    check_ok(gqa_open(&a.gqa, l->x, &shape, &l->e), &l->e);
    a.index = (struct indexer_call){.queries = at(l, "index"),
                                    .keys = floats_on(at(l, "index"), (uint64_t)index.n_heads * index.dim),
                                    .q_norm = at(l, "iq_norm"),
                                    .k_norm = at(l, "ik_norm"),
                                    .blocks = table,
                                    .q = room(l, TOKENS * INDEX),
                                    .scores = room(l, indexer_scratch(&index, &caps, TOKENS, TOKENS)),
                                    .chosen = chosen,
                                    .stride = INDEX,
                                    .key_stride = INDEX,
                                    .layer_off = index_off};
    uint64_t partial_bytes = gqa_partial_bytes(&shape, &caps, TOKENS, TOKENS);
    a.call = (struct gqa_call){.qkv = at(l, "qkv"),
                               .q_norm = at(l, "q_norm"),
                               .k_norm = at(l, "k_norm"),
                               .rope = at(l, "rope"),
                               .blocks = table,
                               .chosen = chosen,
                               .q = room(l, TOKENS * OUT),
                               .partial = room(l, partial_bytes / 4),
                               .partial_bytes = partial_bytes,
                               .dst = out->address,
                               .stride = QKV};
    in_chunks(l, TOKENS, chunk, run_attend, &a);
    check_equal(l, out, "out");
    gqa_close(&a.gqa, l->x);
}

/* ---- */

static const char *device_at(uint32_t i)
{
    return i == 0 ? "reference" : device_name() ? device_name() : "cpu";
}

static void streams_equal_transformers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct lab l;
        lab_open(&l, device_at(i), 0);
        run_streams(&l);
        lab_close(&l);
    }
}

static void n_gram_rows_equal_transformers_in_chunks_of_any_size(void **state)
{
    static const uint32_t chunks[] = {26, 1, 7};
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct lab l;
        lab_open(&l, device_at(i % 2), 1);
        run_ngram(&l, chunks[i / 2]);
        lab_close(&l);
    }
}

static void indexed_attention_equals_transformers_in_chunks_of_any_size(void **state)
{
    static const uint32_t chunks[] = {56, 1, 7, 30};
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        struct lab l;
        lab_open(&l, device_at(i % 2), 2);
        run_attention(&l, chunks[i / 2]);
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_equal_transformers),
        cmocka_unit_test(n_gram_rows_equal_transformers_in_chunks_of_any_size),
        cmocka_unit_test(indexed_attention_equals_transformers_in_chunks_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
