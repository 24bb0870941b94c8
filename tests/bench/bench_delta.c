/* bench_delta - the speed of the gated delta net in all of its forms, with the dims of Qwen3.5-35B-A3B.
 *
 *   bench_delta [--device D] [--tiles] [--by-channel] TOKENS [REPS]
 *     --tiles        afterwards, delta_prefill_walk with its work divided in other ways
 *     --by-channel   Kimi Delta Attention, with Ling-3.0-flash's dims
 *
 * Prints, for a chunk of TOKENS, the device's time, the fastest of REPS (3), each kernel's part of it, and
 * the processor's time, which is the one that counts on software devices. Compares the outputs of the three
 * forms. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "bench.h"
#include "ops/delta/delta.h"

struct bench {
    struct exec *x;
    struct exec_buffer proj, conv, a_log, bias, norm, windows, state, scratch, out;
    struct delta_shape shape;
    bool by_channel;
    uint32_t n, channels, stride;
    float *first; /* the first form's output; then another's */
    float *other;
};

/* n floats in [low, high). */
static int fill(struct exec *x, struct exec_buffer *b, uint64_t n, float low, float high,
                struct moeflux_err *e)
{
    uint64_t rng = 88172645463325252u + n;
    int rc = exec_buffer_new(x, b, EXEC_DEVICE, n * sizeof(float), e);
    float *v = rc == 0 ? mem_new(n, sizeof *v, e) : NULL;
    if (!v)
        return rc < 0 ? rc : ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        v[i] = low + (high - low) * (float)(rng >> 40) / (float)(1 << 24);
    }
    rc = exec_write(x, b, 0, v, n * sizeof *v, e);
    free(v);
    return rc;
}

static int prepare(struct bench *b, const char *device, struct moeflux_err *e)
{
    int rc = exec_open(&b->x, &(struct exec_options){.device = device, .profile = true}, e);
    if (rc < 0)
        return rc;
    b->shape = (struct delta_shape){
        .n_k = 16, .n_v = 32, .k_dim = 128, .v_dim = 128, .conv_kernel = 4, .eps = 1e-6f};
    const struct delta_shape *s = &b->shape;
    if (b->by_channel) {
        b->shape.n_k = b->shape.n_v;
        b->shape.by_channel = b->shape.sigmoid = true;
        b->shape.lower = -5;
    }
    uint64_t n = b->n, outputs = n * s->n_v * s->v_dim;
    b->channels = 2 * s->n_k * s->k_dim + s->n_v * s->v_dim;
    b->stride = b->channels + s->n_v * (s->v_dim + 1) + delta_decays(s);
    const struct exec_caps caps = exec_get_caps(b->x);
    const struct {
        struct exec_buffer *to;
        uint64_t n;
        float low, high;
    } all[] = {{&b->proj, n * b->stride, -2, 2},
               {&b->conv, (uint64_t)b->channels * s->conv_kernel, -1, 1},
               {&b->a_log, s->n_v, -3, 2.3f},
               {&b->bias, delta_decays(s), -2, 2},
               {&b->norm, s->v_dim, 0.5f, 1.5f},
               {&b->windows, 2 * (uint64_t)(s->conv_kernel - 1) * b->channels, -2, 2},
               {&b->state, (uint64_t)s->n_v * s->v_dim * s->k_dim, 0, 0},
               {&b->scratch, delta_scratch(s, &caps, b->n), 0, 0},
               {&b->out, outputs, 0, 0}};
    for (size_t i = 0; rc == 0 && i < sizeof all / sizeof *all; i++)
        rc = fill(b->x, all[i].to, all[i].n, all[i].low, all[i].high, e);
    b->first = rc == 0 ? mem_new(outputs, sizeof(float), e) : NULL;
    b->other = b->first ? mem_new(outputs, sizeof(float), e) : NULL;
    return rc < 0 ? rc : b->other ? 0 : ERR_MEMORY;
}

/* Starts from a state of zeros. */
static int run(struct bench *b, const struct delta *op, struct bench_time *t, struct moeflux_err *e)
{
    uint64_t window = (uint64_t)(b->shape.conv_kernel - 1) * b->channels * sizeof(float);
    const struct delta_call call = {.proj = b->proj.address,
                                    .conv = b->conv.address,
                                    .a_log = b->a_log.address,
                                    .dt_bias = b->bias.address,
                                    .norm = b->norm.address,
                                    .window_in = b->windows.address,
                                    .window_out = b->windows.address + window,
                                    .state = b->state.address,
                                    .state_out = b->state.address,
                                    .dst = b->out.address,
                                    .scratch = b->scratch.address,
                                    .n = b->n,
                                    .stride = b->stride,
                                    .z_at = b->channels,
                                    .b_at = b->channels + b->shape.n_v * b->shape.v_dim,
                                    .a_at = b->stride - delta_decays(&b->shape)};
    bench_begin(b->x, t);
    exec_zero(b->x, &b->state, 0, b->state.bytes);
    delta_run(op, b->x, &call);
    return bench_end(b->x, t, e);
}

/* The largest difference from the first form's output, relative to the largest number of it. */
static double difference(const struct bench *b)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < b->out.bytes / sizeof(float); i++) {
        double d = fabs((double)b->other[i] - (double)b->first[i]);
        worst = d <= worst ? worst : d;
        largest = fmax(largest, fabs((double)b->first[i]));
    }
    return worst / largest;
}

static int measure(struct bench *b, enum delta_form form, uint32_t reps, struct moeflux_err *e)
{
    static const char *const names[] = {
        [DELTA_SINGLE] = "in one", [DELTA_TOKENS] = "by tokens", [DELTA_BLOCKS] = "by blocks"};
    struct delta op;
    struct bench_time time, best = {0};
    b->shape.form = form;
    int rc = delta_open(&op, b->x, &b->shape, e);
    if (rc == 0 && form == DELTA_BLOCKS && op.gpu.walk_from == UINT32_MAX)
        return printf("by blocks: not on this device\n"), 0;
    for (uint32_t i = 0; rc == 0 && i < reps; i++) {
        rc = run(b, &op, &time, e);
        bench_keep(&best, &time);
    }
    if (rc == 0)
        rc = exec_read(b->x, &b->out, 0, form == DELTA_SINGLE ? b->first : b->other, b->out.bytes, e);
    if (rc < 0)
        return rc;
    printf("%-9s %5u tokens: %9.1f us, processor %9.1f us;", names[form], b->n, (double)best.device_ns / 1e3,
           (double)best.processor_ns / 1e3);
    bench_print_parts(&best);
    if (form != DELTA_SINGLE)
        printf("; differs by %.1e", difference(b));
    printf("\n");
    return 0;
}

static int measure_tiles(struct bench *b, uint32_t reps, struct moeflux_err *e)
{
    static const struct delta_tile tiles[] = {
        {64, 8, 1, 16},   {64, 8, 2, 16},   {64, 8, 4, 16},  {128, 8, 1, 16},  {128, 8, 2, 16},
        {128, 8, 2, 8},   {128, 8, 2, 32},  {128, 8, 4, 16}, {256, 8, 1, 16},  {256, 8, 2, 16},
        {64, 16, 4, 16},  {128, 16, 2, 16}, {128, 16, 4, 8}, {128, 16, 4, 16}, {128, 16, 8, 16},
        {256, 16, 2, 16}, {256, 16, 4, 16}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof tiles / sizeof *tiles; i++) {
        b->shape.tile = tiles[i];
        printf("%3u lanes, %2u for %u rows, %2u tokens: ", tiles[i].workgroup, tiles[i].parts, tiles[i].each,
               tiles[i].stage);
        rc = measure(b, DELTA_BLOCKS, reps, e);
    }
    return rc;
}

int main(int argc, char **argv)
{
    const char *device = NULL;
    bool tiles = false, by_channel = false;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--tiles") == 0)
            tiles = true;
        else if (strcmp(argv[at], "--by-channel") == 0)
            by_channel = true;
        else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc)
            device = argv[++at];
    }
    struct bench b = {.n = at < argc ? (uint32_t)strtoul(argv[at], NULL, 10) : 0, .by_channel = by_channel};
    uint32_t reps = at + 1 < argc ? (uint32_t)strtoul(argv[at + 1], NULL, 10) : 3;
    if (b.n == 0 || reps == 0)
        return fprintf(stderr, "usage: bench_delta [--device D] [--tiles] [--by-channel] TOKENS [REPS]\n"), 2;
    struct moeflux_err e = {0};
    int rc = prepare(&b, device, &e);
    for (enum delta_form form = DELTA_SINGLE; rc == 0 && form <= DELTA_BLOCKS; form++)
        rc = measure(&b, form, reps, &e);
    if (rc == 0 && tiles)
        rc = measure_tiles(&b, reps, &e);
    if (rc < 0)
        fprintf(stderr, "bench_delta: %s\n", e.text);
    struct exec_buffer *all[] = {&b.proj,    &b.conv,  &b.a_log,   &b.bias, &b.norm,
                                 &b.windows, &b.state, &b.scratch, &b.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(b.x, all[i]);
    exec_close(b.x);
    free(b.first);
    free(b.other);
    return rc < 0;
}
