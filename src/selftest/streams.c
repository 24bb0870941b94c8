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

/* only_adds: no squares are computed. */
static void join_case(struct kernel_test *l, const struct streams_shape *c, uint32_t n, bool adds,
                      bool only_adds)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t stride = c->n_streams * (1 + c->n_streams) + STRIDE_ROOM,
             n_squares = streams_n_squares(c->hidden);
    uint64_t width = (uint64_t)c->n_streams * c->hidden;
    struct test_buffer *x = kt_floats(l, n * width, -2, 2), *by = kt_floats(l, (uint64_t)n * stride, 0, 1),
                       *add = kt_floats(l, (uint64_t)n * c->hidden, -2, 2),
                       *squares = kt_bytes(l, NULL, 4 * (uint64_t)n * n_squares);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_join_run(&op, l->side[s],
                         &(struct streams_join_call){.x = x->on[s].address,
                                                     .add = adds ? add->on[s].address : 0,
                                                     .by = by->on[s].address,
                                                     .squares = only_adds ? 0 : squares->on[s].address,
                                                     .n = n,
                                                     .by_stride = stride});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u streams of %u, %u token%s%s%s", c->n_streams, c->hidden, n,
             n > 1 ? "s" : "", adds ? ", add" : "", only_adds ? ", no squares" : "");
    double error = fmax(kt_error(l, x, n * width), kt_error(l, squares, (uint64_t)n * n_squares));
    kt_report(l, "streams_join", text, error, BOUND);
}

/* Whose weights the streams have: their own, those of the collapse before, and in the first one none. */
enum lag { OWN, LAGGED, FIRST };

/* has_low: the streams have weights. */
static void collapse_case(struct kernel_test *l, const struct streams_shape *c, uint32_t n, bool has_low,
                          bool joins, enum lag lag)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint32_t n_low = streams_n_low(c->n_streams, joins), stride = n_low + STRIDE_ROOM;
    uint64_t width = (uint64_t)c->n_streams * c->hidden;
    struct test_buffer *x = kt_floats(l, n * width, -2, 2), *low = kt_floats(l, (uint64_t)n * stride, -4, 4),
                       *scale = kt_floats(l, 3, 0.5f, 1.5f), *base = kt_floats(l, n_low, -1, 1),
                       *squares = kt_floats(l, (uint64_t)n * streams_n_squares(c->hidden), 1, 3),
                       *dst = kt_bytes(l, NULL, 4 * (uint64_t)n * c->hidden),
                       *weights = kt_floats(l, (uint64_t)n * c->n_streams, 0, 1),
                       *kept = kt_bytes(l, NULL, 4 * (uint64_t)n * c->n_streams);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], c, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_collapse_run(
            &op, l->side[s],
            &(struct streams_collapse_call){.x = x->on[s].address,
                                            .squares = squares->on[s].address,
                                            .low = has_low ? low->on[s].address : 0,
                                            .scale = scale->on[s].address,
                                            .base = base->on[s].address,
                                            .dst = dst->on[s].address,
                                            .n = n,
                                            .stride = stride,
                                            .joins = joins,
                                            .lagged = lag != OWN,
                                            .weights = lag == LAGGED ? weights->on[s].address : 0,
                                            .kept = kept->on[s].address});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u streams of %u, %u token%s, %u iterations%s%s%s", c->n_streams, c->hidden,
             n, n > 1 ? "s" : "", c->iterations, has_low ? "" : ", no weights", joins ? ", join" : "",
             lag == OWN     ? ""
             : lag == FIRST ? ", first"
                            : ", lagged");
    double error = fmax(kt_error(l, dst, (uint64_t)n * c->hidden), kt_error(l, low, (uint64_t)n * stride));
    error = fmax(error, kt_error(l, kept, (uint64_t)n * c->n_streams));
    kt_report(l, "streams_collapse", text, error, BOUND);
}

static void joined_cases(struct kernel_test *l)
{
    static const struct streams_shape shapes[] = {{1, 4, 1, 1e-6f, 1e-6f},
                                                  {3, 1036, 4, 1e-5f, 1e-3f},
                                                  {4, 4096, 20, 1e-5f, 1e-6f},
                                                  {8, 68, 3, 1e-6f, 0}};
    static const uint32_t tokens[] = {1, 5, 2, 3};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        join_case(l, &shapes[i], tokens[i], true, false);
        join_case(l, &shapes[i], tokens[i], i == 1, i == 1);
        collapse_case(l, &shapes[i], tokens[i], true, true, OWN);
        collapse_case(l, &shapes[i], tokens[i], i != 2, false, OWN);
        collapse_case(l, &shapes[i], tokens[i], true, true, i == 1 ? FIRST : LAGGED);
        collapse_case(l, &shapes[i], tokens[i], false, false, LAGGED);
    }
}

void selftest_streams_cases(struct kernel_test *l)
{
    static const struct streams_shape shapes[] = {
        {1, 4, .eps = 1e-6f}, {3, 1036, .eps = 1e-6f}, {4, 2560, .eps = 1e-6f}};
    static const uint32_t ranks[] = {1, 37, 320}, tokens[] = {1, 5, 2};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        begin_case(l, &shapes[i], tokens[i]);
        norm_case(l, &shapes[i], tokens[i], true, false);
        norm_case(l, &shapes[i], tokens[i], i == 1, i == 1);
        low_case(l, &shapes[i], ranks[i], tokens[i]);
        mix_case(l, &shapes[i], tokens[i]);
    }
    joined_cases(l);
}
