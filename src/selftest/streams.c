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
    static const struct streams_shape shapes[] = {{1, 4, 1, 1e-6f, 1e-6f, false},
                                                  {3, 1036, 4, 1e-5f, 1e-3f, false},
                                                  {4, 4096, 20, 1e-5f, 1e-6f, false},
                                                  {8, 68, 3, 1e-6f, 0, false}};
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

/* What a case of attention over blocks has. */
struct attend {
    uint32_t n_streams, hidden, n, n_kept, keep;
    bool adds, sets, only_adds, normed;
};

static void attend_case(struct kernel_test *l, const struct attend *c)
{
    if (!kt_takes(l, l->is_rest))
        return;
    const struct streams_shape shape = {
        .n_streams = c->n_streams, .hidden = c->hidden, .eps = 1e-5f, .attends = true};
    uint64_t width = (uint64_t)c->n_streams * c->hidden, rows = (uint64_t)c->n * c->hidden;
    struct test_buffer *x = kt_floats(l, c->n * width, -2, 2), *add = kt_floats(l, rows, -2, 2),
                       *norm = kt_floats(l, c->hidden, 0.5f, 1.5f), *score = kt_floats(l, c->hidden, -1, 1),
                       *dst = kt_bytes(l, NULL, 4 * rows);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct streams op;
        if (streams_open(&op, l->side[s], &shape, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        streams_attend_run(&op, l->side[s],
                           &(struct streams_attend_call){.x = x->on[s].address,
                                                         .add = c->adds ? add->on[s].address : 0,
                                                         .norm = c->normed ? norm->on[s].address : 0,
                                                         .score = score->on[s].address,
                                                         .dst = c->only_adds ? 0 : dst->on[s].address,
                                                         .n = c->n,
                                                         .n_kept = c->n_kept,
                                                         .keep = c->keep,
                                                         .sets = c->sets});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u of %u streams of %u, %u token%s%s%s%s", c->n_kept + 1, c->n_streams,
             c->hidden, c->n, c->n > 1 ? "s" : "",
             c->sets   ? ", set"
             : c->adds ? ", add"
                       : "",
             c->keep ? ", kept" : "",
             c->only_adds ? ", no mix"
             : c->normed  ? ""
                          : ", no norm");
    double error = fmax(kt_error(l, x, c->n * width), kt_error(l, dst, rows));
    kt_report(l, "streams_attend", text, error, BOUND);
}

static void attend_cases(struct kernel_test *l)
{
    static const struct attend cases[] = {
        {2, 4, 1, 0, 1, false, false, false, true},     {9, 7168, 1, 8, 0, true, false, false, true},
        {3, 1036, 5, 1, 2, false, false, false, false}, {3, 1036, 3, 2, 0, true, true, false, true},
        {4, 68, 7, 3, 0, true, false, true, false},     {32, 64, 2, 31, 0, true, false, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        attend_case(l, &cases[i]);
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
    attend_cases(l);
}
