/* What the layers refuse before they load anything. That they compute what they should is test_golden.c's.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <string.h>

#include "arch/arch.h"
#include "check.h"
#include "exec/exec.h"
#include "model/config.h"
#include "model/config_read.h"

/* A block of 33 layers, each with 64 MiB of keys and of values, is one layer larger than 2^32 bytes. */
static void a_cache_whose_places_need_more_than_32_bits_is_refused(void **state)
{
    (void)state;
    struct config c;
    struct exec *x;
    struct arch *a;
    struct arch_view view;
    struct moeflux_err e = {0};
    json_t *root = json_load_file("tests/models/families/minimax-plain/config.json", 0, NULL);
    assert_non_null(root);
    json_object_set_new(root, "num_attention_heads", json_integer(16));
    json_object_set_new(root, "num_key_value_heads", json_integer(16));
    json_object_set_new(root, "head_dim", json_integer(8192));
    json_object_set_new(root, "num_hidden_layers", json_integer(40));
    check_ok(config_read(&c, root, "config.json", &e), &e);
    check_ok(exec_open(&x, &(struct exec_options){.device = "reference"}, &e), &e);
    const struct arch_request r = {
        .exec = x, .config = &c, .layers = {2, 35}, .max_chunk = 1, .kv_type = KV_TYPE_F16};
    assert_int_equal(arch_open(&a, &r, &view, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text,
                        "KV cache: layers 2 to 34 have 4429185024 bytes for 256 tokens, expected at most "
                        "4294967295");
    assert_null(a);
    exec_close(x);
    config_free(&c);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_whose_places_need_more_than_32_bits_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
