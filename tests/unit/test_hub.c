/* hub/: digests, lists of files and the choice among them, parts that arrive in another order, a missing
 * libcurl.
 *
 * suites: check fast asan */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "hub/digest.h"
#include "hub/libcurl.h"
#include "hub/listing.h"
#include "hub/repository.h"
#include "hub/retry.h"
#include "hub/remote.h"
#include "hub/selection.h"
#include "hub/stop.h"
#include "hub/transfer.h"
#include "tmp_tree.h"

static void sum(enum digest_kind kind, const char *bytes, size_t n, size_t piece, char text[DIGEST_TEXT])
{
    struct digest d;
    digest_begin(&d, kind, n);
    for (size_t at = 0; at < n; at += piece)
        digest_add(&d, bytes + at, piece < n - at ? piece : n - at);
    digest_end(&d, text);
}

static void digests_are_those_of_git_and_sha256sum(void **state)
{
    (void)state;
    static const struct {
        const char *text, *git, *sha256;
    } known[] = {
        {"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
         "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f",
         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "199f24ed041a6af4d09fa175444712eb1849af8d",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char text[DIGEST_TEXT];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        sum(DIGEST_SHA256, known[i].text, strlen(known[i].text), 7, text);
        assert_string_equal(text, known[i].sha256);
        sum(DIGEST_GIT, known[i].text, strlen(known[i].text), 7, text);
        assert_string_equal(text, known[i].git);
    }
}

static void pieces_of_any_size_give_one_digest(void **state)
{
    (void)state;
    enum { N = 1000 };
    char bytes[N], whole[DIGEST_TEXT], text[DIGEST_TEXT];
    for (int i = 0; i < N; i++)
        bytes[i] = (char)(i * 7 + i / 9);
    for (int kind = 0; kind < 2; kind++)
        for (size_t n = 0; n < N; n += 61) {
            sum((enum digest_kind)kind, bytes, n, N, whole);
            for (size_t piece = 1; piece < 200; piece += 9) {
                sum((enum digest_kind)kind, bytes, n, piece, text);
                assert_string_equal(text, whole);
            }
        }
}

static void a_missing_library_is_named_with_its_package(void **state)
{
    (void)state;
    static const char *const none[] = {"libcurl-none.so.0", "libcurl-none.so.1", NULL};
    struct libcurl lib;
    struct moeflux_err e = {0};
    assert_int_equal(libcurl_open(&lib, none, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "apt install libcurl4"));
    assert_null(strchr(e.text, '\n'));
}

/* --- lists and choices --- */

/* Makes a list of files of 10 bytes. */
static struct listing list(const char *const *names)
{
    struct listing l = {0};
    while (names[l.n])
        l.n++;
    l.files = calloc(l.n, sizeof *l.files);
    for (uint32_t i = 0; i < l.n; i++) {
        l.files[i].name = strdup(names[i]);
        l.files[i].bytes = 10;
    }
    return l;
}

/* Checks which files of a list are wanted, "+" or "-" for each. */
static void choose(const char *const *names, struct selection s, enum selection_kind kind, const char *wanted)
{
    struct listing l = list(names);
    assert_int_equal(selection_make(&s, &l), kind);
    for (uint32_t i = 0; i < l.n; i++)
        if (l.files[i].wanted != (wanted[i] == '+'))
            fail_msg("%s is %s", l.files[i].name, l.files[i].wanted ? "wanted" : "not wanted");
    listing_free(&l);
}

static void a_model_is_its_weights_configuration_and_tokenizer(void **state)
{
    (void)state;
    static const char *const model[] = {".gitattributes",
                                        "README.md",
                                        "config.json",
                                        "model.safetensors",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "original/model.safetensors",
                                        "pytorch_model.bin",
                                        "x-Q4.gguf",
                                        "consolidated.00.safetensors",
                                        "onnx/model.onnx",
                                        "additional_chat_templates/tool_use.jinja",
                                        NULL};
    choose(model, (struct selection){0}, SELECTION_MODEL, "-+++++-----+");
    static const char *const all[] = {"*"}, *const some[] = {"*.json", "original/"}, *const out[] = {"*.md"};
    choose(model, (struct selection){.include = all, .n_include = 1}, SELECTION_MODEL, "++++++++++++");
    choose(model, (struct selection){.include = some, .n_include = 2}, SELECTION_MODEL, "--+---+-----");
    choose(model, (struct selection){.exclude = out, .n_exclude = 1}, SELECTION_MODEL, "--++++-----+");
    /* What is excluded is not there when the choice is made. */
    static const char *const weights[] = {"*.safetensors"}, *const large[] = {"*Q8*"};
    static const char *const two[] = {"m-Q4.gguf", "m-Q8.gguf", NULL};
    choose(model, (struct selection){.exclude = weights, .n_exclude = 1}, SELECTION_GGUF, "--------+---");
    choose(two, (struct selection){.exclude = large, .n_exclude = 1}, SELECTION_GGUF, "+-");
}

static void gguf_files_are_taken_if_they_are_one_model(void **state)
{
    (void)state;
    static const char *const one[] = {"README.md", "config.json", "m-Q4.gguf", "mmproj-F16.gguf", NULL};
    choose(one, (struct selection){0}, SELECTION_GGUF, "--+-");
    static const char *const set[] = {"Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf", "a.md", NULL};
    choose(set, (struct selection){0}, SELECTION_GGUF, "++-");
    static const char *const many[] = {"Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf", "m-Q8.gguf",
                                       NULL};
    struct listing l = list(many);
    struct selection_set s;
    uint32_t i = 0;
    assert_int_equal(selection_make(&(struct selection){0}, &l), SELECTION_MANY);
    assert_true(selection_next_set(&l, &i, &s));
    assert_string_equal(s.pattern, "Q4/m-*.gguf");
    assert_int_equal(s.n_files, 2);
    assert_int_equal(s.bytes, 20);
    assert_true(selection_next_set(&l, &i, &s));
    assert_string_equal(s.pattern, "m-Q8.gguf");
    assert_false(selection_next_set(&l, &i, &s));
    listing_free(&l);
    static const char *const odd[] = {"a'; rm [x].gguf", NULL};
    l = list(odd);
    i = 0;
    assert_true(selection_next_set(&l, &i, &s));
    assert_string_equal(s.pattern, "a?; rm ?x].gguf");
    listing_free(&l);
    static const char *const none[] = {"config.json", "pytorch_model.bin", NULL};
    choose(none, (struct selection){0}, SELECTION_NONE, "+-");
}

/* Reads a list of n files of the same size. n_digests: file i has digest i modulo it. odd: the size of the
 * last file; -1: that of the others. */
static int read_list(struct listing *l, int n, int n_digests, long long bytes, long long odd,
                     struct moeflux_err *e)
{
    struct str text = {0};
    str_addf(&text, "{\"sha\": \"%040d\", \"siblings\": [", 0);
    for (int i = 0; i < n; i++)
        str_addf(&text, "%s{\"rfilename\": \"%d\", \"size\": %lld, \"blobId\": \"%040d\"}", i ? ", " : "", i,
                 odd >= 0 && i == n - 1 ? odd : bytes, i % n_digests);
    str_addf(&text, "]}");
    int rc = listing_read(l, str_text(&text), text.len, "list", e);
    str_free(&text);
    return rc;
}

static void sizes_have_a_sum_and_names_of_one_blob_count_once(void **state)
{
    (void)state;
    enum { N_MOST = 2047 }; /* each 2^53 bytes */
    struct moeflux_err e = {0};
    struct listing l;
    const struct listing_file *files[5];
    uint32_t n_blobs;
    check_ok(read_list(&l, N_MOST, N_MOST, 1LL << 53, -1, &e), &e);
    listing_free(&l);
    assert_int_equal(read_list(&l, N_MOST + 1, N_MOST + 1, 1LL << 53, -1, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"2047\""));
    listing_free(&l);
    assert_int_equal(read_list(&l, 5, 2, 10, 11, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "size"));
    listing_free(&l);
    check_ok(read_list(&l, 5, 2, 10, -1, &e), &e);
    for (int i = 0; i < 5; i++)
        files[i] = &l.files[i];
    const struct listing_file **blobs = listing_blobs(files, 5, &n_blobs, &e);
    assert_non_null(blobs);
    assert_int_equal(n_blobs, 2);
    assert_string_not_equal(blobs[0]->digest, blobs[1]->digest);
    free(blobs);
    listing_free(&l);
}

/* --- parts --- */

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

static void parts_in_any_order_make_the_file(void **state)
{
    (void)state;
    enum { N = 100 };
    char *dir = tmp_tree_new(), bytes[N + 1], read_back[N];
    struct moeflux_err e = {0};
    struct repository r;
    struct transfer t;
    struct listing_file f = {.name = "a", .bytes = N, .kind = DIGEST_SHA256};
    atomic_uint_fast64_t done = 0;
    for (int i = 0; i < N; i++)
        bytes[i] = (char)('a' + i % 26);
    sum(DIGEST_SHA256, bytes, N, N, f.digest);
    check_ok(repository_open(&r, dir, "models--o--n", &e), &e);
    check_ok(repository_set_commit(&r, "0123456789012345678901234567890123456789", &e), &e);
    check_ok(repository_make(&r, &e), &e);
    check_ok(transfer_begin(&t, &r, &f, &done, &(struct stop){never, NULL}, &e), &e);
    struct part *p[3], *none;
    uint32_t n_freed;
    for (int i = 0; i < 3; i++)
        check_ok(transfer_add_part(&t, 40, &p[i], &e), &e);
    check_ok(transfer_add_part(&t, 40, &none, &e), &e);
    assert_null(none);
    assert_int_equal(p[2]->from, 80);
    assert_int_equal(p[2]->to, N);
    check_ok(transfer_take(p[2], bytes + 80, N - 80, &e), &e);
    assert_int_equal(transfer_end_part(p[2], &n_freed, &e), 0);
    assert_int_equal(n_freed, 0); /* it waits in memory for those before it */
    check_ok(transfer_take(p[1], bytes + 40, 39, &e), &e);
    check_ok(transfer_take(p[0], bytes, 60, &e), &e); /* what exceeds the part is ignored */
    assert_int_equal(transfer_end_part(p[0], &n_freed, &e), 0);
    assert_int_equal(n_freed, 1);
    assert_int_equal(t.written, 40);
    check_ok(transfer_take(p[1], bytes + 79, 1, &e), &e);
    assert_int_equal(transfer_end_part(p[1], &n_freed, &e), 1);
    assert_int_equal(n_freed, 2);
    check_ok(transfer_finish(&t, &e), &e);
    transfer_close(&t);
    char *path = repository_blob(&r, &f, "", &e);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, read_back, N), N);
    assert_memory_equal(read_back, bytes, N);
    close(fd);
    free(path);
    assert_true(repository_has(&r, &f));
    repository_free(&r);
    tmp_tree_remove(dir);
}

/* The first part's reply says it, while another thread looks for work. */
static void a_server_without_ranges_gets_one_part(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct moeflux_err e = {0};
    struct repository r;
    struct transfer t;
    struct part *first, *second;
    struct listing_file f = {.name = "a", .bytes = 100, .kind = DIGEST_SHA256, .digest = "00"};
    atomic_uint_fast64_t done = 0;
    check_ok(repository_open(&r, dir, "models--o--n", &e), &e);
    check_ok(repository_set_commit(&r, "0123456789012345678901234567890123456789", &e), &e);
    check_ok(repository_make(&r, &e), &e);
    check_ok(transfer_begin(&t, &r, &f, &done, &(struct stop){never, NULL}, &e), &e);
    check_ok(transfer_add_part(&t, 40, &first, &e), &e);
    t.no_ranges = true;
    check_ok(transfer_add_part(&t, 40, &second, &e), &e);
    assert_null(second);
    transfer_close(&t);
    repository_free(&r);
    tmp_tree_remove(dir);
}

/* --- tries --- */

static void waits_end_with_the_tries(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    const struct stop stop = {never, NULL};
    struct retry r = {.most = 2, .stop = &stop}, one = {.most = 1, .stop = &stop};
    struct remote_reply busy = {.status = 429, .retry_after = 0}, cut = {.cut = true};
    assert_int_equal(retry_wait(&r, &busy, "x", &e), 0);
    retry_note_progress(&r); /* the second try brings bytes */
    assert_int_equal(retry_wait(&r, &cut, "x", &e), 0);
    assert_int_equal(retry_wait(&r, &busy, "x", &e), 0);
    assert_int_equal(retry_wait(&r, &busy, "x", &e), ERR_IO);
    assert_non_null(strstr(e.text, "429"));
    assert_non_null(strstr(e.text, "2 tries"));
    retry_note_progress(&one);
    assert_int_equal(retry_wait(&one, &cut, "x", &e), 0);
    assert_int_equal(retry_wait(&one, &cut, "x", &e), ERR_IO);
    assert_true(retry_may_help(&busy));
    assert_false(retry_may_help(&(struct remote_reply){.status = 404}));
    assert_true(retry_may_help(&(struct remote_reply){.cut = true}));
    assert_false(retry_may_help(&(struct remote_reply){.cut = true, .hopeless = true}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_git_and_sha256sum),
        cmocka_unit_test(pieces_of_any_size_give_one_digest),
        cmocka_unit_test(a_missing_library_is_named_with_its_package),
        cmocka_unit_test(a_model_is_its_weights_configuration_and_tokenizer),
        cmocka_unit_test(gguf_files_are_taken_if_they_are_one_model),
        cmocka_unit_test(sizes_have_a_sum_and_names_of_one_blob_count_once),
        cmocka_unit_test(parts_in_any_order_make_the_file),
        cmocka_unit_test(a_server_without_ranges_gets_one_part),
        cmocka_unit_test(waits_end_with_the_tries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
