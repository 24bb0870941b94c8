/* Mutated manifests and configurations: an answer every time, and a text with every refusal.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"
#include "base/json.h"
#include "base/format.h"
#include "convert/convert.h"
#include "fuzz.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/manifest.h"
#include "model/model_dir.h"
#include "model/quant_config.h"
#include "tmp_tree.h"

enum { ROUNDS = 8000, OPEN_ROUNDS = 800, ROOM = 4096 };

static const char manifest[] =
    "{\"model\": \"m\", \"num_tensors\": 4, \"tensors\": {"
    "\"lm_head.weight\": {\"offset\": 0, \"size\": 512, \"shape\": [4, 32], \"dtype\": \"U32\", \"bits\": 4},"
    "\"lm_head.scales\": {\"offset\": 512, \"size\": 32, \"shape\": [4, 4], \"dtype\": \"BF16\"},"
    "\"lm_head.biases\": {\"offset\": 576, \"size\": 32, \"shape\": [4, 4], \"dtype\": \"BF16\"},"
    "\"model.layers.0.linear_attn.A_log\": {\"offset\": 640, \"size\": 32, \"shape\": [8], \"dtype\": "
    "\"F32\"}},"
    "\"config\": {\"hidden_size\": 256, \"expert_bits\": 4}}";

static void expect_answer(int rc, const struct moeflux_err *e)
{
    if (rc < 0)
        assert_true(e->code == rc && e->text[0] != '\0');
}

static void mutated_manifests_are_answered(void **state)
{
    (void)state;
    struct fuzz f = {1};
    char *dir = tmp_tree_new();
    const char *path = tmp_tree_path(dir, "model_weights.json");
    unsigned n_good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t buf[ROOM];
        memcpy(buf, manifest, sizeof manifest - 1);
        size_t n = fuzz_mutate(&f, buf, sizeof manifest - 1, sizeof buf);
        tmp_tree_write(dir, "model_weights.json", buf, n);
        struct tensor_list l = {0};
        json_t *root = NULL;
        struct moeflux_err e = {0};
        int rc = manifest_read(path, 0, 700, &l, &root, &e);
        expect_answer(rc, &e);
        for (size_t k = 0; rc == 0 && k < l.n; k++)
            assert_true(l.items[k].off <= 700 && l.items[k].bytes <= 700 - l.items[k].off);
        n_good += rc == 0;
        json_decref(root);
        tensor_list_free(&l);
    }
    /* Mutations that keep the manifest valid exist; without them the fuzzer would
     * not get past the JSON. */
    assert_true(n_good > ROUNDS / 100 && n_good < ROUNDS);
    tmp_tree_remove(dir);
}

/* What is said of a matrix has a format, or is a failure with a text. */
static void expect_said(int said, const struct quant_entry *entry, struct moeflux_err *e)
{
    expect_answer(said < 0 ? said : 0, e);
    if (said == QUANT_SAID_ENTRY && entry->mode == QUANT_AFFINE)
        assert_int_not_equal(format_find_affine(entry->bits, entry->group, SCALE_BF16), FORMAT_NONE);
}

static void fuzz_config(const char *path, uint64_t seed)
{
    struct fuzz f = {seed};
    size_t len;
    uint8_t *text = tmp_tree_read(path, &len), *buf = malloc(len + ROOM);
    assert_non_null(buf);
    for (int i = 0; i < ROUNDS / 2; i++) {
        memcpy(buf, text, len);
        size_t n = fuzz_mutate(&f, buf, len, len + ROOM);
        json_t *root = NULL;
        struct config c;
        struct quant_config q;
        struct moeflux_err e = {0};
        struct quant_entry entry;
        int rc = json_read((char *)buf, n, "config.json", JSON_MAX_SMALL, &root, &e);
        expect_answer(rc, &e);
        if (rc < 0)
            continue;
        rc = config_read(&c, root, "config.json", &e);
        expect_answer(rc, &e);
        if (rc == 0)
            assert_true(c.n_layers > 0 && c.hidden % 64 == 0 && c.top_k <= c.n_experts &&
                        c.ropes[0].dim % 2 == 0);
        config_free(&c);
        rc = quant_config_read(&q, root, "config.json", &e);
        expect_answer(rc, &e);
        if (rc == 0)
            expect_said(quant_config_matrix(&q, "language_model.model.layers.0.mlp.gate", &entry, &e), &entry,
                        &e);
        json_decref(root);
    }
    free(buf);
    free(text);
}

static void mutated_configurations_are_answered(void **state)
{
    (void)state;
    fuzz_config("tests/models/qwen-odd/mlx/config.json", 2);
    fuzz_config("tests/models/deepseek-odd/mlx/config.json", 3);
    fuzz_config("tests/models/qwen3-odd/mlx/config.json", 6);
    fuzz_config("tests/models/formats/every-f16/config.json", 7);
    fuzz_config("tests/models/formats/mxfp4/config.json", 8);
}

static void fuzz_directory(const char *src, uint64_t seed)
{
    struct fuzz f = {seed};
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "m");
    struct convert_options o = {.src = src, .dst = dir};
    struct convert_result r;
    struct moeflux_err e;
    assert_int_equal(convert_run(&o, &r, &e), 0);
    size_t len;
    uint8_t *text = tmp_tree_read(tmp_tree_path(dir, "model_weights.json"), &len), *buf = malloc(len + ROOM);
    assert_non_null(buf);
    for (int i = 0; i < OPEN_ROUNDS; i++) {
        memcpy(buf, text, len);
        size_t n = fuzz_mutate(&f, buf, len, len + ROOM);
        tmp_tree_write(dir, "model_weights.json", buf, n);
        struct model_dir m;
        e = (struct moeflux_err){0};
        int rc = model_dir_open(&m, dir, &e);
        expect_answer(rc, &e);
        if (rc == 0)
            model_dir_close(&m);
    }
    free(buf);
    free(text);
    tmp_tree_remove(tmp);
}

static void directories_with_a_mutated_manifest_are_answered(void **state)
{
    (void)state;
    fuzz_directory("tests/models/qwen-odd/mlx", 4);
    fuzz_directory("tests/models/deepseek-odd/mlx", 5);
    fuzz_directory("tests/models/qwen3-odd/mlx", 7);
    fuzz_directory("tests/models/formats/mixed-3-6", 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_manifests_are_answered),
        cmocka_unit_test(mutated_configurations_are_answered),
        cmocka_unit_test(directories_with_a_mutated_manifest_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
