/* Headers that are right and headers that lie; single files, shards and their index.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "model/safetensors.h"
#include "tmp_tree.h"

#define GOOD                                                                                                 \
    "{\"__metadata__\":{\"format\":\"mlx\"},"                                                                \
    "\"a.weight\":{\"dtype\":\"U32\",\"shape\":[2,4],\"data_offsets\":[0,32]},"                              \
    "\"a.scales\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[32,36]},"                            \
    "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[36,36]},"                                      \
    "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[36,40]}}   "

/* A safetensors file with this header, whose length field says `says`, and n_data bytes after it. */
static void write_file(const char *dir, const char *name, const char *header, uint64_t says, size_t n_data)
{
    size_t n = strlen(header);
    uint8_t *bytes = calloc(1, 8 + n + n_data);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(says >> (8 * i));
    memcpy(bytes + 8, header, n);
    tmp_tree_write(dir, name, bytes, 8 + n + n_data);
    free(bytes);
}

static int open_header(const char *header, size_t n_data, struct safetensors *s, struct moeflux_err *e)
{
    char *dir = tmp_tree_new();
    write_file(dir, "model.safetensors", header, strlen(header), n_data);
    int rc = safetensors_open(s, dir, e);
    tmp_tree_remove(dir);
    return rc;
}

static void a_good_header_gives_every_tensor_with_its_place(void **state)
{
    (void)state;
    struct safetensors s;
    struct moeflux_err e;
    assert_int_equal(open_header(GOOD, 40, &s, &e), 0);
    assert_int_equal(s.n_files, 1);
    assert_int_equal(s.tensors.n, 4);
    const struct tensor *t = tensor_find(s.tensors.items, s.tensors.n, "a.scales");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->off, 8 + strlen(GOOD) + 32);
    assert_int_equal(t->bytes, 4);
    assert_null(tensor_find(s.tensors.items, s.tensors.n, "__metadata__"));
    safetensors_close(&s);
}

#define ONE(dtype, shape, offsets)                                                                           \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header, *text;
} lies[] = {
    {ONE("\"F32\"", "[4]", "[0,17]"), "17 bytes, expected 16 for F32 [4]"},
    {ONE("\"F32\"", "[5]", "[24,44]"), "past the end"},
    {ONE("\"F32\"", "[4]", "[16,0]"), "data_offsets"},
    {ONE("\"F32\"", "[4]", "[-16,0]"), "data_offsets"},
    {ONE("\"F32\"", "[4]", "[0]"), "data_offsets"},
    {ONE("\"F32\"", "[4]", "[0,16,32]"), "data_offsets"},
    {ONE("\"F32\"", "[4]", "[0,16.0]"), "data_offsets"},
    {ONE("\"F32\"", "[4]", "\"x\""), "data_offsets"},
    {ONE("\"F32\"", "[4]", "[0,9223372036854775807]"), "9223372036854775807 bytes"},
    {ONE("\"F32\"", "[4]", "[0,99999999999999999999]"), "0 <= begin <= end"},
    {ONE("\"F32\"", "[4611686018427387904,4]", "[0,0]"), "overflows"},
    {ONE("\"F32\"", "[9223372036854775807]", "[0,16]"), "overflows"},
    {ONE("\"F32\"", "[-4]", "[0,16]"), "shape"},
    {ONE("\"F32\"", "[4.0]", "[0,16]"), "shape"},
    {ONE("\"F32\"", "4", "[0,16]"), "shape"},
    {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "at most 8 dimensions"},
    {ONE("\"F31\"", "[4]", "[0,16]"), "unknown dtype F31"},
    {ONE("32", "[4]", "[0,16]"), "dtype"},
    {"{\"a\": 5}", "tensor a"},
    {"{\"a\": {}}", "tensor a"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[12,28]}}",
     "tensors a and b overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,32]}}",
     "duplicate"},
    {"[]", "expected a JSON object"},
    {"{", "line 1"},
};

static void headers_that_lie_are_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct safetensors s;
        struct moeflux_err e = {0};
        int rc = open_header(lies[i].header, 40, &s, &e);
        if (rc != ERR_FORMAT || !strstr(e.text, lies[i].text) || !strstr(e.text, "model.safetensors: "))
            fail_msg("%s: %d \"%s\", expected \"%s\"", lies[i].header, rc, e.text, lies[i].text);
    }
}

static void a_header_length_beyond_the_file_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {sizeof GOOD + 40, 1ull << 40, UINT64_MAX, UINT64_MAX - 7};
    char *dir = tmp_tree_new();
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct safetensors s;
        struct moeflux_err e;
        write_file(dir, "model.safetensors", GOOD, lengths[i], 40);
        assert_int_equal(safetensors_open(&s, dir, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "header length"));
    }
    tmp_tree_remove(dir);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    write_file(dir, "model.safetensors", GOOD, strlen(GOOD), 40);
    size_t n;
    uint8_t *bytes = tmp_tree_read(tmp_tree_path(dir, "model.safetensors"), &n);
    for (size_t cut = 0; cut < n; cut++) {
        struct safetensors s;
        struct moeflux_err e = {0};
        tmp_tree_write(dir, "model.safetensors", bytes, cut);
        int rc = safetensors_open(&s, dir, &e);
        if (rc != ERR_FORMAT)
            fail_msg("cut at %zu of %zu: %d %s", cut, n, rc, e.text);
    }
    free(bytes);
    tmp_tree_remove(dir);
}

static void the_index_of_the_sharded_models_is_followed(void **state)
{
    (void)state;
    struct safetensors s;
    struct moeflux_err e;
    assert_int_equal(safetensors_open(&s, "tests/models/sources/qwen/hf", &e), 0);
    assert_int_equal(s.n_files, 2);
    assert_int_equal(s.tensors.n, 72);
    safetensors_close(&s);
}

static void without_an_index_every_file_is_read(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct safetensors s;
    struct moeflux_err e;
    write_file(dir, "x-1.safetensors", ONE("\"F32\"", "[4]", "[0,16]"),
               strlen(ONE("\"F32\"", "[4]", "[0,16]")), 16);
    write_file(dir, "x-2.safetensors", GOOD, strlen(GOOD), 40);
    tmp_tree_write_text(dir, "notes.txt", "no tensors");
    assert_int_equal(safetensors_open(&s, dir, &e), 0);
    assert_int_equal(s.n_files, 2);
    assert_int_equal(s.tensors.n, 5);
    safetensors_close(&s);
    tmp_tree_remove(dir);
}

static void a_tensor_in_two_files_is_refused(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct safetensors s;
    struct moeflux_err e;
    write_file(dir, "x-1.safetensors", GOOD, strlen(GOOD), 40);
    write_file(dir, "x-2.safetensors", GOOD, strlen(GOOD), 40);
    assert_int_equal(safetensors_open(&s, dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "is there twice"));
    tmp_tree_remove(dir);
}

static void an_index_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        int code;
        const char *text;
    } cases[] = {
        {"{\"weight_map\":{\"s\":\"m.safetensors\",\"b\":\"m.safetensors\"}}", ERR_FORMAT,
         "tensor b is not in"},
        {"{\"weight_map\":{\"s\":\"gone.safetensors\"}}", ERR_IO, "gone.safetensors: No such file"},
        {"{\"weight_map\":{\"s\":\"../m.safetensors\"}}", ERR_FORMAT, "same directory"},
        {"{\"weight_map\":{\"s\":\"..\"}}", ERR_FORMAT, "same directory"},
        {"{\"weight_map\":{\"s\":\"\"}}", ERR_FORMAT, "same directory"},
        {"{\"weight_map\":{\"s\":7}}", ERR_FORMAT, "same directory"},
        {"{\"weight_map\":{}}", ERR_FORMAT, "weight_map"},
        {"{\"weight_map\":[]}", ERR_FORMAT, "weight_map"},
        {"{}", ERR_FORMAT, "weight_map"},
        {"{\"weight_map\"", ERR_FORMAT, "line 1"},
    };
    char *dir = tmp_tree_new();
    write_file(dir, "m.safetensors", GOOD, strlen(GOOD), 40);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors s;
        struct moeflux_err e = {0};
        tmp_tree_write_text(dir, "model.safetensors.index.json", cases[i].index);
        int rc = safetensors_open(&s, dir, &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].text))
            fail_msg("%s: %d \"%s\", expected \"%s\"", cases[i].index, rc, e.text, cases[i].text);
    }
    tmp_tree_remove(dir);
}

static void a_directory_without_safetensors_is_refused(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct safetensors s;
    struct moeflux_err e;
    assert_int_equal(safetensors_open(&s, dir, &e), ERR_IO);
    assert_non_null(strstr(e.text, "no *.safetensors file"));
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_header_gives_every_tensor_with_its_place),
        cmocka_unit_test(headers_that_lie_are_refused_with_the_reason),
        cmocka_unit_test(a_header_length_beyond_the_file_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(the_index_of_the_sharded_models_is_followed),
        cmocka_unit_test(without_an_index_every_file_is_read),
        cmocka_unit_test(a_tensor_in_two_files_is_refused),
        cmocka_unit_test(an_index_that_does_not_fit_is_refused),
        cmocka_unit_test(a_directory_without_safetensors_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
