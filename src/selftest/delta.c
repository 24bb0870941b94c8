/* The self-test's cases of the gated delta net: each form of the recurrence that the device can run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "base/mem.h"
#include "ops/cast_f16.h"
#include "ops/delta/delta.h"
#include "selftest/kernel_test.h"

/* Relative to the largest output, as for every product. */
static const double BOUND = 1e-5;

enum kind {
    PLAIN,
    STEEP,   /* heads whose decays are 1, and such whose decays are 0 (exp(-1e4)) */
    CUT,     /* the same, but from token to token */
    SIMILAR, /* keys and queries that hardly change, updates as large as they can be, decays near 1 */
    N_KINDS
};
static const char *const kind_names[] = {"", ", steep", ", cut", ", similar"};
static const char *const form_names[] = {"", ", in one", ", by tokens", ", by blocks", ", shared"};

struct bench {
    uint32_t channels, stride;
    uint32_t z_at, b_at, a_at; /* places in a row of proj */
    struct test_buffer *proj, *conv, *a_log, *bias, *norm, *window, *out_window, *state, *state_out, *out,
        *scratch, *squares;
};

/* Makes n rows of `stride` numbers: channels before the convolution, then, in
 * longer rows, a token's gates. */
static struct test_buffer *make_rows(struct kernel_test *l, const struct delta_shape *c, enum kind kind,
                                     uint32_t n, const struct bench *b, uint32_t stride, const float *base)
{
    float *v = mem_new((uint64_t)n * stride, sizeof *v, &l->err);
    for (uint64_t i = 0; v && i < (uint64_t)n * stride; i++) {
        uint32_t at = (uint32_t)(i % stride);
        v[i] = kt_uniform(l, -2, 2);
        if (kind == SIMILAR && at < 2 * c->n_k * c->k_dim)
            v[i] = base[at] + v[i] * 1e-3f;
        bool is_update = at >= b->b_at && at < b->b_at + c->n_v,
             is_decay = at >= b->a_at && at < b->a_at + delta_decays(c);
        if (kind == SIMILAR && (is_update || is_decay))
            v[i] += is_update ? 12 : -12;
        if (kind == CUT && is_decay)
            v[i] *= 500;
    }
    struct test_buffer *t = kt_bytes(l, v, v ? (uint64_t)n * stride * sizeof *v : 0);
    free(v);
    return t;
}

static void lay_out(struct kernel_test *l, const struct delta_shape *c, enum kind kind, uint32_t n,
                    struct bench *b)
{
    uint32_t keys = 2 * c->n_k * c->k_dim;
    float wide = kind == STEEP ? 1000.0f : 2.0f;
    float *base = mem_new(keys, sizeof *base, &l->err);
    for (uint32_t i = 0; base && i < keys; i++)
        base[i] = kt_uniform(l, -2, 2);
    b->channels = keys + c->n_v * c->v_dim;
    /* Another order than a model's and gaps between: a kernel that computes a place by itself fails. */
    b->b_at = b->channels + 1;
    b->a_at = b->b_at + c->n_v + 2;
    b->z_at = b->a_at + delta_decays(c) + 1;
    b->stride = b->z_at + c->n_v * c->v_dim + 3;
    b->proj = make_rows(l, c, base ? kind : PLAIN, n, b, b->stride, base);
    b->window = make_rows(l, c, base ? kind : PLAIN, c->conv_kernel - 1, b, b->channels, base);
    free(base);
    b->conv = kt_floats(l, (uint64_t)b->channels * c->conv_kernel, -1, 1);
    b->a_log = kt_floats(l, c->n_v, -3, 2.3f);
    b->bias = kt_floats(l, delta_decays(c), -wide, wide);
    b->norm = kt_floats(l, c->v_dim, 0.5f, 1.5f);
    b->out_window = kt_bytes(l, NULL, 4 * (uint64_t)(c->conv_kernel - 1) * b->channels);
    b->state = kt_floats(l, (uint64_t)c->n_v * c->v_dim * c->k_dim, -1, 1);
    /* Even numbers of tokens update the state in place. */
    b->state_out = n % 2 ? kt_bytes(l, NULL, 4 * (uint64_t)c->n_v * c->v_dim * c->k_dim) : b->state;
    b->out = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_v * c->v_dim);
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    b->squares = kt_bytes(l, NULL, 4 * (uint64_t)c->n_v * HEAD_SQUARES);
    b->scratch = kt_bytes(l, NULL, 4 * delta_scratch(c, &caps, n));
}

static struct delta_call call_of(const struct bench *b, int s, uint32_t n)
{
    return (struct delta_call){.proj = b->proj->on[s].address,
                               .conv = b->conv->on[s].address,
                               .a_log = b->a_log->on[s].address,
                               .dt_bias = b->bias->on[s].address,
                               .norm = b->norm->on[s].address,
                               .window_in = b->window->on[s].address,
                               .window_out = b->out_window->on[s].address,
                               .state = b->state->on[s].address,
                               .state_out = b->state_out->on[s].address,
                               .dst = b->out->on[s].address,
                               .scratch = b->scratch->on[s].address,
                               .n = n,
                               .stride = b->stride,
                               .z_at = b->z_at,
                               .b_at = b->b_at,
                               .a_at = b->a_at};
}

static void delta_case(struct kernel_test *l, const struct delta_shape *c, uint32_t n, enum kind kind)
{
    struct bench b;
    if (!kt_takes(l, l->is_rest))
        return;
    bool is_shared = c->form == DELTA_SHARED;
    lay_out(l, c, kind, n, &b);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct delta op;
        if (delta_open(&op, l->side[s], c, &l->err) < 0)
            break;
        struct delta_call call = call_of(&b, s, n);
        call.squares = is_shared ? b.squares->on[s].address : 0;
        exec_begin(l->side[s]);
        delta_run(&op, l->side[s], &call);
        kt_finish(l, s);
    }
    char text[128];
    snprintf(text, sizeof text, "%u/%u heads of %ux%u, %u taps, %u token%s%s%s%s", c->n_v, c->n_k, c->v_dim,
             c->k_dim, c->conv_kernel, n, n > 1 ? "s" : "", kind_names[kind],
             c->lower < 0    ? ", by channel with a bound"
             : c->by_channel ? ", by channel"
             : c->sigmoid    ? ", sigmoid"
             : c->tiled      ? ", tiled"
                             : "",
             form_names[c->form]);
    double error = fmax(kt_error(l, b.out, (uint64_t)n * c->n_v * c->v_dim),
                        kt_error(l, b.state, (uint64_t)c->n_v * c->v_dim * c->k_dim));
    error = fmax(error, kt_error(l, b.state_out, (uint64_t)c->n_v * c->v_dim * c->k_dim));
    error = fmax(error, kt_error(l, b.out_window, (uint64_t)(c->conv_kernel - 1) * b.channels));
    if (is_shared)
        error = fmax(error, kt_error(l, b.squares, (uint64_t)c->n_v * HEAD_SQUARES));
    kt_report(l, "delta", text, error, BOUND);
}

/* A token of each of several sequences. */
static void concurrent_case(struct kernel_test *l, const struct delta_shape *c, enum delta_form form)
{
    enum { N = 3 };
    struct delta_shape shape = *c;
    struct bench b[N];
    double error = 0;
    if (!kt_takes(l, l->is_rest))
        return;
    shape.form = form;
    for (uint32_t i = 0; i < N; i++)
        lay_out(l, &shape, PLAIN, 1, &b[i]);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct delta op;
        struct delta_call calls[N];
        if (delta_open(&op, l->side[s], &shape, &l->err) < 0)
            break;
        for (uint32_t i = 0; i < N; i++) {
            calls[i] = call_of(&b[i], s, 1);
            calls[i].squares = form == DELTA_SHARED ? b[i].squares->on[s].address : 0;
        }
        exec_begin(l->side[s]);
        delta_run_concurrent(&op, l->side[s], calls, N);
        kt_finish(l, s);
    }
    for (uint32_t i = 0; i < N; i++) {
        uint64_t window = (uint64_t)(c->conv_kernel - 1) * b[i].channels;
        error = fmax(error, kt_error(l, b[i].out, (uint64_t)c->n_v * c->v_dim));
        error = fmax(error, kt_error(l, b[i].state_out, (uint64_t)c->n_v * c->v_dim * c->k_dim));
        error = fmax(error, kt_error(l, b[i].out_window, window));
        if (form == DELTA_SHARED)
            error = fmax(error, kt_error(l, b[i].squares, (uint64_t)c->n_v * HEAD_SQUARES));
    }
    char text[64];
    snprintf(text, sizeof text, "%u/%u heads of %ux%u, %d sequences%s", c->n_v, c->n_k, c->v_dim, c->k_dim, N,
             form_names[form]);
    kt_report(l, "delta", text, error, BOUND);
}

/* Consecutive tokens of one sequence, with the state after each of them. */
static void chain_case(struct kernel_test *l, const struct delta_shape *c, enum delta_form form)
{
    enum { N = 3 };
    struct delta_shape shape = *c;
    struct bench b;
    struct test_buffer *windows[N], *states[N];
    uint64_t outs = (uint64_t)c->n_v * c->v_dim, state = outs * c->k_dim,
             n_squares = (uint64_t)c->n_v * HEAD_SQUARES;
    if (!kt_takes(l, l->is_rest))
        return;
    shape.form = form;
    lay_out(l, &shape, PLAIN, N, &b);
    uint64_t window = (uint64_t)(c->conv_kernel - 1) * b.channels;
    for (uint32_t i = 0; i < N; i++) {
        windows[i] = kt_bytes(l, NULL, 4 * window);
        states[i] = kt_bytes(l, NULL, 4 * state);
    }
    struct test_buffer *squares = kt_bytes(l, NULL, 4 * (uint64_t)N * n_squares);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct delta op;
        struct delta_call calls[N];
        if (delta_open(&op, l->side[s], &shape, &l->err) < 0)
            break;
        for (uint32_t i = 0; i < N; i++) {
            calls[i] = call_of(&b, s, 1);
            calls[i].proj += 4 * (uint64_t)i * b.stride;
            calls[i].dst += 4 * (uint64_t)i * outs;
            calls[i].squares =
                form == DELTA_SHARED ? squares->on[s].address + 4 * (uint64_t)i * n_squares : 0;
            calls[i].window_in = i > 0 ? calls[i - 1].window_out : calls[i].window_in;
            calls[i].state = i > 0 ? calls[i - 1].state_out : calls[i].state;
            calls[i].window_out = windows[i]->on[s].address;
            calls[i].state_out = states[i]->on[s].address;
        }
        exec_begin(l->side[s]);
        delta_run_chain(&op, l->side[s], calls, N);
        kt_finish(l, s);
    }
    double error = fmax(kt_error(l, b.out, N * outs), kt_error(l, squares, N * n_squares));
    for (uint32_t i = 0; i < N; i++) {
        error = fmax(error, kt_error(l, states[i], state));
        error = fmax(error, kt_error(l, windows[i], window));
    }
    char text[64];
    snprintf(text, sizeof text, "%u/%u heads of %ux%u, a chain of %d%s", c->n_v, c->n_k, c->v_dim, c->k_dim,
             N, form_names[form]);
    kt_report(l, "delta", text, error, BOUND);
}

/* A head's rows shared among workgroups. */
static void shared_case(struct kernel_test *l, const struct delta_shape *c, enum kind kind)
{
    struct delta_shape shape = *c;
    shape.form = DELTA_SHARED;
    delta_case(l, &shape, 1, kind);
}

/* Both forms of many tokens. */
static void many_case(struct kernel_test *l, const struct delta_shape *c, uint32_t n, enum kind kind)
{
    struct delta_shape shape = *c;
    shape.form = DELTA_TOKENS;
    delta_case(l, &shape, n, kind);
    shape.form = DELTA_BLOCKS;
    delta_case(l, &shape, n, kind);
}

/* Compares results in float16 with those of the reference, rounded afterwards. */
static void f16_case(struct kernel_test *l, const struct delta_shape *c, uint32_t n, bool is_blocked)
{
    struct bench b;
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t cols = c->n_v * c->v_dim;
    lay_out(l, c, PLAIN, n, &b);
    struct test_buffer *f16 = kt_bytes(l, NULL, 2 * (uint64_t)n * cols);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct delta op;
        struct cast_f16 cast;
        if (delta_open(&op, l->side[s], c, &l->err) < 0 || cast_f16_open(&cast, l->side[s], &l->err) < 0)
            break;
        bool is_given = delta_gives_f16(&op, l->side[s], n);
        const struct cast_f16_call after = {.x = b.out->on[s].address,
                                            .dst = f16->on[s].address,
                                            .n = n,
                                            .cols = cols,
                                            .x_stride = cols,
                                            .is_blocked = is_blocked};
        struct delta_call call = call_of(&b, s, n);
        call.f16 = is_given ? f16->on[s].address : 0;
        call.is_blocked = is_blocked;
        exec_begin(l->side[s]);
        delta_run(&op, l->side[s], &call);
        if (!is_given)
            cast_f16_run(&cast, l->side[s], &after);
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u heads of %u, %u tokens, in float16%s", c->n_v, c->v_dim, n,
             is_blocked ? ", blocked" : "");
    kt_report(l, "delta", text, kt_f16_error(l, f16, (uint64_t)n * cols), 1e-3);
}

/* A decay for each key channel. */
static void channel_cases(struct kernel_test *l)
{
    static const struct delta_shape tiny = {.n_k = 2,
                                            .n_v = 2,
                                            .k_dim = 64,
                                            .v_dim = 64,
                                            .conv_kernel = 4,
                                            .eps = 1e-6f,
                                            .sigmoid = true,
                                            .by_channel = true};
    struct delta_shape bound = {.n_k = 2,
                                .n_v = 4,
                                .k_dim = 12,
                                .v_dim = 24,
                                .conv_kernel = 3,
                                .eps = 1e-6f,
                                .by_channel = true,
                                .lower = -5};
    struct delta_shape tiled = bound, crooked = bound, wide = tiny, published = tiny;
    tiled.tiled = true;
    tiled.lower = -2;
    tiled.v_dim = 20;
    crooked.k_dim = 10;
    crooked.v_dim = 7;
    crooked.lower = 0;
    wide.k_dim = 256;
    wide.v_dim = 40;
    published.n_k = published.n_v = 32;
    published.k_dim = published.v_dim = 128;
    published.lower = -5;
    delta_case(l, &tiny, 1, PLAIN);
    delta_case(l, &bound, 1, STEEP);
    delta_case(l, &tiled, 3, PLAIN);
    delta_case(l, &crooked, 70, CUT);
    delta_case(l, &tiny, 40, STEEP);
    if (!exec_get_caps(l->side[KT_DEVICE]).is_host) {
        shared_case(l, &bound, PLAIN);
        shared_case(l, &tiny, STEEP);
        concurrent_case(l, &bound, DELTA_FASTER);
        chain_case(l, &bound, DELTA_SHARED);
        f16_case(l, &tiny, 40, true);
    }
    for (enum kind kind = PLAIN; kind < N_KINDS; kind++) {
        many_case(l, &tiny, 67, kind);
        many_case(l, &bound, 33, kind);
    }
    many_case(l, &tiled, 33, PLAIN);
    for (uint32_t n = 1; n < 6; n++)
        many_case(l, &bound, n, CUT);
    l->is_rest = true;
    many_case(l, &wide, 50, PLAIN);
    many_case(l, &tiny, 300, SIMILAR);
    l->is_rest = false;
    if (kt_is_brief(l))
        return;
    delta_case(l, &published, 1, PLAIN);
    many_case(l, &published, 20, PLAIN);
}

void selftest_delta_cases(struct kernel_test *l)
{
    static const struct delta_shape tiny = {4, 8, 64, 64, 4, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    odd = {2, 6, 64, 128, 4, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    a3b = {16, 32, 128, 128, 4, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    narrow = {1, 1, 12, 20, 2, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    crooked = {1, 2, 10, 7, 3, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    wide = {1, 2, 256, 36, 4, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    eighths = {1, 2, 10, 24, 3, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    wide_eighths = {1, 2, 256, 40, 4, 1e-6f, DELTA_FASTER, {0}, 0, 0, 0, 0},
                                    sigmoid = {1, 2, 10, 24, 3, 1e-6f, DELTA_FASTER, {0}, 1, 0, 0, 0},
                                    even_sigmoid = {1, 2, 12, 24, 3, 1e-6f, DELTA_FASTER, {0}, 1, 0, 0, 0},
                                    tiled = {2, 6, 12, 24, 3, 1e-6f, DELTA_FASTER, {0}, 0, 1, 0, 0};
    delta_case(l, &narrow, 1, PLAIN);
    delta_case(l, &narrow, 3, STEEP);
    delta_case(l, &tiny, 1, PLAIN);
    delta_case(l, &tiny, 7, STEEP);
    delta_case(l, &odd, 33, PLAIN);
    delta_case(l, &narrow, 19, STEEP);
    delta_case(l, &tiny, 40, STEEP);
    delta_case(l, &crooked, 70, CUT);
    delta_case(l, &sigmoid, 3, PLAIN);
    delta_case(l, &even_sigmoid, 40, PLAIN);
    delta_case(l, &tiled, 3, PLAIN);
    if (!exec_get_caps(l->side[KT_DEVICE]).is_host) {
        shared_case(l, &eighths, PLAIN);
        shared_case(l, &tiny, STEEP);
        shared_case(l, &tiled, PLAIN);
        concurrent_case(l, &narrow, DELTA_FASTER);
        concurrent_case(l, &eighths, DELTA_SHARED);
        concurrent_case(l, &odd, DELTA_FASTER);
        chain_case(l, &narrow, DELTA_FASTER);
        chain_case(l, &eighths, DELTA_SHARED);
        l->is_rest = true;
        shared_case(l, &wide_eighths, SIMILAR);
        l->is_rest = false;
        f16_case(l, &tiny, 40, true);
        f16_case(l, &odd, 19, false);
    }
    for (enum kind kind = PLAIN; kind < N_KINDS; kind++) {
        many_case(l, &tiny, 150, kind);
        many_case(l, &narrow, 33, kind);
    }
    many_case(l, &tiled, 33, PLAIN);
    channel_cases(l);
    for (uint32_t n = 1; n < 6; n++)
        many_case(l, &narrow, n, CUT);
    many_case(l, &odd, 65, CUT);
    l->is_long = true;
    many_case(l, &odd, 300, SIMILAR);
    l->is_long = false;
    l->is_rest = true;
    many_case(l, &wide, 18, SIMILAR);
    many_case(l, &wide, 50, PLAIN);
    many_case(l, &odd, 603, PLAIN);
    delta_case(l, &odd, 2, PLAIN);
    l->is_rest = false;
    if (kt_is_brief(l))
        return;
    /* The same paths with the sizes of Qwen's models. */
    delta_case(l, &a3b, 17, PLAIN);
    delta_case(l, &a3b, 1, PLAIN);
    if (!exec_get_caps(l->side[KT_DEVICE]).is_host) {
        shared_case(l, &a3b, PLAIN);
        concurrent_case(l, &a3b, DELTA_FASTER);
    }
    many_case(l, &a3b, 20, SIMILAR);
}
