/* The self-test's cases of the residual's streams. */
#include <math.h>
#include <stdio.h>

#include "ops/streams/streams.h"
#include "selftest/kernel_test.h"

static const double BOUND = 2e-6;

enum { STRIDE_ROOM = 5 }; /* numbers between the rows of `by` and of `low` */

static void begin_case(struct kernel_test *l, const struct streams_shape *c, uint32_t n)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint64_t width = (uint64_t)c->n_streams * c->hidden;
    struct test_buffer *src = kt_floats(l, (uint64_t)n * c->hidden, -2, 2),
                       *x = kt_bytes(l, NULL, 4 * (uint64_t)n * width);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_begin_run(
            &op, l->side[s],
            &(struct streams_begin_call){.src = src->on[s].address, .x = x->on[s].address, .n = n});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u streams of %u, %u token%s", c->n_streams, c->hidden, n, n > 1 ? "s" : "");
    kt_report(l, "streams_begin", text, kt_error(l, x, n * width), 0);
}

/* only_adds: there is no norm. */
static void norm_case(struct kernel_test *l, const struct streams_shape *c, uint32_t n, bool adds,
                      bool only_adds)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint64_t width = (uint64_t)c->n_streams * c->hidden;
    uint32_t stride = c->n_streams + STRIDE_ROOM;
    struct test_buffer *x = kt_floats(l, n * width, -2, 2), *dst = kt_bytes(l, NULL, 4 * (uint64_t)n * width),
                       *norm = kt_floats(l, width, 0.5f, 1.5f),
                       *by = kt_floats(l, (uint64_t)n * stride, -9, 9),
                       *add = kt_floats(l, (uint64_t)n * c->hidden, -2, 2);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_norm_run(&op, l->side[s],
                         &(struct streams_norm_call){.x = x->on[s].address,
                                                     .add = adds ? add->on[s].address : 0,
                                                     .by = by->on[s].address,
                                                     .norm = norm->on[s].address,
                                                     .dst = only_adds ? 0 : dst->on[s].address,
                                                     .n = n,
                                                     .by_stride = stride});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u streams of %u, %u token%s%s%s", c->n_streams, c->hidden, n,
             n > 1 ? "s" : "", adds ? ", add" : "", only_adds ? ", no norm" : "");
    double error = fmax(kt_error(l, x, n * width), kt_error(l, dst, n * width));
    kt_report(l, "streams_norm", text, error, BOUND);
}

static void low_case(struct kernel_test *l, const struct streams_shape *c, uint32_t rank, uint32_t n)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t stride = rank + STRIDE_ROOM;
    struct test_buffer *low = kt_floats(l, (uint64_t)n * stride, -30, 30);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_low_run(
            &op, l->side[s],
            &(struct streams_low_call){.low = low->on[s].address, .n = n, .rank = rank, .stride = stride});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "rank %u, %u token%s", rank, n, n > 1 ? "s" : "");
    kt_report(l, "streams_low", text, kt_error(l, low, (uint64_t)n * stride), BOUND);
}

static void mix_case(struct kernel_test *l, const struct streams_shape *c, uint32_t n)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint64_t width = (uint64_t)c->n_streams * c->hidden;
    struct test_buffer *up = kt_floats(l, n * width, -9, 9), *normed = kt_floats(l, n * width, -2, 2),
                       *dst = kt_bytes(l, NULL, 4 * (uint64_t)n * c->hidden);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_mix_run(
            &op, l->side[s],
            &(struct streams_mix_call){
                .up = up->on[s].address, .normed = normed->on[s].address, .dst = dst->on[s].address, .n = n});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u streams of %u, %u token%s", c->n_streams, c->hidden, n, n > 1 ? "s" : "");
    kt_report(l, "streams_mix", text, kt_error(l, dst, (uint64_t)n * c->hidden), BOUND);
}

void selftest_streams_cases(struct kernel_test *l)
{
    static const struct streams_shape shapes[] = {{1, 4, 1e-6f}, {3, 1036, 1e-6f}, {4, 2560, 1e-6f}};
    static const uint32_t ranks[] = {1, 37, 320}, tokens[] = {1, 5, 2};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        begin_case(l, &shapes[i], tokens[i]);
        norm_case(l, &shapes[i], tokens[i], true, false);
        norm_case(l, &shapes[i], tokens[i], i == 1, i == 1);
        low_case(l, &shapes[i], ranks[i], tokens[i]);
        mix_case(l, &shapes[i], tokens[i]);
    }
}
