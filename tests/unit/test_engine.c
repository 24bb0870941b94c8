/* The engine through moeflux.h: what a caller may rely on, whatever the cache, the chunk and what ran before.
 * On a Vulkan device what its memory, commands and errors take part in, on hosts the rest too. MOEFLUX_DEVICE
 * names another device than the default one; an argument a part of the tests, as "*cache".
 *
 * suites: gpu vulkan cpu long asan */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "device.h"
#include "engine/test_hooks.h"
#include "moeflux.h"
#include "tmp_tree.h"

static const char ODD[] = "tests/models/qwen-odd/mlx", TINY[] = "tests/models/tiny",
                  DEEPSEEK[] = "tests/models/deepseek-odd/mlx", QWEN3[] = "tests/models/qwen3-odd/mlx";
enum { ODD_VOCAB = 1003, ODD_SLOT = 24576, N_PROMPT = 45 };

/* n_slots: device slots for experts, 0 for all of them. n_host: host slots below them, where device memory
 * is, or with `staged` is taken to be, apart from host memory. */
static struct moeflux_options options_with(const char *dir, uint32_t n_slots, uint32_t n_host,
                                           const struct test_hooks *hooks, uint32_t chunk)
{
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = dir, .chunk = chunk, .context = 1024, .device = device_name()};
    check_ok(test_hooks_make_plan(&o, hooks, &p, &e), &e);
    if (n_slots)
        o.gpu_memory_bytes =
            p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes + n_slots * p.slot_bytes;
    if (n_host && !p.is_unified)
        o.memory_bytes = n_host * p.slot_bytes;
    return o;
}

static struct moeflux_model *open_with(const char *dir, uint32_t n_slots, uint32_t n_host, bool staged,
                                       uint32_t chunk)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    const struct test_hooks hooks = {.staged = staged, .shelf = device_shelf()};
    const struct moeflux_options o = options_with(dir, n_slots, n_host, &hooks, chunk);
    check_ok(test_hooks_open(&m, &o, &hooks, &e), &e);
    return m;
}

static struct moeflux_model *open_model(const char *dir, uint32_t n_slots, uint32_t chunk)
{
    return open_with(dir, n_slots, n_slots, false, chunk);
}

static struct moeflux_session *open_session(struct moeflux_model *m)
{
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&s, m, 512, &e), &e);
    return s;
}

static void make_prompt(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919u + 13) % ODD_VOCAB);
}

static void eval(struct moeflux_session *s, const int32_t *ids, uint32_t n, float *logits)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){.logits = logits}, &e), &e);
}

/* Logits after the prompt and after three single tokens more. */
static void run(struct moeflux_session *s, float logits[4][ODD_VOCAB])
{
    int32_t ids[N_PROMPT + 3];
    make_prompt(ids, N_PROMPT + 3);
    eval(s, ids, N_PROMPT, logits[0]);
    for (uint32_t i = 0; i < 3; i++)
        eval(s, ids + N_PROMPT + i, 1, logits[i + 1]);
}

static float (*run_fresh(uint32_t n_slots, uint32_t n_host, bool staged))[ODD_VOCAB]
{
    struct moeflux_model *m = open_with(ODD, n_slots, n_host, staged, 32);
    struct moeflux_session *s = open_session(m);
    float(*logits)[ODD_VOCAB] = malloc(sizeof(float[4][ODD_VOCAB]));
    run(s, logits);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return logits;
}

static void logits_do_not_depend_on_the_cache(void **state)
{
    (void)state;
    float(*all)[ODD_VOCAB] = run_fresh(0, 0, false);
    /* The fewest that a token needs; on hosts more, too. */
    uint32_t most_slots = device_is_vulkan() ? 3 : 36;
    for (uint32_t slots = 3; slots <= most_slots; slots *= 4)
        for (int staged = 0; staged < 2; staged++) {
            float(*some)[ODD_VOCAB] = run_fresh(slots, 39 - slots, staged);
            assert_memory_equal(some, all, sizeof(float[4][ODD_VOCAB]));
            free(some);
        }
    float(*staged)[ODD_VOCAB] = run_fresh(0, 0, true);
    assert_memory_equal(staged, all, sizeof(float[4][ODD_VOCAB]));
    free(staged);
    free(all);
}

/* Pinned experts keep their slots: the experts of a chunk must go through the others. */
static void pinned_experts_leave_room_for_every_round(void **state)
{
    (void)state;
    enum { TOP_K = 3 };
    struct moeflux_err e = {0}, from_plan = {0};
    struct moeflux_model *m = open_with(ODD, 12, 12, false, 32);
    struct moeflux_session *s = open_session(m);
    float(*want)[ODD_VOCAB] = malloc(sizeof(float[4][ODD_VOCAB]));
    float(*got)[ODD_VOCAB] = malloc(sizeof(float[4][ODD_VOCAB]));
    char *tmp = tmp_tree_new();
    const char *usage = tmp_tree_path(tmp, "usage");
    run(s, want);
    check_ok(moeflux_model_save_usage(m, usage, &e), &e);
    moeflux_session_free(s);
    moeflux_model_close(m);
    static const uint32_t n_slots[] = {TOP_K, 2 * TOP_K, 2 * TOP_K + 1, 9, 20};
    size_t n_opens = device_is_vulkan() ? 3 : sizeof n_slots / sizeof *n_slots;
    /* Hosts have one memory: there are no copies to stage. */
    const struct test_hooks hooks = {.staged = device_is_vulkan(), .shelf = device_shelf()};
    for (size_t i = 0; i < n_opens; i++) {
        uint32_t slots = n_slots[i];
        struct moeflux_options o = options_with(ODD, slots, 12, &hooks, 32);
        struct moeflux_plan p;
        struct moeflux_stats t;
        o.pin = usage;
        if (slots <= 2 * TOP_K) {
            assert_int_equal(test_hooks_make_plan(&o, &hooks, &p, &from_plan), ERR_NO_FIT);
            assert_int_equal(test_hooks_open(&m, &o, &hooks, &e), ERR_NO_FIT);
            assert_string_equal(e.text, from_plan.text);
            assert_non_null(strstr(e.text, "`pin`"));
            continue;
        }
        check_ok(test_hooks_make_plan(&o, &hooks, &p, &e), &e);
        check_ok(test_hooks_open(&m, &o, &hooks, &e), &e);
        moeflux_model_get_stats(m, &t);
        assert_int_equal(t.n_slots, slots);
        assert_int_equal(t.n_pinned, p.n_pinned);
        assert_in_range(t.n_pinned, 1, slots - 2 * TOP_K);
        s = open_session(m);
        run(s, got);
        assert_memory_equal(got, want, sizeof(float[4][ODD_VOCAB]));
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
    free(want);
    free(got);
    tmp_tree_remove(tmp);
}

/* The first two layers of this model are dense. */
static void counts_for_a_layer_without_experts_are_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *usage = tmp_tree_path(tmp, "usage");
    tmp_tree_write_text(tmp, "usage", "moeflux usage 1 5 16\n1 3 5\n2 1 7\nend\n");
    for (int is_pin = 0; is_pin < 2; is_pin++) {
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_options o = {.dir = DEEPSEEK, .device = "reference", .memory_bytes = 20 * 28672};
        *(is_pin ? &o.pin : &o.usage) = usage;
        assert_int_equal(device_open_model(&m, &o, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "layer 1, which has no experts"));
    }
    tmp_tree_remove(tmp);
}

static void a_cleared_session_repeats_itself(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model(ODD, 0, 0);
    struct moeflux_session *s = open_session(m);
    struct moeflux_err e = {0};
    float(*first)[ODD_VOCAB] = malloc(sizeof(float[4][ODD_VOCAB]));
    float(*again)[ODD_VOCAB] = malloc(sizeof(float[4][ODD_VOCAB]));
    run(s, first);
    assert_int_equal(moeflux_session_position(s), N_PROMPT + 3);
    check_ok(moeflux_session_clear(s, &e), &e);
    assert_int_equal(moeflux_session_position(s), 0);
    run(s, again);
    assert_memory_equal(first, again, sizeof(float[4][ODD_VOCAB]));
    free(first);
    free(again);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void two_sessions_do_not_disturb_each_other(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model(ODD, 6, 0);
    struct moeflux_session *a = open_session(m), *b = open_session(m);
    float want[ODD_VOCAB], got[ODD_VOCAB], other[ODD_VOCAB];
    int32_t ids[40];
    struct moeflux_err e = {0};
    make_prompt(ids, 40);
    eval(a, ids, 20, want);
    eval(a, ids + 20, 1, want);
    check_ok(moeflux_session_clear(a, &e), &e);
    eval(a, ids, 20, got);
    eval(b, ids + 20, 20, other);
    eval(a, ids + 20, 1, got);
    assert_memory_equal(want, got, sizeof want);
    moeflux_session_free(a);
    moeflux_session_free(b);
    moeflux_model_close(m);
}

/* Chunks of one token are decode. */
static void check_chunk_sizes(const char *dir)
{
    enum { N_LONG = 70 };
    static const uint32_t chunks[] = {1, 2, 3, 7, 64};
    float want[ODD_VOCAB], got[ODD_VOCAB];
    int32_t ids[N_LONG];
    make_prompt(ids, N_LONG);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct moeflux_model *m = open_model(dir, 0, chunks[i]);
        struct moeflux_session *s = open_session(m);
        uint32_t vocab = moeflux_model_get_info(m).vocab_size;
        assert_true(vocab <= ODD_VOCAB);
        for (uint32_t j = 0; j < N_LONG; j++)
            ids[j] %= (int32_t)vocab;
        eval(s, ids, N_LONG, i == 0 ? want : got);
        for (uint32_t j = 0; i > 0 && j < vocab; j++)
            assert_true(fabsf(want[j] - got[j]) <= (moeflux_model_get_info(m).f16_products ? 2e-2f : 1e-4f));
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
}

static void chunk_sizes_agree(void **state)
{
    (void)state;
    check_chunk_sizes(ODD);
    check_chunk_sizes(DEEPSEEK);
    check_chunk_sizes(QWEN3);
}

static void bad_tokens_change_nothing(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model(ODD, 0, 0);
    struct moeflux_session *s = open_session(m);
    float want[ODD_VOCAB], got[ODD_VOCAB];
    int32_t ids[600] = {5, 6, 7}, bad[2] = {1, ODD_VOCAB};
    struct moeflux_err e = {0};
    eval(s, ids, 3, want);
    assert_int_equal(moeflux_session_eval(s, bad, 2, &(struct moeflux_outputs){0}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "1003"));
    bad[1] = -1;
    assert_int_equal(moeflux_session_eval(s, bad, 2, &(struct moeflux_outputs){0}, &e), ERR_USAGE);
    assert_int_equal(moeflux_session_eval(s, ids, 600, &(struct moeflux_outputs){0}, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "512"));
    assert_int_equal(moeflux_session_position(s), 3);
    eval(s, ids, 1, got);
    check_ok(moeflux_session_clear(s, &e), &e);
    eval(s, ids, 3, want);
    eval(s, ids, 1, want);
    assert_memory_equal(want, got, sizeof want);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

/* Decode may take 12 dispatches and 2 submissions a layer, and 2 dispatches for the ends; with every expert
 * resident, one submission a token. */
static void decode_is_few_commands(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool streaming = i % 2;
        struct moeflux_model *m = open_model(i < 2 ? TINY : DEEPSEEK, streaming ? 40 : 0, 0);
        struct moeflux_session *s = open_session(m);
        struct moeflux_model_info info = moeflux_model_get_info(m);
        uint32_t n_moe = i < 2 ? info.n_layers : info.n_layers - 2; /* deepseek-odd's first two are dense */
        struct moeflux_stats stats;
        int32_t id = 100;
        float logits[2048];
        /* A token that takes long may be handed over in pieces: a busy machine gets more tries. */
        uint64_t most = streaming ? info.n_layers * 2 : 1;
        for (int j = 0; j == 0 || (j < 20 && stats.n_submits > most); j++) {
            eval(s, &id, 1, logits);
            moeflux_model_reset_stats(m);
            eval(s, &id, 1, logits);
            moeflux_model_get_stats(m, &stats);
        }
        printf("%s: %u dispatches, %u submissions, %u layers\n", streaming ? "streaming" : "resident",
               (unsigned)stats.n_dispatches, (unsigned)stats.n_submits, info.n_layers);
        assert_true(stats.n_dispatches <= info.n_layers * 12 + 2);
        assert_true(stats.n_submits <= most);
        assert_int_equal(stats.n_hits + stats.n_host_hits + stats.n_misses,
                         streaming ? n_moe * info.top_k : 0);
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
}

/* Six slots for 12 experts a layer: whatever the tokens choose, an expert is read once for all of them. */
static void a_chunk_reads_each_expert_of_a_layer_at_most_once(void **state)
{
    (void)state;
    struct moeflux_model *m = open_model(ODD, 6, 64);
    struct moeflux_session *s = open_session(m);
    struct moeflux_model_info info = moeflux_model_get_info(m);
    struct moeflux_stats stats;
    float logits[ODD_VOCAB];
    int32_t ids[64];
    make_prompt(ids, 64);
    moeflux_model_reset_stats(m);
    eval(s, ids, 64, logits);
    moeflux_model_get_stats(m, &stats);
    assert_true(stats.n_reads > info.n_layers * 6);
    assert_true(stats.n_reads <= info.n_layers * info.n_experts);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

static void a_cache_under_the_floor_is_refused_with_numbers(void **state)
{
    (void)state;
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    const struct moeflux_options o = {.dir = ODD, .memory_bytes = 2 * ODD_SLOT, .device = "reference"};
    assert_int_equal(device_open_model(&m, &o, &e), ERR_NO_FIT);
    assert_null(m);
    assert_non_null(strstr(e.text, "MiB"));
    const struct moeflux_options p = {.dir = ODD, .gpu_memory_bytes = 100000, .device = "reference"};
    assert_int_equal(device_open_model(&m, &p, &e), ERR_NO_FIT);
    assert_non_null(strstr(e.text, "`gpu_memory_bytes`"));
}

/* The model is opened from a copy whose experts are cut after the open: no logits may come out. The dense
 * weights, in the same file, are read at the open: those of a mapped one are test_streaming.c's. */
static void unreadable_experts_stop_the_evaluation(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "model"), *file = tmp_tree_path(dir, "model.safetensors");
    tmp_tree_copy(ODD, dir);
    struct moeflux_options o = options_with(dir, 6, 6, NULL, 0);
    struct moeflux_model *m;
    float logits[ODD_VOCAB];
    int32_t ids[9];
    struct moeflux_err e = {0};
    o.expert_io = MOEFLUX_EXPERT_IO_PREAD;
    check_ok(device_open_model(&m, &o, &e), &e);
    struct moeflux_session *s = open_session(m);
    make_prompt(ids, 9);
    eval(s, ids, 1, logits);
    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), 400000), 0);
    fclose(f);
    assert_int_equal(moeflux_session_eval(s, ids, 9, &(struct moeflux_outputs){.logits = logits}, &e),
                     ERR_IO);
    assert_non_null(strstr(e.text, file));
    if (!strstr(e.text, file))
        fail_msg("%s lacks %s", e.text, file);
    moeflux_session_free(s);
    moeflux_model_close(m);
    tmp_tree_remove(tmp);
}

struct asker {                 /* counts the questions whether a prompt shall go on */
    uint32_t n_asked, stop_at; /* 0: never */
    uint64_t done;             /* last progress report */
};

static bool stop_on_request(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct asker *a = ctx;
    (void)unit;
    if (strcmp(what, "reading the prompt") != 0)
        return true;
    assert_true(total == 0 || (done >= a->done && done < total));
    a->done = total ? done : a->done;
    return ++a->n_asked != a->stop_at;
}

/* However often and wherever it is stopped, the sequence has whole chunks and goes on from there. */
static void stop_everywhere(uint32_t n_slots)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    struct asker a = {0};
    const struct moeflux_options o = {.dir = ODD,
                                      .chunk = 16,
                                      .context = 1024,
                                      .memory_bytes = n_slots * (uint64_t)ODD_SLOT,
                                      .progress = {stop_on_request, &a},
                                      .device = device_name()};
    int32_t ids[N_PROMPT];
    float part[ODD_VOCAB], whole[ODD_VOCAB];
    uint32_t n_in_chunks = 0, n_stops = device_is_vulkan() ? 2 : 16;
    check_ok(device_open_model(&m, &o, &e), &e);
    struct moeflux_session *s = open_session(m), *other = open_session(m);
    make_prompt(ids, N_PROMPT);
    eval(s, ids, N_PROMPT, whole);
    uint32_t n_questions = a.n_asked;
    a = (struct asker){0};
    eval(other, ids + 5, 20, part);
    assert_true(n_questions > 20);
    for (uint32_t stop = 1; stop < n_questions; stop += 1 + n_questions / n_stops) {
        check_ok(moeflux_session_clear(s, &e), &e);
        a = (struct asker){.stop_at = stop};
        int rc = moeflux_session_eval(s, ids, N_PROMPT, &(struct moeflux_outputs){.logits = part}, &e);
        uint32_t pos = moeflux_session_position(s);
        a = (struct asker){0};
        if (rc == 0)
            continue; /* there are fewer questions once the kernels are known */
        assert_int_equal(rc, ERR_INTERRUPTED);
        assert_int_equal(pos % 16, 0);
        n_in_chunks++;
        eval(s, ids + pos, N_PROMPT - pos, part);
        assert_memory_equal(part, whole, sizeof part);
    }
    assert_true(n_in_chunks > n_stops / 3);
    moeflux_session_free(s);
    moeflux_session_free(other);
    moeflux_model_close(m);
}

static void an_interrupted_prompt_keeps_whole_chunks(void **state)
{
    (void)state;
    stop_everywhere(0);
    stop_everywhere(6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_cache),
        cmocka_unit_test(pinned_experts_leave_room_for_every_round),
        cmocka_unit_test(a_cleared_session_repeats_itself),
        cmocka_unit_test(two_sessions_do_not_disturb_each_other),
        cmocka_unit_test(bad_tokens_change_nothing),
        cmocka_unit_test(decode_is_few_commands),
        cmocka_unit_test(unreadable_experts_stop_the_evaluation),
        cmocka_unit_test(an_interrupted_prompt_keeps_whole_chunks),
    };
    const struct CMUnitTest on_hosts[] = {
        cmocka_unit_test(counts_for_a_layer_without_experts_are_refused),
        cmocka_unit_test(chunk_sizes_agree),
        cmocka_unit_test(a_chunk_reads_each_expert_of_a_layer_at_most_once),
        cmocka_unit_test(a_cache_under_the_floor_is_refused_with_numbers),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests(everywhere, NULL, NULL);
    return failed + (device_is_vulkan() ? 0 : cmocka_run_group_tests(on_hosts, NULL, NULL));
}
