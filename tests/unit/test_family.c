/* The family of a configuration without model_type, which some converters leave out: the right one or none.
 *
 * suites: check fast */
#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "base/json.h"
#include "check.h"
#include "model/family.h"

/* Models whose families read the same configuration; the second family is found for the first model. */
static const struct family *const same[][2] = {{&family_kimik2, &family_deepseek3},
                                               {&family_glm4moelite, &family_deepseek3},
                                               {&family_qwen3next, &family_qwen35moe}};

static bool is_right(const struct family *found, const struct family *expected)
{
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (expected == same[i][0] && found == same[i][1])
            return true;
    return found == expected;
}

static const struct family *find(const char *path, bool by_keys)
{
    struct moeflux_err e = {0};
    json_t *root = NULL;
    check_ok(json_read_file(path, 1 << 20, JSON_MAX_SMALL, &root, &e), &e);
    json_t *text = json_object_get(root, "text_config");
    const struct json_view v = {.objects = {root, text}, .where = path, .e = &e};
    const struct family *f =
        by_keys ? family_of_keys(&v)
                : family_find(json_string_value(json_object_get(text ? text : root, "model_type")));
    json_decref(root);
    return f;
}

/* Configurations in the form that publishers write, which all have their family's own key. */
static void each_family_with_a_key_of_its_own_is_found(void **state)
{
    static const char *const models[] = {
        "tiny",
        "deepseek-plain/mlx",
        "sources/v4/hf",
        "sources/v41/hf",
        "families/glm-plain",
        "families/qw4-plain",
        "families/gemma4-plain",
        "families/glm53f-plain",
        "families/m3-plain",
        "families/step-plain",
        "families/mimo-plain",
        "families/nemo-plain",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/models/%s/config.json", models[i]);
        const struct family *expected = find(path, false), *found = find(path, true);
        if (!expected || found != expected)
            fail_msg("%s: %s, expected %s", path, found ? found->name : "none",
                     expected ? expected->name : "?");
    }
}

static void no_configuration_is_taken_for_another_familys(void **state)
{
    static const char *const models[] = {
        "dsv32",         "glm-odd",     "glm5-mlx",    "glm5-odd",    "glm5-plain",    "glmlite-odd",
        "glmlite-plain", "gptoss-odd",  "k3-mlx",      "k3-odd",      "k3-plain",      "kimi-odd",
        "kimi-plain",    "kimi25-odd",  "kimilin-mlx", "kimilin-odd", "kimilin-plain", "ling-flash",
        "ling-mlx",      "ling-odd",    "ling-tiny",   "m3-odd",      "mimo-odd",      "minimax-odd",
        "minimax-plain", "nemo-latent", "nemo-mlx",    "nemo-odd",    "next-odd",      "next-plain",
        "qw4-mlx",       "qw4-odd",     "step-odd",    "v4-odd",      "v4-plain",      "v41-odd"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/models/families/%s/config.json", models[i]);
        const struct family *expected = find(path, false), *found = find(path, true);
        if (!expected || (found && !is_right(found, expected)))
            fail_msg("%s: %s, expected %s", path, found->name, expected ? expected->name : "?");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_family_with_a_key_of_its_own_is_found),
        cmocka_unit_test(no_configuration_is_taken_for_another_familys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
