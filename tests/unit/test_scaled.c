/* Checkpoints of DeepSeek-V4's form: which tensors become 8-bit floats with scales, MLX's mxfp4, or stay;
 * what is refused. The numbers are in test_golden.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "check.h"
#include "model/scaled.h"
#include "model/tensor.h"

#define EXPERT "model.layers.0.mlp.experts.1.gate_proj"
#define DENSE  "model.layers.0.self_attn.wkv"

static void add(struct tensor_list *l, const char *name, enum dtype dtype, uint64_t rows, uint64_t cols)
{
    struct tensor t = {.dtype = dtype, .n_dims = 2, .shape = {rows, cols}, .bytes = rows * cols};
    struct moeflux_err e;
    check_ok(tensor_set_name(&t, name, NULL, &e), &e);
    check_ok(tensor_list_add(l, &t, &e), &e);
}

static const struct tensor *find(struct tensor_list *l, const char *name)
{
    struct moeflux_err e;
    check_ok(tensor_list_sort(l, "file", &e), &e);
    return tensor_find(l->items, l->n, name);
}

static void scales_and_4_bit_floats_get_the_names_that_others_have(void **state)
{
    (void)state;
    static const enum dtype codes[] = {DTYPE_I8, DTYPE_U8}, scales[] = {DTYPE_F8_E8M0, DTYPE_U8};
    for (int i = 0; i < 2; i++) {
        struct tensor_list l = {0};
        struct moeflux_err e;
        /* The file sorts by dtype. */
        add(&l, EXPERT ".scale", scales[i], 64, 2);
        add(&l, DENSE ".scale", DTYPE_F8_E8M0, 1, 1);
        add(&l, "model.layers.0.hc_attn.scale", DTYPE_F32, 1, 3);
        add(&l, DENSE ".weight", DTYPE_F8_E4M3, 64, 64);
        add(&l, EXPERT ".weight", codes[i], 64, 32);
        add(&l, "model.norm.weight", DTYPE_BF16, 1, 64);
        check_ok(scaled_adopt(&l, "file", &e), &e);
        const struct tensor *t = find(&l, EXPERT ".weight"), *s = find(&l, EXPERT ".scales");
        assert_true(t && t->dtype == DTYPE_U32 && t->shape[1] == 8 && t->mode == QUANT_MXFP4 &&
                    t->bits == 4 && t->group == 32);
        assert_true(s && s->dtype == DTYPE_U8 && s->shape[1] == 2);
        assert_non_null(find(&l, DENSE ".weight_scale_inv"));
        assert_int_equal(find(&l, DENSE ".weight")->dtype, DTYPE_F8_E4M3);
        assert_non_null(find(&l, "model.layers.0.hc_attn.scale"));
        assert_int_equal(l.n, 6);
        tensor_list_free(&l);
    }
}

static void other_forms_are_refused_by_the_tensor(void **state)
{
    (void)state;
    static const struct {
        const char *weight, *scale;
        uint64_t cols;
        enum dtype scales;
        int rc;
        const char *text;
    } cases[] = {
        {DENSE ".weight", DENSE ".scale", 32, DTYPE_F8_E8M0, ERR_UNSUPPORTED,
         DENSE ".weight: I8, expected 4-bit"},
        {EXPERT ".weight", EXPERT ".scale", 30, DTYPE_F8_E8M0, ERR_FORMAT, "a multiple of 4 bytes"},
        {EXPERT ".weight", EXPERT ".scale", 32, DTYPE_F32, ERR_FORMAT, EXPERT ".scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor_list l = {0};
        struct moeflux_err e;
        add(&l, cases[i].weight, DTYPE_I8, 64, cases[i].cols);
        add(&l, cases[i].scale, cases[i].scales, 64, 2);
        assert_int_equal(scaled_adopt(&l, "file", &e), cases[i].rc);
        if (!strstr(e.text, cases[i].text))
            fail_msg("%s", e.text);
        tensor_list_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_and_4_bit_floats_get_the_names_that_others_have),
        cmocka_unit_test(other_forms_are_refused_by_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
