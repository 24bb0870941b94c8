/* The state of a sequence, kept and cut, through moeflux.h: what comes after it is what would have come
 * without.
 *
 * The program runs itself, with --continue, as the process that takes over. Another argument names a part of
 * the tests, as "*cut*".
 *
 * suites: check asan */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "convert/convert.h"
#include "engine/session.h"
#include "golden.h"
#include "sequence.h"
#include "small_model.h"
#include "tmp_tree.h"

static const char ODD[] = "tests/models/qwen-odd/mlx", TINY[] = "tests/models/tiny",
                  DEEPSEEK[] = "tests/models/deepseek-odd/mlx", QWEN3[] = "tests/models/qwen3-odd/mlx",
                  GPT_OSS[] = "tests/models/families/gptoss-odd";
enum { CONTEXT = 1100, MAX_VOCAB = 2048, N_ROWS = 4, N_MORE = 8 };
static const char *self;

/* Goes on with other tokens: five at once, then three singly. Rows [N_ROWS][vocab]. */
static void go_on(struct sequence *q, float *rows)
{
    int32_t ids[N_MORE];
    sequence_ids(q, 5, ids, N_MORE);
    sequence_eval(q, ids, 5, rows);
    for (uint32_t i = 1; i < N_ROWS; i++)
        sequence_eval(q, ids + 4 + i, 1, rows + (size_t)i * q->vocab);
}

/* ---- another process ---- */

/* --continue DEVICE MODEL OUT FILE...: loads each and goes on; OUT gets the logits. */
static int continue_main(char **argv)
{
    struct sequence q = sequence_open(argv[1], *argv[0] ? argv[0] : NULL, 0, 0, CONTEXT);
    FILE *out = fopen(argv[2], "wb");
    float *rows = malloc(N_ROWS * q.vocab * sizeof *rows);
    bool ok = out && rows;
    for (char **file = argv + 3; ok && *file; file++) {
        struct moeflux_err e = {0};
        if (moeflux_session_load(q.s, *file, &e) < 0) {
            fprintf(stderr, "%s\n", e.text);
            ok = false;
            break;
        }
        go_on(&q, rows);
        ok = fwrite(rows, sizeof *rows, N_ROWS * (size_t)q.vocab, out) == N_ROWS * (size_t)q.vocab;
    }
    free(rows);
    sequence_close(&q);
    return ok && fclose(out) == 0 ? 0 : 1;
}

static void in_another_process(const char *device, const char *model, const char *out,
                               const char *const *files, uint32_t n)
{
    const char *argv[32] = {self, "--continue", device ? device : "", model, out};
    assert_true(n + 6 <= sizeof argv / sizeof *argv);
    memcpy(argv + 5, files, n * sizeof *files);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execv(self, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- saved and loaded ---- */

static const uint32_t POSITIONS[] = {1, 63, 64, 65, 1000};
enum { N_POSITIONS = 5 };

struct kept {
    const char *files[2 * N_POSITIONS]; /* files of both formats at each position */
    float *rows;                        /* [N_POSITIONS][N_ROWS][vocab]: of the run that never stopped */
};

/* One run through all positions; each time it goes on a little, and back. */
static void keep(struct sequence *q, const char *dir, uint32_t n_positions, struct kept *k)
{
    int32_t ids[1000];
    struct moeflux_err e = {0};
    sequence_ids(q, 0, ids, 1000);
    k->rows = malloc((size_t)N_POSITIONS * N_ROWS * q->vocab * sizeof *k->rows);
    assert_non_null(k->rows);
    for (uint32_t i = 0, pos = 0; i < n_positions; pos = POSITIONS[i++]) {
        char name[32];
        sequence_eval(q, ids + pos, POSITIONS[i] - pos, NULL);
        check_ok(moeflux_session_checkpoint(q->s, &e), &e);
        for (uint32_t format = 2; format <= 3; format++) {
            snprintf(name, sizeof name, "%u.v%u", POSITIONS[i], format);
            const char *path = k->files[2 * i + format - 2] = tmp_tree_path(dir, name);
            check_ok(moeflux_session_save(q->s, path, (enum moeflux_state_format)format, &e), &e);
            size_t n;
            free(tmp_tree_read(path, &n));
            assert_int_equal(n, moeflux_session_state_bytes(q->s, (enum moeflux_state_format)format));
        }
        go_on(q, k->rows + (size_t)i * N_ROWS * q->vocab);
        check_ok(moeflux_session_restore(q->s, POSITIONS[i], &e), &e);
    }
}

static void a_fresh_process_goes_on_with(const char *model)
{
    struct sequence q = sequence_open(model, NULL, 0, 0, CONTEXT);
    struct kept k;
    size_t n, one = (size_t)N_ROWS * q.vocab * sizeof(float);
    char *dir = tmp_tree_new();
    const char *out = tmp_tree_path(dir, "out");
    keep(&q, dir, N_POSITIONS, &k);
    in_another_process(NULL, model, out, k.files, 2 * N_POSITIONS);
    uint8_t *rows = tmp_tree_read(out, &n);
    assert_int_equal(n, 2 * N_POSITIONS * one);
    for (uint32_t i = 0; i < 2 * N_POSITIONS; i++)
        assert_memory_equal(rows + i * one, (uint8_t *)k.rows + i / 2 * one, one);
    free(rows);
    free(k.rows);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

static void tiny_goes_on_in_a_fresh_process(void **state)
{
    (void)state;
    a_fresh_process_goes_on_with(TINY);
}

static void qwen_odd_goes_on_in_a_fresh_process(void **state)
{
    (void)state;
    a_fresh_process_goes_on_with(ODD);
}

static void deepseek_odd_goes_on_in_a_fresh_process(void **state)
{
    (void)state;
    a_fresh_process_goes_on_with(DEEPSEEK);
}

static void qwen3_odd_goes_on_in_a_fresh_process(void **state)
{
    (void)state;
    a_fresh_process_goes_on_with(QWEN3);
}

/* Layers with windows. */
static void gptoss_odd_goes_on_in_a_fresh_process(void **state)
{
    (void)state;
    a_fresh_process_goes_on_with(GPT_OSS);
}

static void goes_on_across_backends(const char *model, const char *from, const char *to)
{
    struct sequence q = sequence_open(model, from, 0, 0, CONTEXT);
    struct kept k;
    char *dir = tmp_tree_new();
    const char *out = tmp_tree_path(dir, "out");
    keep(&q, dir, 3, &k);
    in_another_process(to, model, out, k.files, 6);
    uint8_t *bytes = tmp_tree_read(out, NULL);
    const float *rows = (const float *)(const void *)bytes;
    for (uint32_t i = 0; i < 6 * N_ROWS; i++)
        assert_true(sequence_distance(&q, rows + (size_t)i * q.vocab,
                                      k.rows + ((size_t)i / N_ROWS / 2 * N_ROWS + i % N_ROWS) * q.vocab) <=
                    sequence_tolerance(&q));
    free(bytes);
    free(k.rows);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

static void qwen_odd_goes_on_across_backends(void **state)
{
    (void)state;
    goes_on_across_backends(ODD, NULL, "reference");
    goes_on_across_backends(ODD, "reference", NULL);
}

static void deepseek_odd_goes_on_across_backends(void **state)
{
    (void)state;
    goes_on_across_backends(DEEPSEEK, NULL, "reference");
    goes_on_across_backends(DEEPSEEK, "reference", NULL);
}

static void qwen3_odd_goes_on_across_backends(void **state)
{
    (void)state;
    goes_on_across_backends(QWEN3, NULL, "reference");
    goes_on_across_backends(QWEN3, "reference", NULL);
}

/* ---- the reference implementation's state ---- */

/* state.v2 was written by the reference implementation after the first tokens of case 0. */
enum { N_REFERENCE = 5 };

struct expected {
    const struct golden_tensor *logits;
    float bound;
};

static int see_row(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    const struct expected *x = ctx;
    uint64_t vocab = x->logits->shape[1];
    const float *want = (const float *)x->logits->data + pos * vocab;
    (void)e;
    for (uint64_t i = 0; i < vocab; i++)
        assert_true(fabsf(row[i] - want[i]) <= x->bound);
    return 0;
}

static void the_reference_s_state_is_ours(const char *model, const char *golden, const char *path)
{
    char *dir = tmp_tree_new();
    struct sequence q = sequence_open(model, NULL, 0, 0, 64);
    struct golden g;
    struct moeflux_err e = {0};
    golden_open(&g, golden);
    const struct golden_tensor *tokens = golden_find(&g, 0, "tokens");
    struct expected x = {golden_find(&g, 0, "logits"),
                         moeflux_model_get_info(q.m).f16_products ? 2e-2f : 2e-4f};
    const int32_t *ids = tokens->data;
    struct moeflux_outputs outputs = {.each_logits = see_row, .ctx = &x};
    check_ok(moeflux_session_load(q.s, path, &e), &e);
    assert_int_equal(moeflux_session_position(q.s), N_REFERENCE);
    check_ok(
        moeflux_session_eval(q.s, ids + N_REFERENCE, (uint32_t)tokens->shape[0] - N_REFERENCE, &outputs, &e),
        &e);
    sequence_fresh(&q, ids, 2, ids + 2, N_REFERENCE - 2, NULL);
    check_ok(moeflux_session_save(q.s, tmp_tree_path(dir, "ours"), MOEFLUX_STATE_V2, &e), &e);
    size_t n, k;
    uint8_t *theirs = tmp_tree_read(path, &n), *ours = tmp_tree_read(tmp_tree_path(dir, "ours"), &k);
    assert_int_equal(n, k);
    assert_memory_equal(theirs, ours, 40);
    for (size_t i = 40; i < n; i += sizeof(float)) {
        float a, b;
        memcpy(&a, theirs + i, sizeof a);
        memcpy(&b, ours + i, sizeof b);
        assert_true(fabsf(a - b) <= 1e-4f * fmaxf(1, fabsf(a)));
    }
    free(theirs);
    free(ours);
    golden_close(&g);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

static void qwen_odd_s_reference_state_is_ours(void **state)
{
    (void)state;
    the_reference_s_state_is_ours(ODD, "tests/models/qwen-odd/golden.safetensors",
                                  "tests/models/qwen-odd/state.v2");
}

static void deepseek_odd_s_reference_state_is_ours(void **state)
{
    (void)state;
    the_reference_s_state_is_ours(DEEPSEEK, "tests/models/deepseek-odd/golden.safetensors",
                                  "tests/models/deepseek-odd/state.v2");
}

/* ---- cut ---- */

/* Loads a sequence of n tokens with a checkpoint after `mark` from a file. */
static const char *make_marked(struct sequence *q, const char *dir, const int32_t *ids, uint32_t mark,
                               uint32_t n)
{
    const char *path = tmp_tree_path(dir, "marked");
    struct moeflux_err e = {0};
    sequence_eval(q, ids, mark, NULL);
    check_ok(moeflux_session_checkpoint(q->s, &e), &e);
    sequence_eval(q, ids + mark, n - mark, NULL);
    check_ok(moeflux_session_save(q->s, path, MOEFLUX_STATE_V3, &e), &e);
    return path;
}

/* The cut at p goes on as a run with the same chunks does, byte for byte, and as one without that boundary
 * does, nearly. */
static void cut_and_go_on(struct sequence *q, const char *marked, const int32_t *ids, uint32_t mark,
                          uint32_t p)
{
    float cut[MAX_VOCAB], same[MAX_VOCAB], plain[MAX_VOCAB];
    int32_t more[3];
    struct moeflux_err e = {0};
    sequence_ids(q, 7, more, 3);
    check_ok(moeflux_session_load(q->s, marked, &e), &e);
    check_ok(moeflux_session_truncate(q->s, p, &e), &e);
    assert_int_equal(moeflux_session_position(q->s), p);
    assert_memory_equal(moeflux_session_history(q->s), ids, p * sizeof *ids);
    sequence_eval(q, more, 3, cut);
    sequence_fresh(q, ids, p, more, 3, plain);
    if (p > mark) {
        check_ok(moeflux_session_clear(q->s, &e), &e);
        sequence_eval(q, ids, mark, NULL);
        sequence_eval(q, ids + mark, p - mark, NULL);
        sequence_eval(q, more, 3, same);
        assert_true(sequence_distance(q, cut, plain) <= sequence_tolerance(q));
    } else {
        memcpy(same, plain, sizeof same);
    }
    assert_memory_equal(cut, same, q->vocab * sizeof *cut);
}

static void cuts_of(const char *model, uint32_t mark, uint32_t n, const uint32_t *p, uint32_t n_p)
{
    char *dir = tmp_tree_new();
    struct sequence q = sequence_open(model, NULL, 64, 0, 512);
    int32_t ids[300];
    sequence_ids(&q, 1, ids, n);
    const char *marked = make_marked(&q, dir, ids, mark, n);
    for (uint32_t i = 0; i < n_p; i++)
        cut_and_go_on(&q, marked, ids, mark, p[i]);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

static void a_cut_sequence_goes_on_as_a_fresh_one(void **state)
{
    (void)state;
    /* Around chunks, the checkpoint, and blocks of the KV cache. */
    static const uint32_t p[] = {0,   1,   2,   3,   4,   62,  63,  64,  65,  66,  99,  100, 101, 102,
                                 127, 128, 129, 163, 164, 165, 191, 193, 228, 254, 255, 256, 257, 299};
    char *dir = tmp_tree_new();
    cuts_of(small_model_make(dir, 1), 100, 300, p, sizeof p / sizeof *p);
    tmp_tree_remove(dir);
}

static void qwen_odd_cut_goes_on_as_a_fresh_one(void **state)
{
    (void)state;
    static const uint32_t p[] = {1, 65, 100, 101, 129};
    cuts_of(ODD, 100, 130, p, sizeof p / sizeof *p);
}

/* Without recurrent layers nothing is evaluated again: the boundaries are those of the first run. */
static void is_cut_anywhere(const char *model)
{
    static const uint32_t p[] = {1, 65, 100, 101, 129, 259};
    struct sequence q = sequence_open(model, NULL, 64, 0, 512);
    struct moeflux_stats stats;
    int32_t ids[260], more[3];
    float cut[MAX_VOCAB], plain[MAX_VOCAB];
    struct moeflux_err e = {0};
    sequence_ids(&q, 1, ids, 260);
    sequence_ids(&q, 7, more, 3);
    assert_true((moeflux_session_checkpoint_bytes(q.s) > 0) == !strcmp(model, GPT_OSS));
    for (uint32_t i = 0; i < sizeof p / sizeof *p; i++) {
        sequence_fresh(&q, NULL, 0, ids, p[i] + 1, NULL);
        moeflux_model_reset_stats(q.m);
        check_ok(moeflux_session_truncate(q.s, p[i], &e), &e);
        moeflux_model_get_stats(q.m, &stats);
        assert_int_equal(stats.n_prefill_tokens + stats.n_decode_tokens, 0);
        sequence_eval(&q, more, 3, cut);
        sequence_fresh(&q, ids, p[i], more, 3, plain);
        assert_true(sequence_distance(&q, cut, plain) <= sequence_tolerance(&q));
    }
    sequence_close(&q);
}

static void deepseek_odd_is_cut_anywhere(void **state)
{
    (void)state;
    is_cut_anywhere(DEEPSEEK);
}

static void qwen3_odd_is_cut_anywhere(void **state)
{
    (void)state;
    is_cut_anywhere(QWEN3);
}

static void gptoss_odd_is_cut_anywhere(void **state)
{
    (void)state;
    is_cut_anywhere(GPT_OSS);
}

/* Evaluates n tokens in chunks of 64, with checkpoints after 640 and 1536 of them. */
static void fill_windows(struct sequence *q, const int32_t *ids, uint32_t n)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(q->s, &e), &e);
    for (uint32_t pos = 0; pos < n;) {
        uint32_t end = pos < 640 ? 640 : pos < 1536 ? 1536 : n;
        sequence_eval(q, ids + pos, end - pos, NULL);
        check_ok(end < n ? moeflux_session_checkpoint(q->s, &e) : 0, &e);
        pos = end;
    }
}

enum { WINDOW_TOKENS = 1900 };

static void a_window_that_has_dropped_rows_goes_back_by_checkpoints(void **state)
{
    static const struct {
        uint32_t pos, n_again;
    } cuts[] = {{1890, 0}, {1500, 0}, {1270, 630}, {700, 60}, {640, 0}, {600, 600}};
    struct sequence q = sequence_open(GPT_OSS, NULL, 64, 0, 2048);
    struct moeflux_err e = {0};
    struct moeflux_stats stats;
    int32_t ids[WINDOW_TOKENS], more[3];
    float got[MAX_VOCAB], want[MAX_VOCAB];
    (void)state;
    sequence_ids(&q, 1, ids, WINDOW_TOKENS);
    sequence_ids(&q, 7, more, 3);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fill_windows(&q, ids, WINDOW_TOKENS);
        assert_true(q.s->on[0].tables[ARCH_WINDOW].n < q.s->n_blocks);
        moeflux_model_reset_stats(q.m);
        check_ok(moeflux_session_truncate(q.s, cuts[i].pos, &e), &e);
        moeflux_model_get_stats(q.m, &stats);
        assert_int_equal(stats.n_prefill_tokens + stats.n_decode_tokens, cuts[i].n_again);
        sequence_eval(&q, more, 3, got);
        sequence_fresh(&q, ids, cuts[i].pos, more, 3, want);
        assert_true(sequence_distance(&q, got, want) <= sequence_tolerance(&q));
    }
    sequence_close(&q);
}

static void a_saved_state_has_the_last_rows_of_windows(void **state)
{
    struct sequence q = sequence_open(GPT_OSS, NULL, 64, 0, 2048);
    struct moeflux_err e = {0};
    struct moeflux_state_info info;
    int32_t ids[WINDOW_TOKENS], more[3];
    float got[MAX_VOCAB], want[MAX_VOCAB];
    char *dir = tmp_tree_new();
    const char *path = tmp_tree_path(dir, "state");
    (void)state;
    sequence_ids(&q, 1, ids, WINDOW_TOKENS);
    sequence_ids(&q, 7, more, 3);
    fill_windows(&q, ids, WINDOW_TOKENS);
    check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
    assert_int_equal(moeflux_session_save(q.s, tmp_tree_path(dir, "old"), MOEFLUX_STATE_V2, &e),
                     ERR_UNSUPPORTED);
    check_ok(moeflux_read_state_info(path, &info, &e), &e);
    assert_true(info.version == 4 && info.n_checkpoints == 2);
    assert_int_equal(info.bytes, moeflux_session_state_bytes(q.s, MOEFLUX_STATE_V3));
    sequence_eval(&q, more, 3, want);
    check_ok(moeflux_session_clear(q.s, &e), &e);
    check_ok(moeflux_session_load(q.s, path, &e), &e);
    sequence_eval(&q, more, 3, got);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    check_ok(moeflux_session_restore(q.s, 640, &e), &e);
    sequence_eval(&q, more, 3, got);
    sequence_fresh(&q, ids, 640, more, 3, want);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    tmp_tree_remove(dir);
    sequence_close(&q);
}

/* ---- reused ---- */

static uint64_t n_computed(const struct sequence *q)
{
    struct moeflux_stats stats;
    moeflux_model_get_stats(q->m, &stats);
    return stats.n_prefill_tokens + stats.n_decode_tokens;
}

static void a_prefix_is_computed_once(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct sequence q = sequence_open(small_model_make(dir, 1), NULL, 64, 0, 512);
    int32_t ids[300];
    uint32_t reused, pos[8];
    float got[MAX_VOCAB], want[MAX_VOCAB];
    struct moeflux_err e = {0};
    sequence_ids(&q, 2, ids, 300);
    moeflux_session_set_checkpoint_every(q.s, 100);
    sequence_eval(&q, ids, 300, NULL);
    /* Chunks end at 64, 128, 192, 256, 300. */
    assert_int_equal(moeflux_session_list_checkpoints(q.s, pos, 8), 2);
    assert_true(pos[0] == 128 && pos[1] == 256);
    uint64_t before = n_computed(&q);
    ids[280] = (ids[280] + 1) % (int32_t)q.vocab;
    check_ok(moeflux_session_reuse(q.s, ids, 300, &reused, &e), &e);
    assert_int_equal(reused, 256);
    assert_int_equal(n_computed(&q), before);
    sequence_eval(&q, ids + reused, 300 - reused, got);
    assert_int_equal(n_computed(&q) - before, 300 - 256);
    /* The same once more: the last token's logits have to be computed. */
    check_ok(moeflux_session_reuse(q.s, ids, 300, &reused, &e), &e);
    assert_int_equal(reused, 256);
    sequence_eval(&q, ids + reused, 300 - reused, want);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    sequence_fresh(&q, NULL, 0, ids, 300, want);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    ids[0]++;
    check_ok(moeflux_session_reuse(q.s, ids, 300, &reused, &e), &e);
    assert_int_equal(reused, 0);
    sequence_refused(moeflux_session_reuse(q.s, ids, 0, &reused, &e), &e, ERR_USAGE, "no tokens");
    sequence_close(&q);
    tmp_tree_remove(dir);
}

/* Evaluates ids [90] with a checkpoint at 77 on the way: in one evaluation, or cut there. Then goes back to
 * it and on with the last 13 otherwise. Rows [2][vocab]: after both. */
static void with_a_checkpoint_inside(struct sequence *q, const int32_t *ids, bool cut, float *rows)
{
    enum { N = 90, AT = 77 };
    struct moeflux_err e = {0};
    int32_t other[N - AT];
    uint32_t pos[4];
    check_ok(moeflux_session_clear(q->s, &e), &e);
    moeflux_session_checkpoint_at(q->s, AT);
    if (cut)
        sequence_eval(q, ids, AT, NULL);
    uint32_t done = cut ? AT : 0;
    sequence_eval(q, ids + done, N - done, rows);
    assert_int_equal(moeflux_session_list_checkpoints(q->s, pos, 4), 1);
    assert_int_equal(pos[0], AT);
    check_ok(moeflux_session_restore(q->s, AT, &e), &e);
    sequence_ids(q, 6, other, N - AT);
    sequence_eval(q, other, N - AT, rows + q->vocab);
    /* It was of that one evaluation. */
    check_ok(moeflux_session_drop_checkpoint(q->s, AT, &e), &e);
    check_ok(moeflux_session_clear(q->s, &e), &e);
    sequence_eval(q, ids, N, NULL);
    assert_int_equal(moeflux_session_list_checkpoints(q->s, pos, 4), 0);
}

static void an_evaluation_leaves_a_checkpoint_inside(void **state)
{
    (void)state;
    static const char *const models[] = {ODD, QWEN3};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t chunk = 0; chunk <= 64; chunk += 32) {
            struct sequence q = sequence_open(models[i], NULL, chunk, 0, 512);
            int32_t ids[90];
            float *got = malloc(2 * q.vocab * sizeof *got), *want = malloc(2 * q.vocab * sizeof *want);
            assert_true(got && want);
            sequence_ids(&q, 7, ids, 90);
            with_a_checkpoint_inside(&q, ids, true, want);
            with_a_checkpoint_inside(&q, ids, false, got);
            for (uint32_t row = 0; row < 2 * q.vocab; row += q.vocab)
                assert_true(sequence_distance(&q, got + row, want + row) <= sequence_tolerance(&q));
            free(got);
            free(want);
            sequence_close(&q);
        }
}

/* ---- failures ---- */

static void unreadable_experts_cost_what_came_after_the_checkpoint(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    /* Packed: the file that is cut holds no other weights, which may be mapped. */
    const char *model = tmp_tree_path(dir, "model"),
               *path = tmp_tree_path(model, "packed_experts/layer_01.bin");
    struct convert_result r;
    struct moeflux_err e = {0};
    check_ok(convert_run(&(struct convert_options){.src = ODD, .dst = model}, &r, &e), &e);
    struct sequence q = sequence_open(model, NULL, 0, 3, 512);
    float want[MAX_VOCAB], got[MAX_VOCAB];
    int32_t ids[40];
    size_t n;
    sequence_ids(&q, 3, ids, 40);
    sequence_eval(&q, ids, 10, NULL);
    check_ok(moeflux_session_checkpoint(q.s, &e), &e);
    sequence_eval(&q, ids + 10, 30, want);
    check_ok(moeflux_session_restore(q.s, 10, &e), &e);
    uint8_t *bytes = tmp_tree_read(path, &n);
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, (off_t)n / 10), 0);
    int rc = moeflux_session_eval(q.s, ids + 10, 30, &(struct moeflux_outputs){.logits = got}, &e);
    sequence_refused(rc, &e, ERR_IO, "expert");
    assert_int_equal(moeflux_session_position(q.s), 10);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    /* Else the file counts as written in place. */
    const struct timespec times[] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    sequence_eval(&q, ids + 10, 30, got);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    free(bytes);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

static bool stop_again(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    (void)unit;
    (void)total;
    return strcmp(what, "reading again") != 0 || done < *(uint64_t *)ctx;
}

static void an_interrupted_cut_leaves_a_shorter_sequence(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    uint64_t limit = 32;
    const struct moeflux_options o = {.dir = small_model_make(dir, 1),
                                      .chunk = 16,
                                      .device = getenv("MOEFLUX_DEVICE"),
                                      .progress = {stop_again, &limit}};
    struct sequence q = {.vocab = SMALL_VOCAB};
    float got[MAX_VOCAB], want[MAX_VOCAB];
    int32_t ids[100];
    struct moeflux_err e = {0};
    check_ok(moeflux_model_open(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, 128, &e), &e);
    sequence_ids(&q, 0, ids, 100);
    sequence_eval(&q, ids, 100, NULL);
    sequence_refused(moeflux_session_truncate(q.s, 90, &e), &e, ERR_INTERRUPTED, "32 of 90");
    assert_int_equal(moeflux_session_position(q.s), 32);
    sequence_eval(&q, ids + 32, 9, got);
    sequence_fresh(&q, ids, 32, ids + 32, 9, want);
    assert_memory_equal(got, want, q.vocab * sizeof *got);
    sequence_close(&q);
    tmp_tree_remove(dir);
}

/* What layers chose for the last token of another state says nothing about the next one of this. */
static void predictions_do_not_survive_a_load(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    const char *model = small_model_make(dir, 1), *path = tmp_tree_path(dir, "state");
    struct moeflux_options o = {.dir = model,
                                .device = getenv("MOEFLUX_DEVICE"),
                                .prefetch = MOEFLUX_PREFETCH_PREVIOUS,
                                .context = 128};
    struct moeflux_plan p;
    struct moeflux_stats stats;
    struct sequence q = {.vocab = SMALL_VOCAB};
    const int32_t ids[] = {1, 2, 3};
    struct moeflux_err e = {0};
    check_ok(moeflux_make_plan(&o, &p, &e), &e);
    o.gpu_memory_bytes =
        p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes + 6 * p.slot_bytes;
    o.memory_bytes = p.is_unified ? 0 : 4 * p.slot_bytes;
    check_ok(moeflux_model_open(&q.m, &o, &e), &e);
    check_ok(moeflux_session_new(&q.s, q.m, 128, &e), &e);
    sequence_eval(&q, ids, 1, NULL);
    check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
    for (uint32_t loads = 0; loads < 2; loads++) {
        if (loads)
            check_ok(moeflux_session_load(q.s, path, &e), &e);
        moeflux_model_reset_stats(q.m);
        sequence_eval(&q, ids + 1, 1, NULL);
        moeflux_model_get_stats(q.m, &stats);
        assert_int_equal(stats.n_predictable > 0, !loads);
        check_ok(moeflux_session_restore(q.s, 0, &e), &e);
        sequence_eval(&q, ids + 2, 1, NULL);
    }
    sequence_close(&q);
    tmp_tree_remove(dir);
}

/* ---- the model's fingerprint ---- */

static uint64_t fingerprint_of(const char *model)
{
    struct sequence q = sequence_open(model, "reference", 0, 0, 16);
    uint64_t first, again;
    struct moeflux_err e = {0};
    check_ok(moeflux_model_fingerprint(q.m, &first, &e), &e);
    check_ok(moeflux_model_fingerprint(q.m, &again, &e), &e);
    assert_true(first == again);
    sequence_close(&q);
    return first;
}

static void layouts_share_a_fingerprint_and_models_do_not(void **state)
{
    (void)state;
    static const char *const plain[] = {TINY, ODD};
    char *dir = tmp_tree_new(), *other = tmp_tree_new();
    struct convert_result r;
    struct moeflux_err e = {0};
    for (size_t i = 0; i < 2; i++) {
        const char *packed = tmp_tree_path(dir, i ? "odd" : "tiny");
        check_ok(convert_run(&(struct convert_options){.src = plain[i], .dst = packed}, &r, &e), &e);
        assert_true(fingerprint_of(plain[i]) == fingerprint_of(packed));
    }
    const char *small = small_model_make(dir, 1), *changed = small_model_make(other, 2);
    uint64_t is = fingerprint_of(small);
    assert_true(is != fingerprint_of(changed));
    /* One bit of one weight. */
    size_t n;
    uint8_t *bytes = tmp_tree_read(tmp_tree_path(small, "model_weights.bin"), &n);
    bytes[100] ^= 1;
    tmp_tree_write(small, "model_weights.bin", bytes, n);
    assert_true(is != fingerprint_of(small));
    free(bytes);
    tmp_tree_remove(dir);
    tmp_tree_remove(other);
}

/* Otherwise states that were saved earlier are refused. */
static void quantised_models_keep_their_fingerprint(void **state)
{
    (void)state;
    assert_true(fingerprint_of(TINY) == 0x64eb5bd6d82b16bb);
    assert_true(fingerprint_of("tests/models/formats/every-f16") == 0x720d6ef2bb6b6d97);
    assert_true(fingerprint_of("tests/models/families/gptoss-odd") == 0xd726ee36945b2fa5);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_goes_on_in_a_fresh_process),
        cmocka_unit_test(qwen_odd_goes_on_in_a_fresh_process),
        cmocka_unit_test(qwen_odd_goes_on_across_backends),
        cmocka_unit_test(deepseek_odd_goes_on_in_a_fresh_process),
        cmocka_unit_test(qwen3_odd_goes_on_in_a_fresh_process),
        cmocka_unit_test(deepseek_odd_goes_on_across_backends),
        cmocka_unit_test(gptoss_odd_goes_on_in_a_fresh_process),
        cmocka_unit_test(qwen3_odd_goes_on_across_backends),
        cmocka_unit_test(deepseek_odd_is_cut_anywhere),
        cmocka_unit_test(qwen3_odd_is_cut_anywhere),
        cmocka_unit_test(gptoss_odd_is_cut_anywhere),
        cmocka_unit_test(a_window_that_has_dropped_rows_goes_back_by_checkpoints),
        cmocka_unit_test(a_saved_state_has_the_last_rows_of_windows),
        cmocka_unit_test(qwen_odd_s_reference_state_is_ours),
        cmocka_unit_test(deepseek_odd_s_reference_state_is_ours),
        cmocka_unit_test(a_cut_sequence_goes_on_as_a_fresh_one),
        cmocka_unit_test(qwen_odd_cut_goes_on_as_a_fresh_one),
        cmocka_unit_test(a_prefix_is_computed_once),
        cmocka_unit_test(an_evaluation_leaves_a_checkpoint_inside),
        cmocka_unit_test(unreadable_experts_cost_what_came_after_the_checkpoint),
        cmocka_unit_test(an_interrupted_cut_leaves_a_shorter_sequence),
        cmocka_unit_test(predictions_do_not_survive_a_load),
        cmocka_unit_test(layouts_share_a_fingerprint_and_models_do_not),
        cmocka_unit_test(quantised_models_keep_their_fingerprint),
    };
    self = argv[0];
    if (argc > 5 && !strcmp(argv[1], "--continue"))
        return continue_main(argv + 2);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
