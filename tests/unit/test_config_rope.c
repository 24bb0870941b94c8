/* Rotary keys of configurations, old and new ones, and where they may stand.
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
#include <jansson.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_read.h"

#define QWEN     "tests/models/qwen-odd/mlx/config.json"
#define DEEPSEEK "tests/models/deepseek-odd/mlx/config.json"
#define QWEN3    "tests/models/qwen3-odd/mlx/config.json"
#define MINIMAX  "tests/models/families/minimax-odd/config.json"

static json_t *load(const char *path)
{
    struct moeflux_err e;
    json_t *root = NULL;
    assert_int_equal(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), 0);
    return root;
}

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

/* Sets "a.b" to JSON `value`, or deletes it when that is NULL. */
static void set(json_t *root, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    json_t *object = root;
    if (dot) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
        object = json_object_get(root, outer);
        assert_non_null(object);
        key = dot + 1;
    }
    if (value)
        assert_int_equal(json_object_set_new(object, key, parse(value)), 0);
    else
        assert_int_equal(json_object_del(object, key), 0);
}

static struct config read_ok(json_t *root)
{
    struct config c;
    struct moeflux_err e;
    int rc = config_read(&c, root, "config.json", &e);
    if (rc < 0)
        fail_msg("%s", e.text);
    json_decref(root);
    return c;
}

/* Field by field: the padding between them is nobody's. */
static void expect_same(const struct config *a, const struct config *b)
{
#define SAME(field) assert_memory_equal(&a->field, &b->field, sizeof a->field)
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_parts, b->n_parts);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        assert_int_equal(a->layers[i].n_blocks, b->layers[i].n_blocks);
        for (uint32_t k = 0; k < a->layers[i].n_blocks; k++)
            assert_int_equal(a->layers[i].blocks[k].part, b->layers[i].blocks[k].part);
    }
    SAME(family), SAME(hidden), SAME(vocab_size), SAME(max_context), SAME(rms_eps), SAME(tied);
    SAME(parts), SAME(router.sigmoid), SAME(ropes[0].dim);
    SAME(ropes[0].yarn), SAME(ropes[0].truncate), SAME(ropes[0].theta), SAME(ropes[0].factor);
    SAME(ropes[0].original_context), SAME(ropes[0].beta_fast), SAME(ropes[0].beta_slow);
    SAME(ropes[0].mscale), SAME(ropes[0].mscale_all_dim), SAME(ropes[0].attention_factor);
    SAME(n_experts), SAME(top_k), SAME(moe_inner), SAME(shared_inner), SAME(first_dense), SAME(moe_freq);
    SAME(router.n_groups), SAME(router.keep_groups), SAME(router.scale), SAME(router.norm);
    SAME(eos), SAME(n_eos);
#undef SAME
}

static void old_rotary_keys_read_as_the_new_ones(void **state)
{
    (void)state;
    json_t *root = load(QWEN);
    set(root, "text_config.rope_parameters", NULL);
    set(root, "text_config.rope_scaling", "null");
    set(root, "text_config.rope_theta", "10000");
    set(root, "text_config.partial_rotary_factor", "0.5");
    struct config a = read_ok(load(QWEN)), b = read_ok(root);
    expect_same(&a, &b);
    config_free(&a);
    config_free(&b);

    root = load(DEEPSEEK);
    json_t *rope = json_incref(json_object_get(root, "rope_parameters"));
    set(root, "rope_parameters", NULL);
    json_object_del(rope, "rope_theta");
    json_object_del(rope, "rope_type");
    json_object_set_new(rope, "type", json_string("yarn"));
    json_object_set_new(root, "rope_scaling", rope);
    a = read_ok(load(DEEPSEEK));
    b = read_ok(root);
    expect_same(&a, &b);
    config_free(&a);
    config_free(&b);
}

/* Transformers does so, too: a user adds rope_scaling to a configuration that has rope_parameters. */
static void rope_scaling_wins_over_rope_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *model, *fresh, *scaling;
    } cases[] = {
        {QWEN, "text_config.rope_parameters", "text_config.rope_scaling"},
        {QWEN3, "rope_parameters", "rope_scaling"},
        {DEEPSEEK, "rope_parameters", "rope_scaling"},
        {MINIMAX, "rope_parameters", "rope_scaling"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = load(cases[i].model);
        json_t *text = json_object_get(root, "text_config");
        json_object_set_new(text ? text : root, "max_position_embeddings", json_integer(32768));
        set(root, cases[i].fresh, "{\"rope_type\": \"default\", \"rope_theta\": 5000000}");
        set(root, cases[i].scaling,
            "{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32768}");
        struct config c = read_ok(json_incref(root));
        assert_true(c.ropes[0].yarn && c.ropes[0].factor == 4 && c.ropes[0].theta == 5e6);
        assert_int_equal(c.max_context, 131072);
        config_free(&c);
        set(root, cases[i].scaling, "{}");
        c = read_ok(root);
        assert_true(!c.ropes[0].yarn && c.ropes[0].theta == 5e6 && c.max_context == 32768);
        config_free(&c);
    }
}

static void rotary_keys_of_the_text_s_own_object_win(void **state)
{
    (void)state;
    json_t *root = load(QWEN);
    set(root, "text_config.rope_parameters", "{\"rope_theta\": 5000}");
    set(root, "rope_scaling", "{\"rope_theta\": 1, \"partial_rotary_factor\": 1.0}");
    set(root, "text_config.partial_rotary_factor", "0.25");
    struct config c = read_ok(root);
    assert_true(c.ropes[0].theta == 5000);
    assert_int_equal(c.ropes[0].dim, 16);
    config_free(&c);
}

/* transformers takes max_position_embeddings. */
static void yarn_s_trained_context_is_the_model_s_where_it_is_not_said(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    json_t *root = load(DEEPSEEK);
    set(root, "rope_parameters.original_max_position_embeddings", NULL);
    set(root, "max_position_embeddings", "5000");
    struct config c = read_ok(json_incref(root));
    assert_true(c.ropes[0].yarn && c.ropes[0].original_context == 5000 && c.max_context == 5000);
    config_free(&c);
    set(root, "max_position_embeddings", NULL);
    assert_int_equal(config_read(&c, root, "config.json", &e), ERR_FORMAT);
    assert_string_equal(e.text,
                        "config.json: rope_type yarn: key original_max_position_embeddings is missing");
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_rotary_keys_read_as_the_new_ones),
        cmocka_unit_test(rope_scaling_wins_over_rope_parameters),
        cmocka_unit_test(rotary_keys_of_the_text_s_own_object_win),
        cmocka_unit_test(yarn_s_trained_context_is_the_model_s_where_it_is_not_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
