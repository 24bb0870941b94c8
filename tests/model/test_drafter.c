/* The layer of multi-token prediction: its logits agree with a reference made with PyTorch, and sequences
 * keep its rows whatever is cut.
 *
 * suites: check vulkan cpu asan */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/run/drafter.h"
#include "engine/sequence.h"
#include "golden.h"

#define MODEL "tests/models/tiny-mtp"
enum { VOCAB = 2048, N = 7, CONTEXT = 64 };

static const void *find(const struct golden *g, const char *name)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return g->tensors[i].data;
    fail_msg("no tensor %s", name);
    return NULL;
}

static struct moeflux_model *open_model(void)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    const struct moeflux_options o = {
        .dir = MODEL, .device = device_name(), .drafter = true, .kv_type = MOEFLUX_KV_TYPE_F32};
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    return m;
}

static void expect_near(const float *got, const float *expected)
{
    double largest = 0, off = 0;
    for (int i = 0; i < VOCAB; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        off = fmax(off, fabs((double)got[i] - (double)expected[i]));
    }
    if (!(off <= 1e-4 * largest))
        fail_msg("logits differ by %g, the largest is %g", off, largest);
}

static void feed(struct moeflux_session *s, const float *hidden, bool is_own)
{
    s->drafter.fed = hidden;
    s->drafter.fed_pos = s->pos;
    s->drafter.fed_is_own = is_own;
}

static void logits_agree_with_the_reference(void **unused)
{
    (void)unused;
    struct golden g;
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    static float logits[VOCAB];
    const struct moeflux_outputs out = {.logits = logits};
    golden_open(&g, MODEL "/golden.safetensors");
    const float *hidden = find(&g, "hidden"), *expected = find(&g, "logits");
    const int32_t *ids = find(&g, "ids");
    struct moeflux_model *m = open_model();
    check_ok(moeflux_session_new(&s, m->drafter, CONTEXT, &e), &e);
    /* a chunk, single tokens, a chunk, and the layer's own hidden state */
    feed(s, hidden, false);
    check_ok(moeflux_session_eval(s, ids, 3, &out, &e), &e);
    expect_near(logits, expected);
    for (int i = 3; i < 5; i++) {
        feed(s, hidden + (size_t)i * 256, false);
        check_ok(moeflux_session_eval(s, ids + i, 1, &out, &e), &e);
    }
    feed(s, hidden + (size_t)5 * 256, false);
    check_ok(moeflux_session_eval(s, ids + 5, N - 5, &out, &e), &e);
    expect_near(logits, expected + VOCAB);
    feed(s, s->drafter.own, true);
    check_ok(moeflux_session_eval(s, ids + N, 1, &out, &e), &e);
    expect_near(logits, expected + 2 * (size_t)VOCAB);
    moeflux_session_free(s);
    moeflux_model_close(m);
    golden_close(&g);
}

static void eval(struct moeflux_session *s, const int32_t *ids, uint32_t n)
{
    struct moeflux_err e = {0};
    static float logits[VOCAB];
    check_ok(moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){.logits = logits}, &e), &e);
}

static void propose(struct moeflux_session *s, int32_t id, int32_t out[3], int n)
{
    struct moeflux_err e = {0};
    memset(out, -1, 3 * sizeof *out);
    assert_int_equal(drafter_propose(s, id, 3, out, &e), n);
}

static void rows_follow_the_sequence(void **unused)
{
    (void)unused;
    static const int32_t ids[] = {5, 17, 900, 41, 3, 8, 77, 1200, 65, 4, 19, 230};
    int32_t first[3], again[3];
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    struct moeflux_model *m = open_model();
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    propose(s, ids[0], first, 0); /* there is no hidden state yet */
    eval(s, ids, 8);
    assert_int_equal(s->drafter.rows->pos, 7); /* the last row lacks its token */
    propose(s, ids[8], first, 3);
    assert_int_equal(s->drafter.rows->pos, 8);
    /* the same text in other pieces */
    check_ok(moeflux_session_clear(s, &e), &e);
    propose(s, ids[0], again, 0);
    eval(s, ids, 3);
    for (int i = 3; i < 8; i++)
        eval(s, ids + i, 1);
    propose(s, ids[8], again, 3);
    assert_memory_equal(first, again, sizeof first);
    /* and after a cut */
    eval(s, ids + 8, 2);
    check_ok(moeflux_session_truncate(s, 6, &e), &e);
    eval(s, ids + 6, 2);
    propose(s, ids[8], again, 3);
    assert_memory_equal(first, again, sizeof first);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree_with_the_reference),
        cmocka_unit_test(rows_follow_the_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
