/* The router's choice against values worked out by hand, on the reference and on a device: what random inputs
 * and whole models hardly ever meet. MOEFLUX_DEVICE names another device than the default one.
 *
 * suites: nightly vulkan cpu asan */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "check.h"
#include "device.h"
#include "args.h"
#include "exec/exec.h"
#include "ops/experts/experts.h"
#include "ops/router/router.h"

enum { MAX_EXPERTS = 16, MAX_K = 8 };

struct example {
    struct router_shape shape;
    float scores[MAX_EXPERTS]; /* sigmoid of the logits */
    float bias[MAX_EXPERTS];
    uint32_t idx[MAX_K];
    float weights[MAX_K];
};

static float logit(float score)
{
    return logf(score / (1 - score));
}

static void write_floats(struct exec *x, struct exec_buffer *b, const float *v, uint32_t n)
{
    struct moeflux_err e = {0};
    check_ok(exec_buffer_new(x, b, EXEC_DEVICE, n * sizeof *v, &e), &e);
    check_ok(exec_write(x, b, 0, v, n * sizeof *v, &e), &e);
}

/* One token: its experts and their weights. */
static void route(struct exec *x, const struct router_shape *shape, const float *raw, const float *biases,
                  uint32_t *chosen, float *w)
{
    struct moeflux_err e = {0};
    struct router op;
    struct exec_buffer logits, bias, idx, weights;
    uint32_t k = shape->top_k, n = shape->n_experts;
    write_floats(x, &logits, raw, n);
    write_floats(x, &bias, biases, n);
    check_ok(exec_buffer_new(x, &idx, EXEC_DEVICE, k * sizeof *chosen, &e), &e);
    check_ok(exec_buffer_new(x, &weights, EXEC_DEVICE, k * sizeof *w, &e), &e);
    check_ok(router_open(&op, x, shape, &e), &e);
    exec_begin(x);
    router_run(&op, x,
               &(struct router_call){.logits = logits.address,
                                     .bias = bias.address,
                                     .idx = idx.address,
                                     .weights = weights.address,
                                     .n = 1,
                                     .stride = n});
    check_ok(exec_finish(x, &e), &e);
    check_ok(exec_read(x, &idx, 0, chosen, k * sizeof *chosen, &e), &e);
    check_ok(exec_read(x, &weights, 0, w, k * sizeof *w, &e), &e);
    struct exec_buffer *all[] = {&logits, &bias, &idx, &weights};
    for (int i = 0; i < 4; i++)
        exec_buffer_free(x, all[i]);
}

static void check_on(struct exec *x, const struct example *c)
{
    float raw[MAX_EXPERTS], w[MAX_K];
    uint32_t chosen[MAX_K];
    for (uint32_t i = 0; i < c->shape.n_experts; i++)
        raw[i] = logit(c->scores[i]);
    route(x, &c->shape, raw, c->bias, chosen, w);
    for (uint32_t i = 0; i < c->shape.top_k; i++)
        if (chosen[i] != c->idx[i] || !(fabsf(w[i] - c->weights[i]) <= 2e-6f))
            fail_msg("choice %u is expert %u with %.7f, expected %u with %.7f", i, chosen[i], (double)w[i],
                     c->idx[i], (double)c->weights[i]);
}

/* Puts a NaN of either sign, or an infinity that softmax subtracts from itself, in
 * each place of the logits. */
static void check_nans_on(struct exec *x, const struct router_shape *shape)
{
    const float broken[] = {copysignf(NAN, 1), copysignf(NAN, -1), INFINITY}, bias[MAX_EXPERTS] = {0};
    for (int b = 0; b < (shape->sigmoid ? 2 : 3); b++)
        for (uint32_t at = 0; at < shape->n_experts; at++) {
            float raw[MAX_EXPERTS], w[MAX_K];
            uint32_t chosen[MAX_K];
            for (uint32_t i = 0; i < shape->n_experts; i++)
                raw[i] = i == at ? broken[b] : 0.5f * (float)i;
            route(x, shape, raw, bias, chosen, w);
            for (uint32_t k = 0; k < shape->top_k; k++)
                if (!isnan(w[k]) || (chosen[k] >= shape->n_experts && (k == 0 || chosen[k] != NO_EXPERT)))
                    fail_msg("logit %u is %g: choice %u is expert %u with %g", at, (double)broken[b], k,
                             chosen[k], (double)w[k]);
        }
}

/* The reference, the native implementation and the device under test. */
static struct exec *open_device(int i)
{
    const char *const devices[] = {"reference", "cpu", getenv("MOEFLUX_DEVICE")};
    struct moeflux_err e = {0};
    struct exec *x;
    check_ok(exec_open(&x, &(struct exec_options){.device = devices[i], .shelf = device_shelf()}, &e), &e);
    return x;
}

static void check_example(const struct example *c)
{
    for (int i = 0; i < 3; i++) {
        struct exec *x = open_device(i);
        check_on(x, c);
        exec_close(x);
    }
}

static void a_nan_among_the_logits_reaches_every_weight(void **state)
{
    (void)state;
    static const struct router_shape shapes[] = {
        {5, 2, true, false, false, 0, 0, 0, 0, 0},    {9, 3, false, false, false, 0, 0, 0, 0, 0},
        {8, 3, true, true, false, 4, 2, 1.5f, 0, 0},  {8, 1, false, true, false, 1, 1, 1.0f, 0, 0},
        {9, 3, true, false, false, 0, 0, 0, 0.5f, 0}, {8, 3, true, true, false, 4, 2, 1.5f, 0.5f, 0},
    };
    for (int i = 0; i < 3; i++) {
        struct exec *x = open_device(i);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            check_nans_on(x, &shapes[k]);
        exec_close(x);
    }
}

/* Groups 0 and 2 leave. All that may be chosen is below 0: what is left out must not stand there as 0. */
static void negative_scores_of_the_choice_beat_groups_that_left(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {6, 2, true, true, false, 3, 1, 1.0f, 0, 0},
                                    .scores = {0.5f, 0.5f, 0.8f, 0.2f, 0.5f, 0.5f},
                                    .bias = {-3, -3, -1, -1, -3, -3},
                                    .idx = {2, 3},
                                    .weights = {0.8f, 0.2f}});
}

static void the_bias_chooses_but_does_not_weigh(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {4, 2, true, true, false, 1, 1, 2.5f, 0, 0},
                                    .scores = {0.9f, 0.1f, 0.3f, 0.6f},
                                    .bias = {0, 2, 1, 0},
                                    .idx = {1, 2},
                                    .weights = {2.5f * 0.25f, 2.5f * 0.75f}});
}

/* Group 0 has the best expert, group 1 the best two. */
static void a_group_is_as_good_as_its_two_best(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {6, 2, false, true, false, 2, 1, 1.0f, 0, 0},
                                    .scores = {0.9f, 0.1f, 0.1f, 0.6f, 0.2f, 0.7f},
                                    .idx = {5, 3},
                                    .weights = {0.7f, 0.6f}});
}

static void ties_go_to_the_lower_group_and_expert(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {8, 3, true, true, false, 4, 2, 1.5f, 0, 0},
                                    .scores = {0.25f, 0.25f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f},
                                    .idx = {2, 3, 4},
                                    .weights = {0.5f, 0.5f, 0.5f}});
}

static void weights_may_stay_scores(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {4, 3, false, true, false, 1, 1, 2.0f, 0, 0},
                                    .scores = {0.1f, 0.4f, 0.3f, 0.2f},
                                    .idx = {1, 2, 3},
                                    .weights = {0.8f, 0.6f, 0.4f}});
}

/* Every expert of the groups that stay. */
static void as_many_as_there_are_can_be_chosen(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {8, 4, false, true, false, 4, 2, 1.0f, 0, 0},
                                    .scores = {0.1f, 0.2f, 0.9f, 0.3f, 0.4f, 0.3f, 0.7f, 0.8f},
                                    .idx = {2, 7, 6, 3},
                                    .weights = {0.9f, 0.8f, 0.7f, 0.3f}});
}

/* Weights 4 : 3 : 2, of which 0.5 takes two. */
static void a_share_takes_the_fewest_that_carry_it(void **state)
{
    (void)state;
    struct example c = {.shape = {5, 3, true, false, false, 0, 0, 0, 0.5f, 0},
                        .scores = {0.5f, 2.0f / 3, 0.1f, 0.8f, 0.75f},
                        .idx = {3, 4, NO_EXPERT},
                        .weights = {4.0f / 7, 3.0f / 7, 0}};
    check_example(&c);
    c.shape.share = 4.1f / 9;
    check_example(&c);
    c.shape.share = 3.9f / 9;
    c.idx[1] = NO_EXPERT;
    c.weights[0] = 1;
    c.weights[1] = 0;
    check_example(&c);
}

/* Not renormalised: probabilities over all of 4 : 3 : 2 : 1. */
static void a_share_leaves_probabilities_as_they_are(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {4, 3, false, false, false, 0, 0, 0, 0.7f, 0},
                                    .scores = {0.5f, 2.0f / 3, 0.8f, 0.75f},
                                    .idx = {2, 3, NO_EXPERT},
                                    .weights = {0.4f, 0.3f, 0}});
}

/* The choice is 1, 2, 0 by the bias; 0 has the greatest weight, 2 the next. */
static void a_share_goes_by_weights_and_keeps_the_order_of_the_choice(void **state)
{
    (void)state;
    struct example c = {.shape = {4, 3, true, true, false, 1, 1, 2.0f, 0.8f, 0},
                        .scores = {0.9f, 0.1f, 0.3f, 0.6f},
                        .bias = {0, 2, 1, 0},
                        .idx = {2, 0, NO_EXPERT},
                        .weights = {0.5f, 1.5f, 0}};
    check_example(&c);
    c.shape.share = 0.6f;
    c.idx[0] = 0;
    c.idx[1] = NO_EXPERT;
    c.weights[0] = 2;
    c.weights[1] = 0;
    check_example(&c);
}

static void of_equal_weights_a_share_takes_the_first(void **state)
{
    (void)state;
    check_example(&(struct example){.shape = {8, 4, true, true, false, 4, 2, 1.0f, 0.5f, 0},
                                    .scores = {0.25f, 0.25f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f},
                                    .idx = {2, 3, NO_EXPERT, NO_EXPERT},
                                    .weights = {0.5f, 0.5f, 0, 0}});
}

/* Experts of zeros, each of which begins somewhere else, whose first half makes the choice, if the device has
 * it so. */
enum { CHOOSER_WIDTH = 64, CHOOSER_STEP = 16 };
struct chooser {
    struct router router;
    struct experts experts;
    struct exec_buffer zeros, table, act, idx, weights, x, norm;
};

static void make(struct exec *x, struct exec_buffer *b, uint64_t bytes)
{
    struct moeflux_err e = {0};
    uint8_t *zeros = test_calloc(bytes, 1);
    check_ok(exec_buffer_new(x, b, EXEC_DEVICE, bytes, &e), &e);
    check_ok(exec_write(x, b, 0, zeros, bytes, &e), &e);
    test_free(zeros);
}

static void open_chooser(struct chooser *c, struct exec *x, const struct router_shape *r)
{
    enum { WIDTH = CHOOSER_WIDTH };
    struct moeflux_err e = {0};
    const struct experts_shape shape = {.n_experts = r->n_experts,
                                        .top_k = r->top_k,
                                        .hidden = WIDTH,
                                        .inner = WIDTH,
                                        .gate_format = FORMAT_F32,
                                        .up_format = FORMAT_F32,
                                        .down_format = FORMAT_F32,
                                        .down_formats = format_set(FORMAT_F32),
                                        .eps = 1e-6f,
                                        .chooses = true,
                                        .norm_topk = r->norm};
    check_ok(router_open(&c->router, x, r, &e), &e);
    check_ok(experts_open(&c->experts, x, &shape, &e), &e);
    make(x, &c->zeros, 4 * WIDTH * WIDTH + (uint64_t)CHOOSER_STEP * r->n_experts);
    make(x, &c->table, 8 * (uint64_t)r->n_experts);
    for (uint32_t i = 0; i < r->n_experts; i++) {
        uint64_t at = c->zeros.address + (uint64_t)i * CHOOSER_STEP;
        check_ok(exec_write(x, &c->table, 8 * (uint64_t)i, &at, 8, &e), &e);
    }
    make(x, &c->act, 4 * experts_act_row(&shape));
    make(x, &c->idx, 4 * (uint64_t)r->top_k);
    make(x, &c->weights, 4 * (uint64_t)r->top_k);
    make(x, &c->x, 4 * WIDTH);
    make(x, &c->norm, 4 * WIDTH);
}

static void close_chooser(struct chooser *c, struct exec *x)
{
    struct exec_buffer *all[] = {&c->zeros, &c->table, &c->act, &c->idx, &c->weights, &c->x, &c->norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        exec_buffer_free(x, all[i]);
}

static void choose(struct chooser *c, struct exec *x, const float *raw, uint32_t *chosen, float *w)
{
    struct moeflux_err e = {0};
    const struct router_shape *r = &c->router.shape;
    struct exec_buffer logits;
    write_floats(x, &logits, raw, r->n_experts);
    exec_begin(x);
    experts_run_up(&c->experts, x,
                   &(struct experts_call){.x = c->x.address,
                                          .norm = c->norm.address,
                                          .table = c->table.address,
                                          .idx = c->idx.address,
                                          .weights = c->weights.address,
                                          .act = c->act.address,
                                          .router = &c->router,
                                          .shared_in = logits.address,
                                          .shared_stride = r->n_experts,
                                          .n = 1,
                                          .chunk = 1});
    check_ok(exec_finish(x, &e), &e);
    check_ok(exec_read(x, &c->idx, 0, chosen, r->top_k * sizeof *chosen, &e), &e);
    check_ok(exec_read(x, &c->weights, 0, w, r->top_k * sizeof *w, &e), &e);
    exec_buffer_free(x, &logits);
}

/* The first half finds each expert for itself: it has to be the one that it writes. */
static void check_found(struct chooser *c, struct exec *x, const uint32_t *idx)
{
    struct moeflux_err e = {0};
    const uint32_t top_k = c->router.shape.top_k;
    for (uint32_t k = 0; k < top_k; k++) {
        uint64_t found;
        check_ok(exec_read(x, &c->act, 4 * (uint64_t)top_k * CHOOSER_WIDTH + 8 * (uint64_t)k, &found, 8, &e),
                 &e);
        assert_int_equal((found - c->zeros.address) / CHOOSER_STEP, idx[k]);
    }
}

/* Logits of kind: all different, few different ones, all the same, one of them broken. */
static void draw_logits(float *raw, uint32_t n, int kind)
{
    static const float broken[] = {NAN, INFINITY, -INFINITY, 0};
    for (uint32_t i = 0; i < n; i++) {
        float v = (float)(random() % 20000) / 1000.0f - 10.0f;
        raw[i] = kind == 0 ? v : kind == 1 ? roundf(v / 5) : -0.25f;
    }
    if (kind > 2)
        raw[(uint32_t)random() % n] = broken[kind - 3];
    if (kind == 3) /* either sign */
        raw[(uint32_t)random() % n] = copysignf(NAN, -1);
}

/* Streaming depends on it: there the router's own kernel makes the choice. */
static void experts_choose_as_the_router_does_bit_by_bit(void **state)
{
    (void)state;
    enum { MOST = 300, KINDS = 7, ROUNDS = 4 };
    static const struct router_shape shapes[] = {{5, 2, true, false, false, 0, 0, 0, 0, 0},
                                                 {256, 8, true, false, false, 0, 0, 0, 0, 0},
                                                 {MOST, 10, false, false, false, 0, 0, 0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        struct exec *x = open_device(i);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct chooser c;
            open_chooser(&c, x, &shapes[k]);
            for (int round = 0; round < KINDS * ROUNDS; round++) {
                float raw[MOST], bias[MOST] = {0}, w[MOST], w_experts[MOST];
                uint32_t idx[MOST], idx_experts[MOST], top_k = shapes[k].top_k;
                draw_logits(raw, shapes[k].n_experts, round % KINDS);
                route(x, &shapes[k], raw, bias, idx, w);
                choose(&c, x, raw, idx_experts, w_experts);
                assert_memory_equal(idx, idx_experts, top_k * sizeof *idx);
                assert_memory_equal(w, w_experts, top_k * sizeof *w);
                if (!exec_get_caps(x).is_host)
                    check_found(&c, x, idx);
            }
            close_chooser(&c, x);
        }
        exec_close(x);
    }
}

static void shapes_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct router_shape shapes[] = {
        {8, 0, true, false, false, 0, 0, 0, 0, 0},
        {8, 9, true, false, false, 0, 0, 0, 0, 0},
        {8, 2, true, true, false, 3, 1, 1, 0, 0},
        {8, 2, true, true, false, 0, 0, 1, 0, 0},
        {8, 2, true, true, false, 2, 3, 1, 0, 0},
        {8, 5, true, true, false, 2, 1, 1, 0, 0},
        /* tables of tokens: too short, too long, with groups, without sigmoid */
        {8, 4, true, true, true, 1, 1, 1, 0, 3},
        {8, 4, true, true, true, 1, 1, 1, 0, 9},
        {8, 2, true, true, true, 2, 1, 1, 0, 3},
        {8, 2, true, false, false, 0, 0, 1, 0, 3},
        {8, 2, true, true, false, 2, 0, 1, 0, 0},
        {8, 2, true, false, false, 0, 0, 0, 1, 0},
        {8, 2, true, false, false, 0, 0, 0, -1, 0},
    };
    struct moeflux_err e = {0};
    struct exec *x;
    check_ok(exec_open(&x, &(struct exec_options){.device = "reference"}, &e), &e);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct router op;
        assert_int_equal(router_open(&op, x, &shapes[i], &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "router: "));
    }
    exec_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(negative_scores_of_the_choice_beat_groups_that_left),
        cmocka_unit_test(the_bias_chooses_but_does_not_weigh),
        cmocka_unit_test(a_group_is_as_good_as_its_two_best),
        cmocka_unit_test(ties_go_to_the_lower_group_and_expert),
        cmocka_unit_test(weights_may_stay_scores),
        cmocka_unit_test(as_many_as_there_are_can_be_chosen),
        cmocka_unit_test(a_share_takes_the_fewest_that_carry_it),
        cmocka_unit_test(a_share_leaves_probabilities_as_they_are),
        cmocka_unit_test(a_share_goes_by_weights_and_keeps_the_order_of_the_choice),
        cmocka_unit_test(of_equal_weights_a_share_takes_the_first),
        cmocka_unit_test(a_nan_among_the_logits_reaches_every_weight),
        cmocka_unit_test(experts_choose_as_the_router_does_bit_by_bit),
        cmocka_unit_test(shapes_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
