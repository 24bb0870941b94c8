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
#include "engine/state/places.h"
#include "engine/state/snapshot.h"
#include "golden.h"
#include "tmp_tree.h"

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

static void embedding_and_head_are_the_models(void **unused)
{
    (void)unused;
    struct moeflux_model *m = open_model();
    const struct loader *l = &m->stages[0].loader, *own = &m->drafter->stages[0].loader;
    assert_true(l->embedding.weight && l->head.weight);
    assert_int_equal(own->embedding.weight, l->embedding.weight);
    assert_int_equal(own->head.scales, l->head.scales);
    assert_int_equal(own->loaded_bytes, m->drafter->dir.dense_bytes);
    moeflux_model_close(m);
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

static const int32_t text[] = {5, 17, 900, 41, 3, 8, 77, 1200, 65, 4, 19, 230};

static struct moeflux_session *new_session(struct moeflux_model *m)
{
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&s, m, CONTEXT, &e), &e);
    return s;
}

/* The proposals after the first `n` tokens, which the sequence has. */
static void expect_proposals(struct moeflux_session *s, uint32_t n, const int32_t *expected)
{
    int32_t found[3];
    assert_int_equal(s->pos, n);
    propose(s, text[n], found, 3);
    assert_memory_equal(found, expected, sizeof found);
}

static void forks_and_saved_states_have_the_rows(void **unused)
{
    (void)unused;
    int32_t first[3], found[3];
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const char *path = tmp_tree_path(tmp, "state"), *without = tmp_tree_path(tmp, "without");
    struct moeflux_model *m = open_model();
    struct moeflux_session *s = new_session(m), *other = new_session(m), *again = new_session(m);
    eval(s, text, 5);
    eval(s, text + 5, 3);
    check_ok(moeflux_session_checkpoint(s, &e), &e);
    check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
    check_ok(moeflux_session_fork(other, s, 8, &e), &e);
    propose(s, text[8], first, 3);
    expect_proposals(other, 8, first);
    /* loaded over another text, and over none */
    eval(other, text, 2);
    check_ok(moeflux_session_load(other, path, &e), &e);
    expect_proposals(other, 8, first);
    check_ok(moeflux_session_load(again, path, &e), &e);
    assert_int_equal(again->drafter.base, 0);
    expect_proposals(again, 8, first);
    /* forked before the end, and where the last row has the same token */
    eval(s, text + 8, 2);
    check_ok(moeflux_session_checkpoint(s, &e), &e);
    eval(s, text + 10, 1);
    check_ok(moeflux_session_fork(other, s, 10, &e), &e);
    assert_int_equal(other->drafter.rows->pos + other->drafter.n, 10);
    eval(other, text + 10, 1);
    check_ok(moeflux_session_fork(again, s, 8, &e), &e);
    assert_int_equal(again->drafter.rows->pos, 8);
    propose(s, text[11], first, 3);
    expect_proposals(other, 11, first);
    eval(again, text + 8, 3);
    expect_proposals(again, 11, first);
    moeflux_session_free(s);
    moeflux_session_free(again);
    moeflux_session_free(other);
    moeflux_model_close(m);
    /* a model without its layer takes the rest; its own states have no rows */
    check_ok(
        device_open_model(&m, &(struct moeflux_options){.dir = MODEL, .kv_type = MOEFLUX_KV_TYPE_F32}, &e),
        &e);
    s = new_session(m);
    check_ok(moeflux_session_load(s, path, &e), &e);
    assert_int_equal(s->pos, 8);
    check_ok(moeflux_session_save(s, without, MOEFLUX_STATE_V3, &e), &e);
    moeflux_session_free(s);
    moeflux_model_close(m);
    m = open_model();
    s = new_session(m);
    check_ok(moeflux_session_load(s, without, &e), &e);
    propose(s, text[8], found, 0);
    eval(s, text + 8, 1);
    propose(s, text[9], found, 3);
    assert_int_equal(s->drafter.base, 8);
    moeflux_session_free(s);
    moeflux_model_close(m);
    tmp_tree_remove(tmp);
}

/* The drafter's rows are after the checkpoints. */
static void places_are_read_from_a_state_with_rows(void **unused)
{
    (void)unused;
    static const uint32_t at[] = {3, 6};
    struct moeflux_err e = {0};
    struct places p;
    char *tmp = tmp_tree_new();
    const char *path = tmp_tree_path(tmp, "state");
    struct moeflux_model *m = open_model();
    struct moeflux_session *s = new_session(m);
    for (uint32_t i = 0; i < 2; i++) {
        eval(s, text + s->pos, at[i] - s->pos);
        check_ok(moeflux_session_checkpoint(s, &e), &e);
    }
    eval(s, text + s->pos, 2);
    check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
    check_ok(places_read(&p, m, path, &e), &e);
    assert_int_equal(p.n_tokens, 8);
    assert_memory_equal(p.ids, text, 8 * sizeof *text);
    assert_int_equal(p.n_checkpoints, 2);
    assert_memory_equal(p.checkpoints, at, sizeof at);
    assert_int_equal(p.bytes, moeflux_session_state_bytes(s, MOEFLUX_STATE_V3));
    places_free(&p);
    moeflux_session_free(s);
    moeflux_model_close(m);
    tmp_tree_remove(tmp);
}

static void a_damaged_part_is_refused(void **unused)
{
    (void)unused;
    struct moeflux_err e = {0};
    size_t n;
    char *tmp = tmp_tree_new();
    const char *path = tmp_tree_path(tmp, "state");
    struct moeflux_model *m = open_model();
    struct moeflux_session *s = new_session(m);
    eval(s, text, 8);
    check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
    free(tmp_tree_read(path, &n));
    assert_int_equal(moeflux_session_state_bytes(s, MOEFLUX_STATE_V3), n);
    const struct snapshot_drafter part = {.n_rows = 7, .n_waiting = 1};
    size_t at = n - sizeof(uint64_t) - snapshot_drafter_bytes(m, &part);
    for (int i = 0; i < 3; i++) { /* rows, the first one's position, hidden states */
        uint8_t *bytes = tmp_tree_read(path, &n);
        bytes[at + 4 * (size_t)i] ^= 1;
        tmp_tree_write(tmp, "damaged", bytes, n);
        free(bytes);
        assert_int_equal(moeflux_session_load(s, tmp_tree_path(tmp, "damaged"), &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "rows of the drafter"));
        assert_int_equal(s->pos, 8);
    }
    moeflux_session_free(s);
    moeflux_model_close(m);
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(logits_agree_with_the_reference),
        cmocka_unit_test(rows_follow_the_sequence),
        cmocka_unit_test(embedding_and_head_are_the_models),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(forks_and_saved_states_have_the_rows),
        cmocka_unit_test(places_are_read_from_a_state_with_rows),
        cmocka_unit_test(a_damaged_part_is_refused),
    };
    return cmocka_run_group_tests(everywhere, NULL, NULL) +
           (device_is_vulkan() && device_is_software() ? 0 : cmocka_run_group_tests(on_hosts, NULL, NULL));
}
