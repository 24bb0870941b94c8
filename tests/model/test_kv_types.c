/* The KV cache in q8_0 (--kv-type) in small models of every mixer: logits near those of a float32 cache, the
 * same ones after any way to a position. That operations read and write its rows is the self-test's.
 *
 * suites: nightly vulkan cpu asan-nightly */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "convert/convert.h"
#include "device.h"
#include "sequence.h"
#include "tmp_tree.h"

enum { CONTEXT = 512, TOKENS = 330, EARLY = 70, MORE = 9, MAX_VOCAB = 1024 };

struct model {
    const char *mixer, *dir;
    bool is_source; /* it is converted first */
    /* largest distance to a float32 cache, in parts of the largest logit; about twice what is found */
    float bound;
    uint32_t cut;      /* a position after EARLY; of windows in another block of the cache */
    uint64_t bytes[3]; /* a position's in float32, float16 and q8_0, without those of windows */
};
static struct model models[] = {
    {"gqa", "tests/models/qwen3-odd/mlx", false, 5e-2f, 141, {1440, 720, 432}},
    {"gqa with a recurrence", "tests/models/qwen-odd/mlx", false, 2e-3f, 141, {2048, 1024, 576}},
    {"windows", "tests/models/families/gptoss-odd", false, 3e-2f, 300, {320, 160, 96}},
    {"latents", "tests/models/deepseek-odd/mlx", false, 4e-2f, 141, {3200, 1600, 880}},
    {"an indexer", "tests/models/families/qw4-plain", true, 1e-3f, 141, {528, 264, 168}},
    {"an indexer over latents", "tests/models/families/glm5-plain", true, 2e-2f, 141, {1216, 608, 392}},
    {"compressed rows", "tests/models/families/v4-plain", true, 2e-2f, 141, {65, 32, 26}},
};
enum { WINDOWS = 2, N_MODELS = sizeof models / sizeof *models };
/* A number between two codes may become the other one in chunks of other sizes. */
static const float CHUNKS_AGREE = 5e-3f;
static char *tmp;

static float chunks_agree(const struct model *m)
{
    return fminf(CHUNKS_AGREE, m->bound);
}

static int convert_models(void **state)
{
    (void)state;
    tmp = tmp_tree_new();
    for (size_t i = 0; i < N_MODELS; i++) {
        struct moeflux_err e = {0};
        struct convert_result r;
        const char *dst = tmp_tree_path(tmp, models[i].mixer);
        const struct convert_options o = {.src = models[i].dir, .dst = dst};
        if (!models[i].is_source)
            continue;
        check_ok(convert_run(&o, &r, &e), &e);
        models[i].dir = dst;
    }
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    tmp_tree_remove(tmp);
    return 0;
}

static struct sequence open_as(const struct model *m, enum moeflux_kv_type type, uint32_t chunk,
                               uint32_t n_slots)
{
    struct sequence q = sequence_open_kv(m->dir, NULL, type, chunk, n_slots, CONTEXT);
    assert_true(q.vocab <= MAX_VOCAB);
    return q;
}

/* Opens it and makes the ids of its tests. */
static struct sequence open_with(const struct model *m, enum moeflux_kv_type type, uint32_t chunk,
                                 uint32_t n_slots, int32_t ids[TOKENS])
{
    struct sequence q = open_as(m, type, chunk, n_slots);
    sequence_ids(&q, 1, ids, TOKENS);
    return q;
}

static uint32_t n_tokens(void)
{
    return device_is_software() ? 150 : TOKENS;
}

static void eval_all(const struct model *m, enum moeflux_kv_type type, float *rows)
{
    int32_t ids[TOKENS];
    struct sequence q = open_with(m, type, 64, 0, ids);
    sequence_eval(&q, ids, n_tokens(), rows);
    sequence_close(&q);
}

/* A q8_0 cache is not as exact as a float32 one: a distance of 0 would mean that it is not used. */
static void logits_are_near_those_of_a_float32_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const struct model *m = &models[i];
        float want[MAX_VOCAB], half[MAX_VOCAB], rows[MAX_VOCAB];
        eval_all(m, MOEFLUX_KV_TYPE_F32, want);
        eval_all(m, MOEFLUX_KV_TYPE_F16, half);
        struct sequence q = open_as(m, MOEFLUX_KV_TYPE_Q8_0, 64, 0);
        eval_all(m, MOEFLUX_KV_TYPE_Q8_0, rows);
        float f16 = sequence_distance(&q, half, want), q8_0 = sequence_distance(&q, rows, want);
        printf("%s: f16 %.1e, q8_0 %.1e from a float32 cache\n", m->mixer, (double)f16, (double)q8_0);
        assert_true(f16 < q8_0 && q8_0 > 1e-6f && q8_0 <= m->bound);
        sequence_close(&q);
    }
}

static void chunks_of_any_size_agree(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {64, 1, 7};
    for (size_t i = 0; i < N_MODELS; i++) {
        float first[MAX_VOCAB], rows[MAX_VOCAB];
        for (size_t k = 0; k < (device_is_software() ? 2 : 3); k++) {
            int32_t ids[TOKENS];
            struct sequence q = open_with(&models[i], MOEFLUX_KV_TYPE_Q8_0, sizes[k], 0, ids);
            sequence_eval(&q, ids, n_tokens(), k ? rows : first);
            float distance = k ? sequence_distance(&q, rows, first) : 0;
            printf("%s, chunks of %u: %.1e\n", models[i].mixer, sizes[k], (double)distance);
            assert_true(distance <= chunks_agree(&models[i]));
            sequence_close(&q);
        }
    }
}

/* Continues after a cut, after a snapshot in another session, and with experts from disk, each with the bits
 * of a run without. */
static void go_any_way(const struct model *m, enum moeflux_kv_type type)
{
    const uint32_t cut = m->cut;
    int32_t ids[TOKENS];
    float want[MAX_VOCAB], early[MAX_VOCAB], rows[MAX_VOCAB];
    struct moeflux_err e = {0};
    const char *path = tmp_tree_path(tmp, "state");
    struct sequence q = open_with(m, type, 64, 0, ids);
    size_t bytes = q.vocab * sizeof *want;
    sequence_fresh(&q, ids, EARLY, ids + 5, MORE, early);
    sequence_fresh(&q, ids, cut, ids + 5, MORE, want);
    check_ok(moeflux_session_clear(q.s, &e), &e);
    moeflux_session_checkpoint_at(q.s, EARLY);
    sequence_eval(&q, ids, cut - 1, NULL);
    moeflux_session_checkpoint_at(q.s, cut);
    sequence_eval(&q, ids + cut - 1, 2 * MORE, NULL);
    check_ok(moeflux_session_truncate(q.s, cut, &e), &e);
    check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
    sequence_eval(&q, ids + 5, MORE, rows);
    assert_true(sequence_distance(&q, rows, want) <= chunks_agree(m));
    memcpy(want, rows, bytes);
    check_ok(moeflux_session_load(q.s, path, &e), &e);
    sequence_eval(&q, ids + 5, MORE, rows);
    assert_memory_equal(rows, want, bytes);
    sequence_close(&q);
    q = open_with(m, type, 64, 9, ids);
    check_ok(moeflux_session_load(q.s, path, &e), &e);
    sequence_eval(&q, ids + 5, MORE, rows);
    assert_memory_equal(rows, want, bytes);
    check_ok(moeflux_session_truncate(q.s, EARLY, &e), &e);
    sequence_eval(&q, ids + 5, MORE, rows);
    assert_true(sequence_distance(&q, rows, early) <= chunks_agree(m));
    sequence_close(&q);
}

static void a_sequence_has_the_same_bits_after_any_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        go_any_way(&models[i], MOEFLUX_KV_TYPE_Q8_0);
}

/* Rows before a window that nobody wrote are NaN in float16, too (main). */
static void a_float16_one_with_windows_has_them_too(void **state)
{
    (void)state;
    go_any_way(&models[WINDOWS], MOEFLUX_KV_TYPE_F16);
}

/* A state is refused by a cache of another type, in both directions. */
static void states_of_other_types_are_refused(void **state)
{
    (void)state;
    static const enum moeflux_kv_type types[] = {MOEFLUX_KV_TYPE_Q8_0, MOEFLUX_KV_TYPE_F16};
    for (size_t i = 0; i < N_MODELS; i++) {
        const char *path[] = {tmp_tree_path(tmp, "q8"), tmp_tree_path(tmp, "f16")};
        struct moeflux_err e = {0};
        struct sequence q[2];
        for (int k = 0; k < 2; k++) {
            int32_t ids[5];
            q[k] = sequence_open_kv(models[i].dir, "reference", types[k], 64, 0, CONTEXT);
            sequence_ids(&q[k], 1, ids, 5);
            sequence_eval(&q[k], ids, 5, NULL);
            check_ok(moeflux_session_save(q[k].s, path[k], MOEFLUX_STATE_V3, &e), &e);
        }
        sequence_refused(moeflux_session_load(q[0].s, path[1], &e), &e, ERR_FORMAT,
                         "is float16, this one's q8_0");
        sequence_refused(moeflux_session_load(q[1].s, path[0], &e), &e, ERR_FORMAT,
                         "is q8_0, this one's float16");
        sequence_close(&q[0]);
        sequence_close(&q[1]);
    }
}

/* A head of 20 numbers takes 24 bytes in q8_0, one of 64 takes 72; a row of latents with 160 takes 176. */
static void a_position_takes_the_bytes_of_its_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        static const enum moeflux_kv_type types[] = {MOEFLUX_KV_TYPE_F32, MOEFLUX_KV_TYPE_F16,
                                                     MOEFLUX_KV_TYPE_Q8_0};
        const struct model *m = &models[i];
        struct moeflux_err e = {0};
        struct moeflux_plan p[3];
        for (int k = 0; k < 3; k++) {
            const struct moeflux_options o = {
                .dir = m->dir, .device = getenv("MOEFLUX_DEVICE"), .kv_type = types[k], .context = CONTEXT};
            struct moeflux_needs needs;
            check_ok(moeflux_get_needs_with(&o, &needs, &e), &e);
            assert_int_equal(needs.kv_bytes_per_pos, m->bytes[k]);
            check_ok(device_make_plan(&o, &p[k], &e), &e);
        }
        assert_true(p[2].state_bytes < p[1].state_bytes && p[1].state_bytes < p[0].state_bytes);
    }
}

/* Memory that nobody wrote has the byte 0xfe: a float16 NaN, and so a scale of q8_0. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_a_float32_cache),
        cmocka_unit_test(chunks_of_any_size_agree),
        cmocka_unit_test(a_sequence_has_the_same_bits_after_any_way),
        cmocka_unit_test(a_float16_one_with_windows_has_them_too),
        cmocka_unit_test(states_of_other_types_are_refused),
        cmocka_unit_test(a_position_takes_the_bytes_of_its_rows),
    };
    mallopt(M_PERTURB, 0xff ^ 0xfe);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, convert_models, remove_models);
}
