/* States of models of several kinds of layers, Qwen3.8-Flash-Next, Gemma 4, GLM-5, Kimi-Linear, Ling-3.0,
 * DeepSeek-V4, GLM-5.3-Flash, MiniMax-M3, Step-3.5 and MiMo-V2, on small published models, converted: chunks
 * of any size, going back, snapshots, batched decode, streamed experts. Their logits are test_golden.c's.
 *
 * suites: check asan-nightly */
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

enum { CONTEXT = 700, TOKENS = 330, VOCAB = 103, N_MODELS = 17 };
#define QWEN4 "tests/models/families/qw4-plain"
#define GLM5  "tests/models/families/glm5-plain"
static const struct {
    const char *path;
    bool leaves_out; /* has a vision part, or layers for multi-token prediction */
} sources[N_MODELS] = {
    {QWEN4, false},
    {"tests/models/families/qw4-odd", true},
    {"tests/models/families/gemma4-plain", false},
    {"tests/models/families/gemma4-odd", true},
    {GLM5, true},
    {"tests/models/families/kimilin-odd", false},
    {"tests/models/families/ling-flash", false},
    {"tests/models/families/v4-plain", true},
    {"tests/models/families/v4-odd", false},
    {"tests/models/families/v41-odd", false},
    {"tests/models/families/glm53f-odd", true},
    {"tests/models/families/m3-odd", true},
    {"tests/models/families/step-plain", true},
    {"tests/models/families/mimo-odd", false},
    {"tests/models/families/nemo-odd", false},
    {"tests/models/families/nemo-latent", false},
    {"tests/models/families/k3-plain", true},
};
static const char *models[N_MODELS];
static char *tmp;

static int convert_models(void **state)
{
    (void)state;
    tmp = tmp_tree_new();
    for (int i = 0; i < N_MODELS; i++) {
        struct moeflux_err e = {0};
        struct convert_result r;
        models[i] = tmp_tree_path(tmp, strrchr(sources[i].path, '/') + 1);
        const struct convert_options o = {.src = sources[i].path, .dst = models[i]};
        check_ok(convert_run(&o, &r, &e), &e);
        assert_int_equal(r.n_left_out > 0, sources[i].leaves_out);
    }
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    tmp_tree_remove(tmp);
    return 0;
}

static struct sequence open_model(int i, uint32_t chunk, uint32_t n_slots, int32_t ids[TOKENS])
{
    struct sequence q = sequence_open(models[i], NULL, chunk, n_slots, CONTEXT);
    assert_int_equal(q.vocab, VOCAB);
    sequence_ids(&q, 1, ids, TOKENS);
    return q;
}

static uint32_t n_tokens(void)
{
    return device_is_software() ? 150 : TOKENS;
}

static void chunks_of_any_size_agree(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {512, 64, 7, 1};
    for (int i = 0; i < N_MODELS; i++) {
        float first[VOCAB], rows[VOCAB];
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int32_t ids[TOKENS];
            struct sequence q = open_model(i, sizes[k], 0, ids);
            sequence_eval(&q, ids, n_tokens(), k ? rows : first);
            if (k > 0)
                assert_true(sequence_distance(&q, rows, first) < sequence_tolerance(&q));
            sequence_close(&q);
        }
    }
}

/* Checkpoints inside a chunk, after one, and none. */
static void a_truncated_sequence_is_that_of_a_fresh_run(void **state)
{
    (void)state;
    static const uint32_t cuts[] = {1, 2, 63, 64, 100, 141};
    for (int i = 0; i < N_MODELS; i++)
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            int32_t ids[TOKENS];
            float want[VOCAB], rows[VOCAB];
            struct moeflux_err e = {0};
            struct sequence q = open_model(i, 64, 0, ids);
            uint32_t n = n_tokens();
            sequence_fresh(&q, ids, cuts[k], ids + 5, 9, want);
            check_ok(moeflux_session_clear(q.s, &e), &e);
            if (k % 2)
                moeflux_session_checkpoint_at(q.s, cuts[k]);
            sequence_eval(&q, ids, n, NULL);
            check_ok(moeflux_session_truncate(q.s, cuts[k], &e), &e);
            assert_int_equal(moeflux_session_position(q.s), cuts[k]);
            sequence_eval(&q, ids + 5, 9, rows);
            assert_true(sequence_distance(&q, rows, want) < sequence_tolerance(&q));
            sequence_close(&q);
        }
}

static void a_snapshot_continues_byte_for_byte(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        for (uint32_t n = 1; n < n_tokens(); n = 2 * n + 1) {
            int32_t ids[TOKENS];
            float want[VOCAB], rows[VOCAB];
            struct moeflux_err e = {0};
            const char *path = tmp_tree_path(tmp, "state");
            struct sequence q = open_model(i, 64, 0, ids);
            sequence_eval(&q, ids, n, NULL);
            check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
            sequence_eval(&q, ids + n, 9, want);
            sequence_close(&q);
            q = open_model(i, 64, 0, ids);
            check_ok(moeflux_session_load(q.s, path, &e), &e);
            sequence_eval(&q, ids + n, 9, rows);
            assert_memory_equal(rows, want, sizeof want);
            if (strstr(sources[i].path, "qw4")) /* the others' stores are younger than that version */
                sequence_refused(moeflux_session_save(q.s, path, MOEFLUX_STATE_V2, &e), &e, ERR_UNSUPPORTED,
                                 "version 2");
            sequence_close(&q);
        }
}

static void batched_decode_is_batch_invariant(void **state)
{
    (void)state;
    enum { N = 3, STEPS = 6 };
    for (int i = 0; i < N_MODELS; i++) {
        int32_t ids[TOKENS];
        float want[N][VOCAB], rows[N][VOCAB];
        float *to[N] = {rows[0], rows[1], rows[2]};
        struct moeflux_session *list[N];
        struct moeflux_err e = {0};
        struct sequence q = open_model(i, 64, 0, ids);
        /* One before its first choice, one that makes it, one after it. */
        static const uint32_t lengths[N] = {3, 60, 131};
        for (int k = 0; k < N; k++) {
            check_ok(moeflux_session_clear(q.s, &e), &e);
            sequence_eval(&q, ids + k, lengths[k], NULL);
            for (int step = 0; step < STEPS; step++)
                sequence_eval(&q, ids + 10 * k + step, 1, want[k]);
            check_ok(moeflux_session_new(&list[k], q.m, CONTEXT, &e), &e);
            check_ok(moeflux_session_eval(list[k], ids + k, lengths[k], &(struct moeflux_outputs){0}, &e),
                     &e);
        }
        for (int step = 0; step < STEPS; step++) {
            const int32_t next[N] = {ids[step], ids[10 + step], ids[20 + step]};
            check_ok(moeflux_eval_batched(list, next, N, to, &e), &e);
        }
        assert_memory_equal(rows, want, sizeof want);
        for (int k = 0; k < N; k++)
            moeflux_session_free(list[k]);
        sequence_close(&q);
    }
}

static void streamed_experts_give_the_same_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float rows[2][VOCAB];
        for (uint32_t k = 0; k < 2; k++) {
            int32_t ids[TOKENS];
            struct sequence q = open_model(i, 64, k ? 4 : 0, ids);
            sequence_eval(&q, ids, n_tokens(), NULL);
            for (int step = 0; step < 4; step++)
                sequence_eval(&q, ids + step, 1, rows[k]);
            sequence_close(&q);
        }
        assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
    }
}

/* GLM-5's budget is 40 positions; with a larger one none of these tokens has a choice. */
static void up_to_the_budget_a_token_sees_everything(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    const char *wide = tmp_tree_path(dir, "wide");
    tmp_tree_copy(GLM5, wide);
    tmp_tree_replace(wide, "config.json", "\"index_topk\": 40", "\"index_topk\": 4000");
    for (uint32_t n = 40; n <= 41; n++) {
        int32_t ids[TOKENS];
        float rows[VOCAB], want[VOCAB];
        struct sequence q = sequence_open(GLM5, NULL, 64, 0, CONTEXT),
                        all = sequence_open(wide, NULL, 64, 0, CONTEXT);
        sequence_ids(&q, 1, ids, TOKENS);
        sequence_eval(&q, ids, n, rows);
        sequence_eval(&all, ids, n, want);
        if (n == 40)
            assert_memory_equal(rows, want, sizeof want);
        else
            assert_true(sequence_distance(&q, rows, want) > 1e-3f);
        sequence_close(&q);
        sequence_close(&all);
    }
    tmp_tree_remove(dir);
}

static void refuse(const char *key, const char *with, int code, const char *text)
{
    struct moeflux_err e = {0};
    struct convert_result r;
    char *dir = tmp_tree_new();
    const char *src = tmp_tree_path(dir, "model");
    tmp_tree_copy(QWEN4, src);
    tmp_tree_replace(src, "config.json", key, with);
    const struct convert_options o = {.src = src, .dst = tmp_tree_path(dir, "out")};
    sequence_refused(convert_run(&o, &r, &e), &e, code, text);
    tmp_tree_remove(dir);
}

static void what_is_not_computed_is_refused(void **state)
{
    (void)state;
    refuse("\"indexer_compress_ratio\": 4", "\"indexer_compress_ratio\": 3", ERR_FORMAT, "indexer_budget");
    refuse("\"indexer_budget\": 128", "\"budget\": 128", ERR_FORMAT, "indexer_budget");
    refuse("\"output_gate_type\": \"sigmoid\"", "\"output_gate_type\": \"tanh\"", ERR_UNSUPPORTED,
           "output_gate_type is tanh");
    refuse("\"ngram_size\": 3", "\"ngram_size\": 5", ERR_FORMAT, "ngram_size");
    refuse("\"ngram_vocab_size_base\": 300", "\"ngram_vocab_size_base\": 900", ERR_FORMAT, "shard_4");
    refuse("\"ple_layer_ids\": [\n  2", "\"ple_layer_ids\": [\n  3", ERR_UNSUPPORTED,
           "layer 3 has attention");
    refuse("\"hc_count\": 4", "\"hc_count\": 2", ERR_FORMAT, "hyper_connection");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_any_size_agree),
        cmocka_unit_test(a_truncated_sequence_is_that_of_a_fresh_run),
        cmocka_unit_test(a_snapshot_continues_byte_for_byte),
        cmocka_unit_test(batched_decode_is_batch_invariant),
        cmocka_unit_test(streamed_experts_give_the_same_bytes),
        cmocka_unit_test(up_to_the_budget_a_token_sees_everything),
        cmocka_unit_test(what_is_not_computed_is_refused),
    };
    return cmocka_run_group_tests(tests, convert_models, remove_models);
}
