/* Recent sequences of one model: which one a prompt goes on in, which leaves memory, what is in files.
 *
 * suites: check fast asan */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/side_file.h"
#include "engine/state/places.h"
#include "generate/prefill.h"
#include "generate/saved_sequences.h"
#include "generate/sequences.h"
#include "moeflux.h"
#include "small_model.h"
#include "tmp_tree.h"

enum { N = 192 };

static struct moeflux_model *model;
static char *dir;
static unsigned n_messages;
static const struct moeflux_outputs none;

static int open_model(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    dir = tmp_tree_new();
    const struct moeflux_options o = {
        .dir = small_model_make(dir, 1), .device = "cpu", .context = 4 * SMALL_CONTEXT, .n_threads = 2};
    check_ok(moeflux_model_open(&model, &o, &e), &e);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    moeflux_model_close(model);
    tmp_tree_remove(dir);
    return 0;
}

static void count_message(void *ctx, const char *text)
{
    (void)ctx, (void)text;
    n_messages++;
}

/* The files of the sequences that a test has; NULL: none. */
static struct saved_sequences *saved;

static struct saved_sequences *open_files(const char *files, uint64_t bytes, uint32_t n_files)
{
    struct moeflux_err e = {0};
    struct saved_sequences *v;
    const struct saved_options o = {.dir = files, .bytes = bytes, .n_files = n_files, .tell = count_message};
    check_ok(saved_sequences_open(&v, model, &o, &e), &e);
    return v;
}

static struct sequences *sequences_with(struct saved_sequences *files, uint32_t most, uint64_t bytes)
{
    struct moeflux_err e = {0};
    struct sequences *q;
    const struct sequences_options o = {
        .max_context = SMALL_CONTEXT, .most = most, .bytes = bytes, .saved = files};
    check_ok(sequences_new(&q, model, &o, &e), &e);
    return q;
}

static struct sequences *new_sequences(uint32_t most, uint64_t bytes, const char *files)
{
    saved = files ? open_files(files, 0, 0) : NULL;
    return sequences_with(saved, most, bytes);
}

static void end(struct sequences *q)
{
    sequences_free(q);
    saved_sequences_close(saved);
    saved = NULL;
}

/* A prompt: N ids that begin like those of `topic`, and like those of all of a topic's. */
static const int32_t *prompt(int32_t topic, int32_t question)
{
    static int32_t ids[N];
    for (int32_t i = 0; i < N; i++)
        ids[i] = (i * 7 + (i < N / 2 ? topic * 5 : question * 11)) % SMALL_VOCAB;
    return ids;
}

static struct sequences_prompt wanted(const int32_t *ids, uint32_t n_shared)
{
    return (struct sequences_prompt){.ids = ids, .n = N, .n_shared = n_shared};
}

static int take(struct sequences *q, const int32_t *ids, uint32_t n_shared, struct moeflux_session **s,
                struct moeflux_err *e)
{
    const struct sequences_prompt p = wanted(ids, n_shared);
    return sequences_take(q, &p, s, e);
}

static uint32_t usable(struct sequences *q, const int32_t *ids)
{
    const struct sequences_prompt p = wanted(ids, N);
    return sequences_usable(q, &p);
}

static void put(struct sequences *q, struct moeflux_session *s, uint32_t n_prompt)
{
    sequences_put(q, s, &(struct prefix_evaluated){.n = n_prompt});
}

/* Evaluates it in a sequence and says how many tokens were there. The checkpoint is where the questions
 * begin. */
static uint32_t ask(struct sequences *q, int32_t topic, int32_t question)
{
    struct moeflux_err e = {0};
    struct moeflux_session *s;
    const int32_t *ids = prompt(topic, question);
    uint32_t n_reused, half = N / 2;
    check_ok(take(q, ids, N, &s, &e), &e);
    check_ok(moeflux_session_reuse(s, ids, N, &n_reused, &e), &e);
    if (n_reused < half) {
        check_ok(moeflux_session_eval(s, ids + n_reused, half - n_reused, &none, &e), &e);
        check_ok(moeflux_session_checkpoint(s, &e), &e);
    }
    uint32_t pos = moeflux_session_position(s);
    check_ok(moeflux_session_eval(s, ids + pos, N - pos, &none, &e), &e);
    put(q, s, N);
    return n_reused;
}

static void a_prompt_goes_on_in_the_sequence_that_has_the_most_of_it(void **state)
{
    (void)state;
    struct sequences *q = new_sequences(2, 0, NULL);
    assert_int_equal(ask(q, 1, 1), 0);
    assert_int_equal(ask(q, 2, 1), 0);
    assert_int_equal(ask(q, 1, 2), N / 2);
    assert_int_equal(ask(q, 2, 2), N / 2);
    assert_int_equal(sequences_count(q).n, 2);
    end(q);
}

static void the_least_recently_used_one_leaves(void **state)
{
    (void)state;
    struct sequences *q = new_sequences(2, 0, NULL);
    ask(q, 1, 1);
    ask(q, 2, 1);
    ask(q, 1, 2);
    assert_int_equal(ask(q, 3, 1), 0);
    assert_int_equal(ask(q, 1, 3), N / 2);
    assert_int_equal(ask(q, 2, 2), 0);
    end(q);
}

static void one_that_is_in_use_is_not_taken(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct sequences *q = new_sequences(2, 0, NULL);
    struct moeflux_session *a, *b, *c;
    ask(q, 1, 1);
    check_ok(take(q, prompt(1, 2), N, &a, &e), &e);
    check_ok(take(q, prompt(1, 2), N, &b, &e), &e);
    assert_ptr_not_equal(a, b);
    assert_int_equal(take(q, prompt(1, 2), N, &c, &e), ERR_USAGE);
    assert_false(sequences_shrink(q));
    put(q, a, N);
    assert_true(sequences_shrink(q));
    put(q, b, N);
    end(q);
}

/* Evaluates N tokens, with checkpoints at a quarter and at half of them. */
static void fill(struct moeflux_session *s, const int32_t *ids)
{
    struct moeflux_err e = {0};
    check_ok(moeflux_session_clear(s, &e), &e);
    for (uint32_t i = 0; i < 4; i++) {
        check_ok(moeflux_session_eval(s, ids + i * N / 4, N / 4, &none, &e), &e);
        if (i < 2)
            check_ok(moeflux_session_checkpoint(s, &e), &e);
    }
}

/* Returns what is reused of a prompt that has the sequence's first n tokens and others. */
static uint32_t reuse(struct moeflux_session *s, const int32_t *ids, uint32_t n)
{
    struct moeflux_err e = {0};
    int32_t other[N + 1];
    uint32_t n_reused;
    memcpy(other, ids, N * sizeof *ids);
    for (uint32_t i = n; i <= N; i++)
        other[i] = (ids[i % N] + 1) % SMALL_VOCAB;
    const struct prefill p = {.ids = other, .n = N + 1};
    uint32_t expected = prefill_usable(&p, s);
    check_ok(moeflux_session_reuse(s, other, N + 1, &n_reused, &e), &e);
    assert_int_equal(n_reused, expected);
    return n_reused;
}

/* Recurrent layers, attention alone, and windows, which have lost rows when they come from a file. */
static void a_prompt_reuses_as_much_wherever_that_is_asked(void **state)
{
    (void)state;
    static const uint32_t commons[] = {0, 3, N / 4 - 1, N / 4, N / 2 + 1, N - 1, N};
    char *tmp = tmp_tree_new();
    const char *path = tmp_tree_path(tmp, "state");
    const char *dirs[] = {tmp_tree_path(dir, "packed"), small_model_make_attention(tmp, 1),
                          "tests/models/gptoss/mxfp4"};
    for (uint32_t i = 0; i < 3; i++) {
        struct moeflux_err e = {0};
        struct moeflux_model *m;
        struct moeflux_session *s;
        struct places p;
        int32_t ids[N];
        memcpy(ids, prompt(1, 1), sizeof ids);
        const struct moeflux_options o = {
            .dir = dirs[i], .device = "cpu", .context = SMALL_CONTEXT, .n_threads = 2};
        check_ok(moeflux_model_open(&m, &o, &e), &e);
        check_ok(moeflux_session_new(&s, m, SMALL_CONTEXT, &e), &e);
        fill(s, ids);
        check_ok(moeflux_session_save(s, path, MOEFLUX_STATE_V3, &e), &e);
        check_ok(places_read(&p, m, path, &e), &e);
        for (size_t k = 0; k < sizeof commons / sizeof *commons; k++) {
            uint32_t same = commons[k], quarters = same >= N / 2 ? 2 : same / (N / 4);
            uint32_t rounded = same < N ? quarters * (N / 4) : N;
            fill(s, ids);
            assert_int_equal(reuse(s, ids, same), i == 0 ? rounded : same);
            check_ok(moeflux_session_load(s, path, &e), &e);
            assert_int_equal(reuse(s, ids, same), i == 1 ? same : rounded);
            assert_int_equal(places_reach(&p, same), i == 1 ? same : rounded);
        }
        places_free(&p);
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
    tmp_tree_remove(tmp);
}

/* Tokens of an answer were evaluated one by one, so a prompt that has them would get other bits. */
static void with_chunks_only_those_of_a_prompt_are_reused(void **state)
{
    (void)state;
    enum { CHUNK = 32 };
    struct moeflux_err e = {0};
    struct sequences *q;
    struct moeflux_session *s;
    const struct sequences_options o = {.max_context = SMALL_CONTEXT, .most = 1, .chunk = CHUNK};
    check_ok(sequences_new(&q, model, &o, &e), &e);
    assert_null(sequences_latest(q));
    ask(q, 1, 1);
    assert_int_equal(usable(q, prompt(1, 2)), N / 2 / CHUNK * CHUNK);
    assert_ptr_not_equal(sequences_latest(q), NULL);
    check_ok(take(q, prompt(1, 2), 0, &s, &e), &e);
    assert_int_equal(sequences_held(q, s).n, N);
    put(q, s, CHUNK + 1);
    assert_true(usable(q, prompt(1, 2)) <= CHUNK);
    check_ok(take(q, prompt(1, 2), 0, &s, &e), &e);
    sequences_drop(q, s);
    assert_int_equal(sequences_count(q).n, 0);
    end(q);
}

/* A prompt that begins as a longer conversation, but is another one, takes nothing from it. */
static void another_conversation_keeps_what_it_has(void **state)
{
    (void)state;
    enum { SHARED = N / 4 };
    struct moeflux_err e = {0};
    struct sequences *q = new_sequences(2, 0, NULL);
    struct moeflux_session *a, *b;
    const int32_t *ids = prompt(1, 1);
    check_ok(take(q, ids, SHARED, &a, &e), &e);
    check_ok(moeflux_session_eval(a, ids, SHARED, &none, &e), &e);
    check_ok(moeflux_session_checkpoint(a, &e), &e);
    check_ok(moeflux_session_eval(a, ids + SHARED, N - SHARED, &none, &e), &e);
    put(q, a, N);
    int32_t other[N];
    memcpy(other, ids, sizeof other);
    other[SHARED] = (other[SHARED] + 1) % SMALL_VOCAB;
    check_ok(take(q, other, SHARED, &b, &e), &e);
    assert_ptr_not_equal(a, b);
    assert_int_equal(moeflux_session_position(a), N);
    assert_int_equal(moeflux_session_position(b), SHARED);
    assert_memory_equal(moeflux_session_history(b), ids, SHARED * sizeof *ids);
    put(q, b, SHARED);
    end(q);
}

static void idle_ones_keep_to_their_bytes(void **state)
{
    (void)state;
    struct sequences *q = new_sequences(4, 1, NULL);
    ask(q, 1, 1);
    assert_int_equal(sequences_count(q).n, 0);
    end(q);
    q = new_sequences(4, 0, NULL);
    ask(q, 1, 1);
    uint64_t one = sequences_count(q).bytes;
    end(q);
    q = new_sequences(4, 2 * one, NULL);
    for (int32_t i = 0; i < 4; i++)
        ask(q, i, 1);
    assert_int_equal(sequences_count(q).n, 2);
    end(q);
}

static void those_that_leave_memory_are_found_in_files_by_a_later_program_too(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "files");
    struct sequences *q = new_sequences(1, 0, files);
    n_messages = 0;
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(ask(q, i, 1), 0);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(ask(q, i, 2), N / 2);
    end(q);
    q = new_sequences(1, 0, files);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(ask(q, i, 3), N / 2);
    assert_int_equal(n_messages, 0);
    end(q);
}

static void a_file_gives_way_to_what_goes_on_from_it_and_to_newer_ones(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    const char *files = tmp_tree_path(dir, "few");
    struct sequences *q = new_sequences(1, 0, files);
    struct moeflux_session *s;
    ask(q, 1, 1);
    end(q);
    assert_int_equal(tmp_tree_count(files), 1);
    q = new_sequences(1, 0, files);
    assert_int_equal(ask(q, 1, 1), N / 2);
    check_ok(take(q, prompt(1, 1), N, &s, &e), &e);
    check_ok(moeflux_session_eval(s, prompt(2, 2), N, &none, &e), &e);
    put(q, s, N);
    end(q);
    assert_int_equal(tmp_tree_count(files), 1);
}

static struct sequences *with_bytes(const char *files, uint64_t most)
{
    saved = open_files(files, most, 0);
    return sequences_with(saved, 1, 0);
}

static void files_keep_to_their_bytes(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "bytes");
    struct sequences *q = with_bytes(files, 0);
    for (int32_t i = 1; i < 4; i++)
        ask(q, i, 1);
    end(q);
    q = with_bytes(files, 0);
    uint64_t all = sequences_count(q).dir_bytes;
    assert_int_equal(sequences_count(q).n_saved, 3);
    end(q);
    n_messages = 0;
    q = with_bytes(files, all - 1);
    assert_int_equal(sequences_count(q).n_saved, 2);
    ask(q, 4, 1);
    end(q);
    assert_int_equal(tmp_tree_count(files), 2);
    assert_int_equal(n_messages, 0);
    /* less than one has */
    q = with_bytes(files, all / 4);
    assert_int_equal(sequences_count(q).n_saved, 0);
    ask(q, 5, 1);
    end(q);
    assert_int_equal(n_messages, 1);
    assert_int_equal(tmp_tree_count(files), 0);
}

static struct sequences *with_files(const char *files, uint32_t most)
{
    saved = open_files(files, 0, most);
    return sequences_with(saved, 1, 0);
}

static void files_keep_to_their_number_and_the_last_used_stay(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "counted");
    struct sequences *q = with_files(files, 3);
    for (int32_t i = 1; i < 6; i++) {
        assert_int_equal(ask(q, i, 1), 0);
        assert_true(sequences_count(q).n_saved <= 3);
    }
    assert_int_equal(tmp_tree_count(files), 3);
    assert_int_equal(ask(q, 3, 2), N / 2); /* used: now 4 is the oldest */
    assert_int_equal(ask(q, 6, 1), 0);
    assert_int_equal(ask(q, 3, 3), N / 2);
    assert_int_equal(ask(q, 4, 2), 0);
    end(q);
}

static void a_later_program_keeps_the_files_that_were_written_last(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "aged");
    struct sequences *q = with_files(files, 0);
    for (int32_t i = 1; i < 5; i++)
        ask(q, i, 1);
    end(q);
    char command[300];
    snprintf(command, sizeof command, "touch -d @1000 %s/*", files);
    assert_int_equal(system(command), 0);
    q = with_files(files, 0);
    assert_int_equal(ask(q, 9, 1), 0);
    end(q);
    assert_int_equal(tmp_tree_count(files), 5);
    q = with_files(files, 1);
    assert_int_equal(sequences_count(q).n_saved, 1);
    assert_int_equal(tmp_tree_count(files), 1);
    assert_int_equal(ask(q, 9, 2), N / 2);
    end(q);
}

static void two_sets_that_share_files_find_each_others_and_keep_to_the_limits_together(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "shared");
    saved = open_files(files, 0, 3);
    struct sequences *q[2] = {sequences_with(saved, 1, 0), sequences_with(saved, 1, 0)};
    n_messages = 0;
    for (int32_t i = 1; i < 5; i++) {
        assert_int_equal(ask(q[0], i, 1), 0);
        assert_int_equal(ask(q[1], 10 + i, 1), 0);
        assert_true(tmp_tree_count(files) <= 3);
        assert_int_equal(sequences_count(q[0]).n_saved, tmp_tree_count(files));
    }
    assert_int_equal(ask(q[0], 13, 2), N / 2);
    sequences_free(q[0]);
    sequences_free(q[1]);
    assert_int_equal(tmp_tree_count(files), 3);
    assert_int_equal(saved_sequences_count(saved).n, 3);
    assert_int_equal(n_messages, 0);
    saved_sequences_close(saved);
    saved = NULL;
}

/* Each has an index of its own, as programs have that know nothing of each other. */
static void two_programs_keep_to_the_limits_of_one_directory(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "two-programs");
    struct saved_sequences *index[] = {open_files(files, 0, 3), open_files(files, 0, 3)};
    struct sequences *q[] = {sequences_with(index[0], 1, 0), sequences_with(index[1], 1, 0)};
    n_messages = 0;
    for (int32_t i = 1; i < 5; i++) {
        assert_int_equal(ask(q[0], i, 1), 0);
        assert_int_equal(ask(q[1], 10 + i, 1), 0);
        assert_true(tmp_tree_count(files) <= 3);
    }
    /* The last save of the second one made it known. */
    assert_int_equal(ask(q[1], 3, 2), N / 2);
    assert_int_equal(n_messages, 0);
    for (int i = 0; i < 2; i++) {
        sequences_free(q[i]);
        saved_sequences_close(index[i]);
        assert_int_equal(tmp_tree_count(files), 3);
    }
}

/* It was there when the index was made, and is gone at the next save. */
static void a_file_that_others_write_counts_only_while_it_is_there(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    const char *files = tmp_tree_path(dir, "parts");
    struct side_file part;
    struct sequences *q = new_sequences(1, 0, files);
    ask(q, 1, 1);
    end(q);
    q = new_sequences(1, 0, files);
    uint64_t one = sequences_count(q).dir_bytes;
    end(q);
    check_ok(side_file_create(&part, tmp_tree_path(dir, "parts/x.moeflux-state"), 0600, &e), &e);
    assert_int_equal(ftruncate(part.fd, (off_t)one), 0);
    q = with_bytes(files, 3 * one);
    side_file_free(&part);
    for (int32_t i = 2; i < 5; i++)
        ask(q, i, 1);
    assert_int_equal(sequences_count(q).n_saved, 3);
    end(q);
}

/* The file of a damaged state counts for the limits, and is tried once. */
static void a_damaged_file_is_tried_once_and_removed_in_its_turn(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "damaged");
    char command[300];
    struct sequences *q = with_files(files, 2);
    ask(q, 1, 1);
    ask(q, 2, 1);
    snprintf(command, sizeof command,
             "for f in %s/*; do printf x | dd of=$f bs=1 seek=3000 conv=notrunc status=none; done", files);
    assert_int_equal(system(command), 0);
    n_messages = 0;
    assert_int_equal(ask(q, 1, 2), 0);
    assert_int_equal(n_messages, 1);
    assert_int_equal(sequences_count(q).n_saved, 2);
    assert_int_equal(ask(q, 1, 1), N / 2); /* the sequence in memory has it */
    ask(q, 3, 1);
    ask(q, 4, 1);
    ask(q, 5, 1);
    assert_int_equal(tmp_tree_count(files), 2);
    assert_int_equal(n_messages, 1);
    end(q);
}

static void a_broken_file_is_reported_and_the_prompt_computed(void **state)
{
    (void)state;
    const char *files = tmp_tree_path(dir, "broken");
    struct sequences *q = new_sequences(1, 0, files);
    ask(q, 1, 1);
    ask(q, 2, 1);
    end(q);
    q = new_sequences(1, 0, files);
    n_messages = 0;
    assert_int_equal(sequences_count(q).n_saved, 2);
    /* Gone from under it. */
    char command[300];
    snprintf(command, sizeof command, "rm %s/*", files);
    assert_int_equal(system(command), 0);
    assert_int_equal(ask(q, 1, 2), 0);
    assert_int_equal(n_messages, 1);
    end(q);
}

/* The file has all of the prompt, the sequence in memory half of it. */
static void instead_of_a_broken_file_the_best_sequence_in_memory_is_used(void **state)
{
    (void)state;
    enum { MORE = N + 8 };
    const char *files = tmp_tree_path(dir, "worse");
    struct moeflux_err e = {0};
    struct moeflux_session *s;
    int32_t ids[MORE] = {0};
    uint32_t n_reused;
    struct sequences *q = new_sequences(2, 0, files);
    ask(q, 1, 1);
    end(q);
    q = new_sequences(2, 0, files);
    assert_int_equal(ask(q, 1, 2), N / 2);
    char command[300];
    snprintf(command, sizeof command, "for f in %s/*; do truncate -s 1000 $f; done", files);
    assert_int_equal(system(command), 0);
    n_messages = 0;
    memcpy(ids, prompt(1, 1), N * sizeof *ids);
    const struct sequences_prompt p = {.ids = ids, .n = MORE, .n_shared = 0};
    check_ok(sequences_take(q, &p, &s, &e), &e);
    check_ok(moeflux_session_reuse(s, ids, MORE, &n_reused, &e), &e);
    assert_int_equal(n_reused, N / 2);
    assert_int_equal(n_messages, 1);
    assert_int_equal(sequences_count(q).n_saved, 2); /* it, and what was there after the common prefix */
    put(q, s, N / 2);
    end(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_goes_on_in_the_sequence_that_has_the_most_of_it),
        cmocka_unit_test(the_least_recently_used_one_leaves),
        cmocka_unit_test(one_that_is_in_use_is_not_taken),
        cmocka_unit_test(a_prompt_reuses_as_much_wherever_that_is_asked),
        cmocka_unit_test(with_chunks_only_those_of_a_prompt_are_reused),
        cmocka_unit_test(another_conversation_keeps_what_it_has),
        cmocka_unit_test(idle_ones_keep_to_their_bytes),
        cmocka_unit_test(those_that_leave_memory_are_found_in_files_by_a_later_program_too),
        cmocka_unit_test(a_file_gives_way_to_what_goes_on_from_it_and_to_newer_ones),
        cmocka_unit_test(files_keep_to_their_bytes),
        cmocka_unit_test(files_keep_to_their_number_and_the_last_used_stay),
        cmocka_unit_test(a_later_program_keeps_the_files_that_were_written_last),
        cmocka_unit_test(two_sets_that_share_files_find_each_others_and_keep_to_the_limits_together),
        cmocka_unit_test(two_programs_keep_to_the_limits_of_one_directory),
        cmocka_unit_test(a_file_that_others_write_counts_only_while_it_is_there),
        cmocka_unit_test(a_damaged_file_is_tried_once_and_removed_in_its_turn),
        cmocka_unit_test(a_broken_file_is_reported_and_the_prompt_computed),
        cmocka_unit_test(instead_of_a_broken_file_the_best_sequence_in_memory_is_used),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
