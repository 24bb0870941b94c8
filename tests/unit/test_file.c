/* Opening files: what is no regular file is refused at once, whoever reads it.
 *
 * suites: check fast asan */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "check.h"
#include "cli/talk/saved.h"
#include "experts/usage.h"
#include "convert/convert.h"
#include "model/model_dir.h"
#include "moeflux.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"

/* An open that waits is woken by a signal and fails with another text; one that does not wait sees none of
 * them. */
static void wake(int number)
{
    (void)number;
}

static int wake_every_tenth_of_a_second(void **state)
{
    (void)state;
    struct sigaction action = {.sa_handler = wake};
    struct itimerval tenth = {{0, 100000}, {0, 100000}};
    return sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &tenth, NULL);
}

static int wake_no_more(void **state)
{
    (void)state;
    return setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
}

static void expect_fifo(int rc, const struct moeflux_err *e, const char *path)
{
    char text[400];
    snprintf(text, sizeof text, "%s: a FIFO, expected a regular file", path);
    if (rc != ERR_IO || strcmp(e->text, text) != 0)
        fail_msg("%s: %d \"%s\"", path, rc, rc < 0 ? e->text : "");
}

/* Puts a FIFO in the place of a file. */
static const char *put_fifo(const char *dir, const char *name)
{
    const char *path = tmp_tree_path(dir, name);
    assert_true(unlink(path) == 0 || access(path, F_OK) < 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    return path;
}

static void a_file_that_is_open_may_block(void **state)
{
    (void)state;
    struct moeflux_err e;
    uint64_t bytes;
    int fd = file_open_read("tests/models/tiny/config.json", &bytes, &e);
    assert_true(fd >= 0 && bytes > 0);
    /* io_uring gives up reads of one that may not. */
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
}

static void what_is_no_regular_file_is_refused_with_its_kind(void **state)
{
    (void)state;
    struct moeflux_err e;
    char *dir = tmp_tree_new();
    const char *fifo = put_fifo(dir, "fifo");
    expect_fifo(file_open_read(fifo, NULL, &e), &e, fifo);
    assert_int_equal(file_open_read("/dev/zero", NULL, &e), ERR_IO);
    assert_string_equal(e.text, "/dev/zero: a device, expected a regular file");
    assert_int_equal(file_open_read("/", NULL, &e), ERR_IO);
    assert_string_equal(e.text, "/: a directory, expected a regular file");
    tmp_tree_remove(dir);
}

/* Each of the files in turn. */
static void expect_fifos_refused(const char *from, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *tmp = tmp_tree_new();
        const char *dir = tmp_tree_path(tmp, "model");
        struct model_dir m;
        struct moeflux_err e;
        tmp_tree_copy(from, dir);
        const char *fifo = put_fifo(dir, names[i]);
        expect_fifo(model_dir_open(&m, dir, &e), &e, fifo);
        tmp_tree_remove(tmp);
    }
}

static void a_fifo_as_a_models_file_is_refused_at_once(void **state)
{
    static const char *const of_source[] = {"config.json", "generation_config.json",
                                            "model.safetensors.index.json", "model.safetensors"};
    static const char *const of_packed[] = {"config.json", "model_weights.json", "model_weights.bin",
                                            "packed_experts/layer_00.bin"};
    (void)state;
    char *tmp = tmp_tree_new();
    const char *packed = tmp_tree_path(tmp, "packed");
    struct convert_options o = {.src = "tests/models/qwen-odd/mlx", .dst = packed};
    struct convert_result r;
    struct moeflux_err e;
    check_ok(convert_run(&o, &r, &e), &e);
    expect_fifos_refused(o.src, of_source, sizeof of_source / sizeof *of_source);
    expect_fifos_refused(packed, of_packed, sizeof of_packed / sizeof *of_packed);
    tmp_tree_remove(tmp);
}

static void a_fifo_as_a_tokenizers_file_is_refused_at_once(void **state)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *dir = tmp_tree_new();
        struct moeflux_err e = {0};
        size_t n;
        uint8_t *text = tmp_tree_read("tests/models/tiny/tokenizer.json", &n);
        tmp_tree_write(dir, "tokenizer.json", text, n);
        free(text);
        const char *fifo = put_fifo(dir, names[i]);
        assert_null(tokenizer_open(tmp_tree_path(dir, "tokenizer.json"), &e));
        expect_fifo(e.code, &e, fifo);
        tmp_tree_remove(dir);
    }
}

static void a_fifo_as_usage_state_or_session_is_refused_at_once(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct moeflux_state_info info;
    struct saved saved;
    uint32_t counts[2] = {0};
    struct moeflux_err e;
    const char *fifo = put_fifo(dir, "fifo");
    expect_fifo(usage_read(fifo, 1, 2, counts, &e), &e, fifo);
    expect_fifo(moeflux_read_state_info(fifo, &info, &e), &e, fifo);
    assert_int_equal(setenv("XDG_STATE_HOME", dir, 1), 0);
    free(saved_text_path("talk", &e)); /* makes the directory */
    fifo = put_fifo(dir, "moeflux/sessions/talk.json");
    expect_fifo(saved_read("talk", &saved, &e), &e, fifo);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_open_may_block),
        cmocka_unit_test(what_is_no_regular_file_is_refused_with_its_kind),
        cmocka_unit_test(a_fifo_as_a_models_file_is_refused_at_once),
        cmocka_unit_test(a_fifo_as_a_tokenizers_file_is_refused_at_once),
        cmocka_unit_test(a_fifo_as_usage_state_or_session_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, wake_every_tenth_of_a_second, wake_no_more);
}
