/* Rotary frequencies and scales against the reference implementation's (numpy, double, rounded to float32).
 *
 * suites: check fast asan */
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/rope.h"

static const struct {
    const char *name, *parameters;
    uint32_t nope, rope;
    double multiplier, softmax_scale;
    float frequencies[32];
} cases[] = {
    {"deepseek-odd",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0}",
     64,
     32,
     1,
     0.19124944415602058,
     {1.0F, 0.45268476F, 0.192898944F, 0.0737985969F, 0.0219999999F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"Cogito-V2",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0}",
     128,
     64,
     1,
     0.13523377886088009,
     {1.0F,
      0.749894202F,
      0.562341332F,
      0.421696514F,
      0.316227764F,
      0.237137377F,
      0.177827939F,
      0.133352146F,
      0.100000001F,
      0.0749894232F,
      0.0562341325F,
      0.0390069261F,
      0.0268793609F,
      0.018378146F,
      0.012447956F,
      0.0083345091F,
      0.00549999997F,
      0.00356199755F,
      0.00224936521F,
      0.00137051358F,
      0.000790569407F,
      0.000414990413F,
      0.00017782794F,
      3.33380376e-05F,
      2.49999994e-05F,
      1.87473561e-05F,
      1.40585335e-05F,
      1.05424124e-05F,
      7.90569447e-06F,
      5.92843435e-06F,
      4.44569832e-06F,
      3.33380353e-06F}},
    {"two mscales",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 0.707, "
     "\"mscale_all_dim\": 0.5}",
     64,
     32,
     1.064468903941252,
     0.14318364963684549,
     {1.0F, 0.45268476F, 0.192898944F, 0.0737985969F, 0.0219999999F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"no mscales",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1}",
     64,
     32,
     1.3688879454113936,
     0.10206207261596575,
     {1.0F, 0.45268476F, 0.192898944F, 0.0737985969F, 0.0219999999F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"mscale without all_dim",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 0}",
     64,
     32,
     1.3688879454113936,
     0.10206207261596575,
     {1.0F, 0.45268476F, 0.192898944F, 0.0737985969F, 0.0219999999F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"attention_factor",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"attention_factor\": 1.25}",
     64,
     32,
     1.25,
     0.19124944415602058,
     {1.0F, 0.45268476F, 0.192898944F, 0.0737985969F, 0.0219999999F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"a range that is not rounded",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"truncate\": false}",
     64,
     32,
     1,
     0.19124944415602058,
     {1.0F, 0.426358491F, 0.163290247F, 0.0488233082F, 0.00327381957F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"an empty range",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 1, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"truncate\": false}",
     64,
     32,
     1,
     0.19124944415602058,
     {1.0F, 0.562341332F, 0.316227764F, 0.177827939F, 0.100000001F, 0.00140585331F, 0.000790569407F,
      0.000444569858F, 0.000250000012F, 0.000140585325F, 7.90569393e-05F, 4.44569851e-05F, 2.49999994e-05F,
      1.40585335e-05F, 7.90569447e-06F, 4.44569832e-06F}},
    {"factor 1",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 1, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0}",
     64,
     32,
     1,
     0.10206207261596575,
     {1.0F, 0.562341332F, 0.316227764F, 0.177827939F, 0.100000001F, 0.0562341325F, 0.0316227749F,
      0.0177827943F, 0.00999999978F, 0.00562341325F, 0.00316227763F, 0.00177827943F, 0.00100000005F,
      0.000562341302F, 0.000316227757F, 0.00017782794F}},
    {"plain",
     "{\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"factor\": 40, "
     "\"original_max_position_embeddings\": 64, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0}",
     64,
     32,
     1,
     0.10206207261596575,
     {1.0F, 0.562341332F, 0.316227764F, 0.177827939F, 0.100000001F, 0.0562341325F, 0.0316227749F,
      0.0177827943F, 0.00999999978F, 0.00562341325F, 0.00316227763F, 0.00177827943F, 0.00100000005F,
      0.000562341302F, 0.000316227757F, 0.00017782794F}},
};

/* deepseek-odd's configuration with other head sizes and rotary parameters. */
static void read_case(size_t i, const char *key, struct config *c)
{
    struct moeflux_err e = {0};
    json_t *root = json_load_file("tests/models/deepseek-odd/mlx/config.json", 0, NULL);
    json_t *rope = json_loads(cases[i].parameters, 0, NULL);
    assert_true(root && rope);
    json_object_set_new(root, "qk_nope_head_dim", json_integer(cases[i].nope));
    json_object_set_new(root, "qk_rope_head_dim", json_integer(cases[i].rope));
    json_object_del(root, "rope_parameters");
    json_object_set_new(root, key, rope);
    check_ok(config_read(c, root, "config.json", &e), &e);
    json_decref(root);
}

/* The last bit of a power may differ between the two libraries. */
static void check_frequencies(const char *name, const float *found, const float *expected, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if (!(fabsf(found[k] - expected[k]) <= FLT_EPSILON * expected[k]))
            fail_msg("%s: frequency %u is %.9g, expected %.9g", name, k, (double)found[k],
                     (double)expected[k]);
}

static void check_case(size_t i, const char *key)
{
    struct config c;
    float found[32];
    read_case(i, key, &c);
    assert_int_equal(c.ropes[0].dim, cases[i].rope);
    rope_frequencies(&c.ropes[0], found);
    check_frequencies(cases[i].name, found, cases[i].frequencies, c.ropes[0].dim / 2);
    assert_true(fabs(rope_multiplier(&c.ropes[0]) - cases[i].multiplier) < 1e-14);
    assert_true(fabs(rope_softmax_scale(&c.ropes[0], cases[i].nope + cases[i].rope) -
                     cases[i].softmax_scale) < 1e-14);
    config_free(&c);
}

static void frequencies_and_scales_are_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(i, "rope_parameters");
}

static void the_old_key_says_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(i, "rope_scaling");
}

/* The part of a head that turns is the dimension of the formula. Numbers: transformers 4.57.1,
 * _compute_yarn_parameters in double, of Qwen3-Next's heads with what its authors say to set for long
 * contexts. */
static void yarn_of_a_part_of_the_head_is_the_reference_s(void **state)
{
    (void)state;
    static const struct {
        float frequencies[32];
        double multiplier;
    } expected = {{1.0F,
                   0.604296386F,
                   0.365174115F,
                   0.220673412F,
                   0.133352146F,
                   0.0805842206F,
                   0.0486967526F,
                   0.0294272713F,
                   0.0177827943F,
                   0.0107460786F,
                   0.00649381615F,
                   0.0039241896F,
                   0.00237137382F,
                   0.00143301254F,
                   0.000865964335F,
                   0.000474239816F,
                   0.000256935047F,
                   0.000137349751F,
                   7.21738761e-05F,
                   3.70722482e-05F,
                   1.84492219e-05F,
                   8.75977003e-06F,
                   3.84981649e-06F,
                   2.32643015e-06F,
                   1.40585337e-06F,
                   8.49552066e-07F,
                   5.13381281e-07F,
                   3.10234441e-07F,
                   1.87473546e-07F,
                   1.13289587e-07F,
                   6.84604942e-08F,
                   4.13704271e-08F},
                  1.138629436111989};
    struct config c;
    struct moeflux_err e = {0};
    float found[32];
    json_t *root = json_load_file("tests/models/families/next-odd/config.json", 0, NULL);
    json_t *rope = json_loads("{\"rope_type\": \"yarn\", \"factor\": 4.0, "
                              "\"original_max_position_embeddings\": 262144}",
                              0, NULL);
    assert_true(root && rope);
    json_object_set_new(root, "head_dim", json_integer(256));
    json_object_set_new(root, "partial_rotary_factor", json_real(0.25));
    json_object_set_new(root, "rope_theta", json_real(1e7));
    json_object_set_new(root, "rope_scaling", rope);
    check_ok(config_read(&c, root, "config.json", &e), &e);
    assert_int_equal(c.ropes[0].dim, 64);
    rope_frequencies(&c.ropes[0], found);
    check_frequencies("next", found, expected.frequencies, 32);
    assert_true(fabs(rope_multiplier(&c.ropes[0]) - expected.multiplier) < 1e-14);
    config_free(&c);
    json_decref(root);
}

static void a_plain_model_has_plain_powers(void **state)
{
    (void)state;
    const struct rope_config r = {.dim = 32, .theta = 1e7};
    float found[16];
    rope_frequencies(&r, found);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(found[i] == (float)(1 / pow(1e7, i / 16.0)));
    assert_true(rope_multiplier(&r) == 1.0);
    assert_true(rope_softmax_scale(&r, 64) == 0.125);
}

static void yarn_with_a_base_of_one_is_refused(void **state)
{
    (void)state;
    struct config c;
    struct moeflux_err e = {0};
    json_t *root = json_load_file("tests/models/deepseek-odd/mlx/config.json", 0, NULL);
    json_object_set_new(json_object_get(root, "rope_parameters"), "rope_theta", json_integer(1));
    assert_int_equal(config_read(&c, root, "config.json", &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "rope_theta is 1, expected more than 1"));
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_and_scales_are_the_references),
        cmocka_unit_test(the_old_key_says_the_same),
        cmocka_unit_test(yarn_of_a_part_of_the_head_is_the_reference_s),
        cmocka_unit_test(a_plain_model_has_plain_powers),
        cmocka_unit_test(yarn_with_a_base_of_one_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
