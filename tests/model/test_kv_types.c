/* The KV cache in q8_0 (--kv-type) in small models of every mixer: logits near those of a float32 cache, the
 * same ones after any way to a position. That operations read and write its rows is the self-test's.
 *
 * suites: later vulkan cpu asan */
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

/* CHUNKS_AGREE: a number between two codes may become the other one in chunks of other sizes. */
struct model {
    const char *mixer, *dir;
    bool is_source; /* it is converted first */
    /* largest distance to a float32 cache, in parts of the largest logit; about twice what is found */
    float bound;
    uint32_t cut; /* a position after EARLY; of windows in another block of the cache */
};
static struct model models[] = {
    {"gqa", "tests/models/qwen3-odd/mlx", false, 5e-2f, 141},
    {"gqa with a recurrence", "tests/models/qwen-odd/mlx", false, 2e-3f, 141},
    {"windows", "tests/models/families/gptoss-odd", false, 3e-2f, 300},
    {"latents", "tests/models/deepseek-odd/mlx", false, 4e-2f, 141},
    {"an indexer", "tests/models/families/qw4-plain", true, 1e-3f, 141},
};
enum { N_MODELS = sizeof models / sizeof *models };
static const float CHUNKS_AGREE = 5e-3f;
static char *tmp;

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

static struct sequence open_q8(const struct model *m, uint32_t chunk, uint32_t n_slots, int32_t ids[TOKENS])
{
    struct sequence q = open_as(m, MOEFLUX_KV_TYPE_Q8_0, chunk, n_slots);
    sequence_ids(&q, 1, ids, TOKENS);
    return q;
}

static uint32_t n_tokens(void)
{
    return device_is_software() ? 150 : TOKENS;
}

/* A q8_0 cache is not as exact as a float32 one: a distance of 0 would mean that it is not used. */
static void logits_are_near_those_of_a_float32_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const struct model *m = &models[i];
        int32_t ids[TOKENS];
        float want[MAX_VOCAB], rows[MAX_VOCAB];
        struct sequence q = open_as(m, MOEFLUX_KV_TYPE_F32, 64, 0);
        sequence_ids(&q, 1, ids, TOKENS);
        sequence_eval(&q, ids, n_tokens(), want);
        sequence_close(&q);
        q = open_q8(m, 64, 0, ids);
        sequence_eval(&q, ids, n_tokens(), rows);
        float distance = sequence_distance(&q, rows, want);
        printf("%s: %.1e from a float32 cache\n", m->mixer, (double)distance);
        assert_true(distance > 1e-6f && distance <= m->bound);
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
            struct sequence q = open_q8(&models[i], sizes[k], 0, ids);
            sequence_eval(&q, ids, n_tokens(), k ? rows : first);
            float distance = k ? sequence_distance(&q, rows, first) : 0;
            printf("%s, chunks of %u: %.1e\n", models[i].mixer, sizes[k], (double)distance);
            assert_true(distance <= CHUNKS_AGREE);
            sequence_close(&q);
        }
    }
}

/* Continues after a cut, after a snapshot in another session, and with experts from disk, each with the bits
 * of a run without. */
static void a_sequence_has_the_same_bits_after_any_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const uint32_t cut = models[i].cut;
        int32_t ids[TOKENS];
        float want[MAX_VOCAB], early[MAX_VOCAB], rows[MAX_VOCAB];
        struct moeflux_err e = {0};
        const char *path = tmp_tree_path(tmp, "state");
        struct sequence q = open_q8(&models[i], 64, 0, ids);
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
        assert_true(sequence_distance(&q, rows, want) <= CHUNKS_AGREE);
        memcpy(want, rows, bytes);
        check_ok(moeflux_session_load(q.s, path, &e), &e);
        sequence_eval(&q, ids + 5, MORE, rows);
        assert_memory_equal(rows, want, bytes);
        sequence_close(&q);
        q = open_q8(&models[i], 64, 9, ids);
        check_ok(moeflux_session_load(q.s, path, &e), &e);
        sequence_eval(&q, ids + 5, MORE, rows);
        assert_memory_equal(rows, want, bytes);
        check_ok(moeflux_session_truncate(q.s, EARLY, &e), &e);
        sequence_eval(&q, ids + 5, MORE, rows);
        assert_true(sequence_distance(&q, rows, early) <= CHUNKS_AGREE);
        sequence_close(&q);
    }
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

/* A head of 64 numbers takes 72 bytes, and of 128 it takes 136; float32 takes 256 and 512. */
static void a_plan_counts_the_bytes_of_q8_0_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        static const enum moeflux_kv_type types[] = {MOEFLUX_KV_TYPE_F32, MOEFLUX_KV_TYPE_F16,
                                                     MOEFLUX_KV_TYPE_Q8_0};
        struct moeflux_err e = {0};
        struct moeflux_plan p[3];
        for (int k = 0; k < 3; k++) {
            const struct moeflux_options o = {.dir = models[i].dir,
                                              .device = getenv("MOEFLUX_DEVICE"),
                                              .kv_type = types[k],
                                              .context = CONTEXT};
            check_ok(device_make_plan(&o, &p[k], &e), &e);
        }
        assert_true(p[2].state_bytes < p[1].state_bytes && p[1].state_bytes < p[0].state_bytes);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_a_float32_cache),
        cmocka_unit_test(chunks_of_any_size_agree),
        cmocka_unit_test(a_sequence_has_the_same_bits_after_any_way),
        cmocka_unit_test(states_of_other_types_are_refused),
        cmocka_unit_test(a_plan_counts_the_bytes_of_q8_0_rows),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, convert_models, remove_models);
}
