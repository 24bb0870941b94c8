/* Traces through trace.h: what was written is read, anything else is refused with its line.
 *
 * suites: check fast asan */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "experts/trace.h"
#include "tmp_tree.h"

static const struct trace_shape SHAPE = {.n_layers = 3, .n_experts = 5, .top_k = 2, .expert_bytes = 4096};
#define HEAD "moeflux trace 1 3 5 2 4096\n"
/* Two tokens in one batch in layer 1, then one in layer 2. */
static const char SOME_TEXT[] =
    HEAD "1 7 2 4:0.7500 0:0.2500\n1 8 2 0:1.0000 2:0.0000\n2 9 1 3:2.5000 4:nan\nend\n";

struct place {
    char *dir;
    const char *file;
};

static struct place new_place(void)
{
    struct place p = {.dir = tmp_tree_new()};
    p.file = tmp_tree_path(p.dir, "trace");
    return p;
}

static struct trace_writer *open_writer(const struct place *p)
{
    struct trace_writer *w;
    struct moeflux_err e = {0};
    check_ok(trace_writer_open(&w, p->file, &SHAPE, &e), &e);
    return w;
}

static void add_some(struct trace_writer *w)
{
    static const uint32_t together[] = {4, 0, 0, 2}, alone[] = {3, 4};
    trace_writer_add(w, 1, 7, 2, together, (const float[]){0.75f, 0.25f, 1, 0.00004f});
    trace_writer_add(w, 2, 9, 1, alone, (const float[]){2.5f, NAN});
}

static void refused_bytes(const struct place *p, const char *text, size_t n, const char *part)
{
    struct trace t;
    struct moeflux_err e = {0};
    tmp_tree_write(p->dir, "trace", text, n);
    int rc = trace_read(&t, p->file, &e);
    if (rc != ERR_FORMAT || !strstr(e.text, p->file) || !strstr(e.text, part) || strchr(e.text, '\n'))
        fail_msg("\"%s\": %d, %s; expected %s", text, rc, e.text, part);
    assert_null(t.steps);
}

static void refused(const struct place *p, const char *text, const char *part)
{
    refused_bytes(p, text, strlen(text), part);
}

static void expect_some(const struct trace *t)
{
    static const uint16_t experts[] = {4, 0, 2, 3, 4};
    assert_memory_equal(&t->shape, &SHAPE, sizeof SHAPE);
    assert_int_equal(t->n_steps, 2);
    assert_int_equal(t->n_uses, 5);
    assert_memory_equal(t->experts, experts, sizeof experts);
    assert_int_equal(t->steps[0].layer, 1);
    assert_int_equal(t->steps[0].n_tokens, 2);
    assert_int_equal(t->steps[0].n, 3);
    assert_int_equal(t->steps[1].first, 3);
    assert_int_equal(t->steps[1].layer, 2);
    assert_int_equal(t->steps[1].n_tokens, 1);
    assert_int_equal(t->n_single, 0); /* counted at layer 1 */
    assert_int_equal(t->n_batched, 2);
    assert_int_equal(t->n_chunks, 1);
    assert_int_equal(t->n_used_layers, 2);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct trace t;
    struct trace_writer *w = open_writer(&p);
    add_some(w);
    check_ok(trace_writer_commit(w, &e), &e);
    trace_writer_close(w);
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, SOME_TEXT);
    free(text);
    assert_int_equal(tmp_tree_count(p.dir), 1);
    check_ok(trace_read(&t, p.file, &e), &e);
    expect_some(&t);
    trace_free(&t);
    tmp_tree_remove(p.dir);
}

/* More than the writer's room and the reader's buffer hold. */
static void a_long_trace_comes_back_whole(void **state)
{
    (void)state;
    enum { N = 60000 };
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct trace t;
    struct trace_writer *w = open_writer(&p);
    for (uint32_t i = 0; i < N; i++)
        trace_writer_add(w, i % 3, i, 1, (const uint32_t[]){i % 5, (i + 1) % 5}, (const float[]){0.5f, 0.5f});
    check_ok(trace_writer_commit(w, &e), &e);
    trace_writer_close(w);
    check_ok(trace_read(&t, p.file, &e), &e);
    assert_int_equal(t.n_steps, N);
    assert_int_equal(t.n_single, N / 3);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(t.steps[i].layer, i % 3);
        assert_int_equal(t.experts[t.steps[i].first], i % 5);
    }
    trace_free(&t);
    tmp_tree_remove(p.dir);
}

/* The same as with a share of the weights. */
static void a_choice_may_end_early(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct trace_writer *w = open_writer(&p);
    trace_writer_add(w, 0, 0, 2, (const uint32_t[]){3, UINT32_MAX, 1, 2}, (const float[]){1, 0, 0.5f, 0.5f});
    check_ok(trace_writer_commit(w, &e), &e);
    trace_writer_close(w);
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, HEAD "0 0 2 3:1.0000\n0 1 2 1:0.5000 2:0.5000\nend\n");
    free(text);
    tmp_tree_remove(p.dir);
}

static void without_a_commit_there_is_no_file(void **state)
{
    (void)state;
    struct place p = new_place();
    struct trace_writer *w = open_writer(&p);
    add_some(w);
    trace_writer_close(w);
    assert_int_equal(tmp_tree_count(p.dir), 0);
    tmp_tree_remove(p.dir);
}

/* The limit on a file's size stands for a full disk. */
static void a_failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    (void)state;
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct rlimit before, little;
    tmp_tree_write_text(p.dir, "trace", SOME_TEXT);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 1 << 10;
    signal(SIGXFSZ, SIG_IGN);
    struct trace_writer *w = open_writer(&p);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    for (int i = 0; i < 10000; i++)
        add_some(w);
    int rc = trace_writer_commit(w, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, p.file));
    assert_int_equal(trace_writer_commit(w, &e), ERR_IO);
    trace_writer_close(w);
    assert_int_equal(tmp_tree_count(p.dir), 1);
    uint8_t *text = tmp_tree_read(p.file, NULL);
    assert_string_equal((char *)text, SOME_TEXT);
    free(text);
    tmp_tree_remove(p.dir);
}

static void a_trace_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    for (size_t n = 0; n < sizeof SOME_TEXT - 1; n++)
        refused_bytes(&p, SOME_TEXT, n, n >= strlen(HEAD) ? "the file was cut" : "line 1");
    refused(&p, HEAD "1 7 2 4:0.5000\nend\n", "the other tokens");
    tmp_tree_remove(p.dir);
}

static void what_is_no_trace_is_refused(void **state)
{
    (void)state;
    static const char *const heads[] = {
        "\n",
        "moeflux usage 1 3 5\nend\n",
        "moeflux trace 2 3 5 2 4096\nend\n",
        "moeflux trace 1 3 5 2\nend\n",
        "moeflux trace 1 3 5 2 4096 \nend\n",
        "moeflux trace 1 3 5 2 4096\r\nend\n",
        "moeflux trace 1 03 5 2 4096\nend\n",
        "moeflux trace 1 -3 5 2 4096\nend\n",
        "moeflux trace 1 0 5 2 4096\nend\n",
        "moeflux trace 1 3 0 0 4096\nend\n",
        "moeflux trace 1 3 5 6 4096\nend\n",
        "moeflux trace 1 3 5 0 4096\nend\n",
        "moeflux trace 1 3 5 2 0\nend\n",
        "moeflux trace 1 4294967295 4294967295 2 4096\nend\n",
        "moeflux trace 1 65536 65536 2 4096\nend\n",
        "moeflux trace 1 3 5 2 99999999999999999999999\nend\n",
    };
    struct place p = new_place();
    struct moeflux_err e = {0};
    struct trace t;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        refused(&p, heads[i], "line 1: expected ");
    assert_int_equal(trace_read(&t, p.dir, &e), ERR_IO);
    assert_int_equal(trace_read(&t, tmp_tree_path(p.dir, "none"), &e), ERR_IO);
    assert_non_null(strstr(e.text, "none"));
    tmp_tree_remove(p.dir);
}

static void lines_that_are_no_choice_are_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",
        "1",
        "1 7",
        "1 7 1",
        "1 7 1 ",
        "1 7 1 4",
        "1 7 1 4:",
        "1 7 1 4:1",
        "1 7 1 4:1.",
        "1 7 1 4:.5",
        "1 7 1 4:-0.5",
        "1 7 1 4:na",
        "1 7 1 4:nanx",
        "1 7 1  4:0.5",
        "1 7 1 4:0.5 ",
        " 1 7 1 4:0.5",
        "1 7 1 -4:0.5",
        "1 07 1 4:0.5",
        "1 7 1 04:0.5",
        "1 7 1 4:0.5\r",
        "END",
        "end ",
        "1 7 1 4:0.5x",
    };
    struct place p = new_place();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[200];
        snprintf(text, sizeof text, HEAD "0 6 1 3:0.5\n%s\nend\n", lines[i]);
        refused(&p, text, "line 3: expected \"LAYER POS TOKENS");
    }
    tmp_tree_remove(p.dir);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, HEAD "3 0 1 4:0.5\nend\n", "line 2: expected a layer below 3");
    refused(&p, HEAD "0 0 0 4:0.5\nend\n", "at least one token");
    refused(&p, HEAD "0 0 4294967295 4:0.5\nend\n", "line 2");
    refused(&p, HEAD "0 0 1 5:0.5\nend\n", "line 2: expected an expert below 5");
    refused(&p, HEAD "0 0 1 65536:0.5\nend\n", "an expert below 5");
    refused(&p, HEAD "0 0 1 1:0.5 2:0.5 3:0.5\nend\n", "no more experts than TOP_K");
    tmp_tree_remove(p.dir);
}

static void tokens_of_one_evaluation_stay_together(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, HEAD "1 7 2 4:0.5\n2 8 2 4:0.5\nend\n",
            "line 3: expected the token at 8 of layer 1, with 2 tokens");
    refused(&p, HEAD "1 7 2 4:0.5\n1 9 2 4:0.5\nend\n", "line 3: expected the token at 8");
    refused(&p, HEAD "1 7 2 4:0.5\n1 8 1 4:0.5\nend\n", "line 3");
    tmp_tree_remove(p.dir);
}

static void nothing_follows_the_end(void **state)
{
    (void)state;
    struct place p = new_place();
    refused(&p, HEAD "end\n1 7 1 4:0.5\n", "nothing after");
    refused(&p, HEAD "end\n\n", "nothing after");
    refused(&p, HEAD "end\nend", "nothing after");
    tmp_tree_remove(p.dir);
}

/* A line that no trace can have must not be looked for without end. */
static void a_line_without_end_is_refused(void **state)
{
    (void)state;
    enum { N = 3 << 20 };
    struct place p = new_place();
    char *text = malloc(N);
    memset(text, '1', N);
    memcpy(text, HEAD, strlen(HEAD));
    refused_bytes(&p, text, N, "line 2: expected ");
    free(text);
    tmp_tree_remove(p.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_long_trace_comes_back_whole),
        cmocka_unit_test(a_choice_may_end_early),
        cmocka_unit_test(without_a_commit_there_is_no_file),
        cmocka_unit_test(a_failed_write_leaves_the_old_file_and_nothing_else),
        cmocka_unit_test(a_trace_cut_anywhere_is_refused),
        cmocka_unit_test(what_is_no_trace_is_refused),
        cmocka_unit_test(lines_that_are_no_choice_are_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(tokens_of_one_evaluation_stay_together),
        cmocka_unit_test(nothing_follows_the_end),
        cmocka_unit_test(a_line_without_end_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
