/* The self-test's cases of Mamba-2's state space and of its norm by groups. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "ops/ssd/ssd.h"
#include "selftest/kernel_test.h"

/* Relative to the largest output, as for every product. */
static const double BOUND = 1e-5;

enum kind {
    PLAIN,
    STEEP, /* time steps from 0 to 100: heads whose decays are 1, and such whose decays are 0 */
    BARE,  /* a convolution without biases */
    N_KINDS
};
static const char *const kind_names[N_KINDS] = {"", ", steep", ", no biases"};

struct bench {
    uint32_t channels, stride;
    uint32_t z_at, x_at, dt_at; /* places in a row of proj */
    uint64_t inner, states;
    struct test_buffer *proj, *conv, *bias, *a_log, *dt_bias, *d, *window, *out_window, *state, *state_out,
        *out, *scratch, *norm;
};

static void lay_out(struct kernel_test *l, const struct ssd_shape *c, enum kind kind, uint32_t n,
                    struct bench *b)
{
    const struct exec_caps caps = exec_get_caps(l->side[KT_DEVICE]);
    float wide = kind == STEEP ? 100.0f : 2.0f;
    b->channels = ssd_channels(c);
    b->inner = (uint64_t)c->n_heads * c->head_dim;
    b->states = b->inner * c->state_dim;
    /* Another order than a model's and gaps between: a kernel that computes a place by itself fails. */
    b->dt_at = 1;
    b->x_at = b->dt_at + c->n_heads + 2;
    b->z_at = b->x_at + b->channels + 1;
    b->stride = b->z_at + (uint32_t)b->inner + 3;
    b->proj = kt_floats(l, (uint64_t)n * b->stride, -2, 2);
    b->window = kt_floats(l, (uint64_t)(c->conv_kernel - 1) * b->channels, -2, 2);
    b->conv = kt_floats(l, (uint64_t)b->channels * c->conv_kernel, -1, 1);
    b->bias = kind == BARE ? NULL : kt_floats(l, b->channels, -1, 1);
    b->a_log = kt_floats(l, c->n_heads, -3, 2.3f);
    b->dt_bias = kt_floats(l, c->n_heads, -wide, wide);
    b->d = kt_floats(l, c->n_heads, -1, 1);
    b->norm = kt_floats(l, b->inner, 0.5f, 1.5f);
    b->out_window = kt_bytes(l, NULL, 4 * (uint64_t)(c->conv_kernel - 1) * b->channels);
    b->state = kt_floats(l, b->states, -1, 1);
    /* Even numbers of tokens update the state in place. */
    b->state_out = n % 2 ? kt_bytes(l, NULL, 4 * b->states) : b->state;
    b->out = kt_bytes(l, NULL, 4 * (uint64_t)n * b->inner);
    b->scratch = kt_bytes(l, NULL, 4 * ssd_scratch(c, &caps, n));
}

static struct ssd_call call_of(const struct bench *b, int s, uint32_t n)
{
    return (struct ssd_call){.proj = b->proj->on[s].address,
                             .conv = b->conv->on[s].address,
                             .conv_bias = b->bias ? b->bias->on[s].address : 0,
                             .a_log = b->a_log->on[s].address,
                             .dt_bias = b->dt_bias->on[s].address,
                             .d = b->d->on[s].address,
                             .window_in = b->window->on[s].address,
                             .window_out = b->out_window->on[s].address,
                             .state = b->state->on[s].address,
                             .state_out = b->state_out->on[s].address,
                             .dst = b->out->on[s].address,
                             .scratch = b->scratch->on[s].address,
                             .n = n,
                             .stride = b->stride,
                             .z_at = b->z_at,
                             .x_at = b->x_at,
                             .dt_at = b->dt_at};
}

/* Returns the largest error of the states and windows after n tokens, and of their outputs. */
static double error_of(struct kernel_test *l, const struct ssd_shape *c, const struct bench *b, uint32_t n)
{
    double error = fmax(kt_error(l, b->out, n * b->inner), kt_error(l, b->state, b->states));
    error = fmax(error, kt_error(l, b->state_out, b->states));
    return fmax(error, kt_error(l, b->out_window, (uint64_t)(c->conv_kernel - 1) * b->channels));
}

static void report(struct kernel_test *l, const struct ssd_shape *c, const char *what, double error)
{
    char text[128];
    snprintf(text, sizeof text, "%u heads of %ux%u in %u groups, %u taps%s%s, %s", c->n_heads, c->head_dim,
             c->state_dim, c->n_groups, c->conv_kernel, c->low > 0 ? ", bounded" : "",
             c->blocks > 1 ? ", in blocks" : "", what);
    kt_report(l, "ssd", text, error, BOUND);
}

/* n tokens of one sequence, with the norm. */
static void ssd_case(struct kernel_test *l, const struct ssd_shape *c, uint32_t n, enum kind kind)
{
    struct bench b;
    char what[64];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, c, kind, n, &b);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct ssd op;
        if (ssd_open(&op, l->side[s], c, &l->err) < 0)
            break;
        const struct ssd_call call = call_of(&b, s, n);
        exec_begin(l->side[s]);
        ssd_run(&op, l->side[s], &call);
        ssd_norm_run(&op, l->side[s],
                     &(struct ssd_norm_call){.x = call.dst, .norm = b.norm->on[s].address, .n = n});
        kt_finish(l, s);
    }
    snprintf(what, sizeof what, "%u token%s%s", n, n > 1 ? "s" : "", kind_names[kind]);
    report(l, c, what, error_of(l, c, &b, n));
}

/* A token of each of several sequences. */
static void concurrent_case(struct kernel_test *l, const struct ssd_shape *c)
{
    enum { N = 3 };
    struct bench b[N];
    double error = 0;
    if (!kt_takes(l, l->is_rest))
        return;
    for (uint32_t i = 0; i < N; i++)
        lay_out(l, c, PLAIN, 1, &b[i]);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct ssd op;
        struct ssd_call calls[N];
        if (ssd_open(&op, l->side[s], c, &l->err) < 0)
            break;
        for (uint32_t i = 0; i < N; i++)
            calls[i] = call_of(&b[i], s, 1);
        exec_begin(l->side[s]);
        ssd_run_concurrent(&op, l->side[s], calls, N);
        kt_finish(l, s);
    }
    for (uint32_t i = 0; i < N; i++)
        error = fmax(error, error_of(l, c, &b[i], 1));
    report(l, c, "3 sequences", error);
}

/* Consecutive tokens of one sequence, with the state after each of them. */
static void chain_case(struct kernel_test *l, const struct ssd_shape *c, uint32_t n)
{
    enum { MOST = 11 };
    struct bench b;
    struct test_buffer *windows[MOST], *states[MOST];
    char what[32];
    if (!kt_takes(l, l->is_rest))
        return;
    lay_out(l, c, PLAIN, n, &b);
    uint64_t window = (uint64_t)(c->conv_kernel - 1) * b.channels;
    for (uint32_t i = 0; i < n; i++) {
        windows[i] = kt_bytes(l, NULL, 4 * window);
        states[i] = kt_bytes(l, NULL, 4 * b.states);
    }
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct ssd op;
        struct ssd_call calls[MOST];
        if (ssd_open(&op, l->side[s], c, &l->err) < 0)
            break;
        for (uint32_t i = 0; i < n; i++) {
            calls[i] = call_of(&b, s, 1);
            calls[i].proj += 4 * (uint64_t)i * b.stride;
            calls[i].dst += 4 * (uint64_t)i * b.inner;
            calls[i].window_in = i > 0 ? calls[i - 1].window_out : calls[i].window_in;
            calls[i].state = i > 0 ? calls[i - 1].state_out : calls[i].state;
            calls[i].window_out = windows[i]->on[s].address;
            calls[i].state_out = states[i]->on[s].address;
        }
        exec_begin(l->side[s]);
        ssd_run_chain(&op, l->side[s], calls, n);
        kt_finish(l, s);
    }
    double error = kt_error(l, b.out, n * b.inner);
    for (uint32_t i = 0; i < n; i++) {
        error = fmax(error, kt_error(l, states[i], b.states));
        error = fmax(error, kt_error(l, windows[i], window));
    }
    snprintf(what, sizeof what, "a chain of %u", n);
    report(l, c, what, error);
}

void selftest_ssd_cases(struct kernel_test *l)
{
    static const struct ssd_shape even = {4, 2, 16, 32, 4, 0, INFINITY, 1e-5f, 0},
                                  crooked = {6, 2, 10, 12, 3, 0.25f, INFINITY, 1e-6f, 0},
                                  narrow = {3, 3, 7, 5, 2, 0.1f, 0.5f, 1e-5f, 0},
                                  blocks = {4, 1, 16, 40, 4, 0, INFINITY, 1e-5f, 4},
                                  nano = {64, 8, 64, 128, 4, 0, INFINITY, 1e-5f, 0};
    ssd_case(l, &even, 1, PLAIN);
    ssd_case(l, &crooked, 1, PLAIN);
    ssd_case(l, &narrow, 2, BARE);
    ssd_case(l, &blocks, 1, STEEP);
    for (enum kind kind = PLAIN; kind < N_KINDS; kind++) {
        ssd_case(l, &crooked, 19, kind);
        ssd_case(l, &even, 70, kind);
    }
    ssd_case(l, &blocks, 33, PLAIN);
    ssd_case(l, &narrow, 40, STEEP);
    concurrent_case(l, &crooked);
    concurrent_case(l, &blocks);
    chain_case(l, &narrow, 3);
    chain_case(l, &even, 11);
    l->is_rest = true;
    for (uint32_t n = 3; n < 10; n++)
        ssd_case(l, &narrow, n, PLAIN);
    ssd_case(l, &even, 300, STEEP);
    l->is_rest = false;
    if (kt_is_brief(l))
        return;
    ssd_case(l, &nano, 1, PLAIN);
    ssd_case(l, &nano, 40, PLAIN);
}
