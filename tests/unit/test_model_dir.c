/* Model directories of both layouts: what they give, and every way in which their files can lie.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "convert/convert.h"
#include "model/family.h"
#include "model/names.h"
#include "model_dirs.h"
#include "st_writer.h"
#include "tmp_tree.h"

#define QWEN "tests/models/qwen-odd/mlx"

struct fixture {
    char *tmp;
    char packed[4200], plain[4200]; /* qwen-odd in both layouts, for reading only */
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct convert_result r;
    struct moeflux_err e;
    assert_non_null(f);
    f->tmp = tmp_tree_new();
    snprintf(f->packed, sizeof f->packed, "%s/packed", f->tmp);
    snprintf(f->plain, sizeof f->plain, QWEN);
    struct convert_options o = {.src = QWEN, .dst = f->packed};
    assert_int_equal(convert_run(&o, &r, &e), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tmp_tree_remove(f->tmp);
    free(f);
    return 0;
}

/* A copy to spoil. Freed by tmp_tree_remove(tmp). */
static const char *copy_of(const char *model, char **tmp)
{
    *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(*tmp, "m");
    tmp_tree_copy(model, dir);
    return dir;
}

/* --- what a good directory gives --- */

static void read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint8_t *slot)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    struct moeflux_err e;
    uint32_t n = model_dir_expert(m, layer, expert, x);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(x[i].at, at);
        assert_int_equal(file_read_at(m->files[x[i].file].fd, "f", slot + x[i].at, x[i].bytes, x[i].off, &e),
                         0);
        at += x[i].bytes;
    }
    assert_int_equal(at, m->max_expert_bytes);
    assert_int_equal(model_dir_check_expert(m, layer, expert, slot, &e), 0);
}

static void both_layouts_give_the_same_tensors_and_experts(void **state)
{
    struct fixture *f = *state;
    struct model_dir a = model_dirs_open(f->packed), b = model_dirs_open(f->plain);
    struct moeflux_err e;
    assert_true(a.packed && !b.packed);
    assert_int_equal(a.n_tensors, 213);
    for (size_t i = 0; i < a.n_tensors; i++) {
        const struct tensor *t = &a.tensors[i], *u = model_dir_find(&b, t->name);
        assert_non_null(u);
        assert_true(t->dtype == u->dtype && t->bits == u->bits && t->bytes == u->bytes);
        uint8_t *x = malloc(t->bytes), *y = malloc(t->bytes);
        assert_int_equal(model_dir_read(&a, t, 0, t->bytes, x, &e), 0);
        assert_int_equal(model_dir_read(&b, u, 0, t->bytes, y, &e), 0);
        assert_memory_equal(x, y, t->bytes);
        free(x);
        free(y);
    }
    assert_int_equal(a.max_expert_bytes, 20736);
    assert_int_equal(a.expert_bytes, 1492992);
    assert_int_equal(b.expert_bytes, 1492992);
    assert_int_equal(a.dense_bytes, b.dense_bytes);
    assert_int_equal(a.experts[0].formats.up, b.experts[0].formats.up);
    assert_int_equal(a.experts[0].formats.down, b.experts[0].formats.down);
    assert_int_equal(a.experts[0].down_b, b.experts[0].down_b);
    uint8_t x[20736], y[20736];
    for (uint32_t l = 0; l < 6; l++)
        for (uint32_t i = 0; i < 12; i++) {
            read_expert(&a, l, i, x);
            read_expert(&b, l, i, y);
            assert_memory_equal(x, y, sizeof x);
        }
    model_dir_close(&a);
    model_dir_close(&b);
}

static void a_packed_expert_is_one_extent_and_a_plain_one_nine(void **state)
{
    struct fixture *f = *state;
    struct model_dir a = model_dirs_open(f->packed), b = model_dirs_open(f->plain);
    struct extent x[EXPERT_MAX_EXTENTS];
    assert_int_equal(model_dir_expert(&a, 3, 5, x), 1);
    assert_int_equal(x[0].off, 5 * 20736);
    assert_int_equal(model_dir_expert(&b, 3, 5, x), 9);
    model_dir_close(&a);
    model_dir_close(&b);
}

static void the_published_parts_of_an_expert_follow_each_other(void **state)
{
    struct fixture *f = *state;
    struct model_dir m = model_dirs_open(f->packed);
    const struct expert_layout *l = &m.experts[0];
    assert_int_equal(l->formats.gate, FORMAT_Q4);
    assert_int_equal(l->formats.down, FORMAT_Q4);
    const uint64_t found[] = {l->gate_w, l->gate_s, l->gate_b, l->up_w,  l->up_s,
                              l->up_b,   l->down_w, l->down_s, l->down_b};
    const uint64_t expected[] = {0, 6144, 6528, 6912, 13056, 13440, 13824, 19968, 20352};
    assert_memory_equal(found, expected, sizeof expected);
    model_dir_close(&m);
}

static void matrices_carry_their_own_bits(void **state)
{
    struct fixture *f = *state;
    const char *dirs[] = {f->packed, f->plain};
    for (int i = 0; i < 2; i++) {
        struct model_dir m = model_dirs_open(dirs[i]);
        struct matrix w;
        struct moeflux_err e;
        assert_int_equal(model_dir_matrix(&m, "model.layers.0.mlp.gate", 12, 192, &w, &e), 0);
        assert_int_equal(w.format, FORMAT_Q8);
        assert_int_equal(model_dir_matrix(&m, "lm_head", 1003, 192, &w, &e), 0);
        assert_int_equal(w.format, FORMAT_Q4);
        assert_int_equal(w.weight->bytes, 1003 * 96);
        assert_int_equal(w.scales->bytes, 1003 * 6);
        model_dir_close(&m);
    }
}

static void a_matrix_of_another_shape_is_refused(void **state)
{
    struct fixture *f = *state;
    struct model_dir m = model_dirs_open(f->packed);
    struct matrix w;
    struct moeflux_err e;
    assert_int_equal(model_dir_matrix(&m, "lm_head", 1004, 192, &w, &e), ERR_FORMAT);
    assert_int_equal(model_dir_matrix(&m, "lm_head", 1003, 256, &w, &e), ERR_FORMAT);
    assert_int_equal(model_dir_matrix(&m, "lm_head", 192, 1003, &w, &e), ERR_FORMAT);
    assert_int_equal(model_dir_matrix(&m, "model.norm", 1, 192, &w, &e), ERR_FORMAT);
    assert_int_equal(model_dir_matrix(&m, "model.nothing", 1, 192, &w, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "tensor model.nothing.weight is missing"));
    model_dir_close(&m);
}

static void vectors_are_counted_whatever_their_dimensions(void **state)
{
    struct fixture *f = *state;
    struct model_dir m = model_dirs_open(f->plain);
    const struct tensor *t;
    struct moeflux_err e;
    float a_log[6];
    assert_int_equal(model_dir_vector(&m, "model.layers.0.linear_attn.conv1d.weight", 4096, &t, &e), 0);
    assert_int_equal(model_dir_vector(&m, "model.layers.0.linear_attn.conv1d.weight", 4095, &t, &e),
                     ERR_FORMAT);
    assert_int_equal(model_dir_vector(&m, "lm_head.weight", 24072, &t, &e), ERR_FORMAT);
    assert_int_equal(model_dir_vector(&m, "model.layers.0.linear_attn.A_log", 6, &t, &e), 0);
    assert_int_equal(model_dir_read_f32(&m, t, a_log, &e), 0);
    assert_true(a_log[0] > -20 && a_log[0] < 20);
    model_dir_close(&m);
}

static void bf16_is_widened_exactly(void **state)
{
    struct fixture *f = *state;
    struct model_dir m = model_dirs_open(f->packed);
    struct moeflux_err e;
    const struct tensor *t = model_dir_find(&m, "model.norm.weight");
    uint16_t bits[192];
    float values[192];
    assert_int_equal(model_dir_read(&m, t, 0, sizeof bits, bits, &e), 0);
    assert_int_equal(model_dir_read_f32(&m, t, values, &e), 0);
    for (int i = 0; i < 192; i++) {
        uint32_t u;
        memcpy(&u, &values[i], 4);
        assert_int_equal(u, (uint32_t)bits[i] << 16);
    }
    assert_int_equal(model_dir_read(&m, t, 2, t->bytes - 1, bits, &e), ERR_USAGE);
    assert_int_equal(model_dir_read(&m, t, UINT64_MAX, 2, bits, &e), ERR_USAGE);
    model_dir_close(&m);
}

static void dense_layers_of_deepseek_have_no_experts(void **state)
{
    (void)state;
    struct model_dir m = model_dirs_open("tests/models/deepseek-odd/mlx");
    struct extent x[EXPERT_MAX_EXTENTS];
    struct matrix w;
    struct moeflux_err e;
    assert_int_equal(model_dir_expert(&m, 1, 0, x), 0);
    assert_int_equal(model_dir_expert(&m, 2, 0, x), 9);
    assert_int_equal(m.expert_bytes, 1327104);
    assert_int_equal(model_dir_matrix(&m, "model.layers.2.mlp.gate", 16, 256, &w, &e), 0);
    assert_int_equal(w.format, FORMAT_BF16);
    assert_null(w.scales);
    model_dir_close(&m);
}

static void absorb_kv_b(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    static const struct {
        const char *tail, *dtype, *embed, *unembed;
    } parts[] = {
        {"weight", "U32", "[4,128,8]", "[4,64,16]"},
        {"scales", "BF16", "[4,128,1]", "[4,64,2]"},
        {"biases", "BF16", "[4,128,1]", "[4,64,2]"},
    };
    const char *at = t ? strstr(t->name, "kv_b_proj.") : NULL;
    if (t && !at)
        st_writer_add_like(w, t->name, t, bytes);
    for (int i = 0; at && i < 3; i++) {
        char name[256];
        if (strcmp(at + strlen("kv_b_proj."), parts[i].tail) != 0)
            continue;
        snprintf(name, sizeof name, "%.*sembed_q.%s", (int)(at - t->name), t->name, parts[i].tail);
        st_writer_add(w, name, parts[i].dtype, parts[i].embed, bytes, t->bytes / 2);
        snprintf(name, sizeof name, "%.*sunembed_out.%s", (int)(at - t->name), t->name, parts[i].tail);
        st_writer_add(w, name, parts[i].dtype, parts[i].unembed, bytes + t->bytes / 2, t->bytes / 2);
    }
}

static void embed_q_and_unembed_out_stand_in_for_kv_b_proj(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *src = tmp_tree_path(tmp, "src"), *dst = tmp_tree_path(tmp, "dst");
    st_writer_rewrite("tests/models/deepseek-odd/mlx", src, absorb_kv_b);
    struct convert_options o = {.src = src, .dst = dst};
    struct convert_result r;
    struct moeflux_err e;
    assert_int_equal(convert_run(&o, &r, &e), 0);
    const char *dirs[] = {src, dst};
    for (int i = 0; i < 2; i++) {
        struct model_dir m = model_dirs_open(dirs[i]);
        struct matrix w;
        assert_int_equal(model_dir_matrix(&m, "model.layers.3.self_attn.embed_q", 512, 64, &w, &e), 0);
        assert_int_equal(model_dir_matrix(&m, "model.layers.3.self_attn.unembed_out", 256, 128, &w, &e), 0);
        assert_null(model_dir_find(&m, "model.layers.3.self_attn.kv_b_proj.weight"));
        model_dir_close(&m);
    }
    tmp_tree_remove(tmp);
}

static void a_manifest_without_bits_takes_them_from_the_shapes(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    tmp_tree_replace(dir, "model_weights.json", "\"bits\": 8", "\"beats\": 8");
    struct model_dir m = model_dirs_open(dir);
    struct matrix w;
    struct moeflux_err e;
    assert_int_equal(model_dir_matrix(&m, "model.layers.0.mlp.gate", 12, 192, &w, &e), 0);
    assert_int_equal(w.format, FORMAT_Q8);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void a_tokenizer_is_found_where_there_is_one(void **state)
{
    struct fixture *f = *state;
    struct model_dir a = model_dirs_open("tests/models/tiny"), b = model_dirs_open(f->packed);
    assert_string_equal(a.tokenizer_path, "tests/models/tiny/tokenizer.json");
    assert_null(b.tokenizer_path);
    model_dir_close(&a);
    model_dir_close(&b);
}

static void generation_config_adds_end_of_text_ids(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    tmp_tree_write_text(dir, "generation_config.json", "{\"eos_token_id\": [77, 1]}");
    struct model_dir m = model_dirs_open(dir);
    assert_int_equal(m.config.n_eos, 3);
    assert_int_equal(m.config.eos[2], 77);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void the_manifest_alone_configures_a_packed_directory(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    assert_int_equal(unlink(tmp_tree_path(dir, "config.json")), 0);
    struct model_dir a = model_dirs_open(f->packed), b = model_dirs_open(dir);
    const struct config *x = &a.config, *y = &b.config;
    assert_memory_equal(x->layers, y->layers, 6 * sizeof *x->layers);
    assert_memory_equal(x->eos, y->eos, sizeof x->eos);
    assert_int_equal(x->ropes[0].dim, y->ropes[0].dim);
    assert_true(x->ropes[0].theta == y->ropes[0].theta && x->rms_eps == y->rms_eps);
    assert_int_equal(config_conv_dim(&config_first(x, PART_DELTA_NET)->delta),
                     config_conv_dim(&config_first(y, PART_DELTA_NET)->delta));
    assert_int_equal(x->n_experts, y->n_experts);
    assert_int_equal(x->max_context, y->max_context);
    model_dir_close(&a);
    model_dir_close(&b);
    tmp_tree_remove(tmp);
}

static void move(const char *dir, const char *from, const char *to)
{
    assert_int_equal(rename(tmp_tree_path(dir, from), tmp_tree_path(dir, to)), 0);
}

static void parts_in_mlx_artifacts_and_root_are_found(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    static const char *const folders[] = {"mlx", "artifacts", "root"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(mkdir(tmp_tree_path(dir, folders[i]), 0777), 0);
    move(dir, "config.json", "mlx/config.json");
    move(dir, "model_weights.json", "artifacts/model_weights.json");
    move(dir, "model_weights.bin", "artifacts/model_weights.bin");
    move(dir, "packed_experts", "root/packed_experts");
    struct model_dir m = model_dirs_open(dir);
    assert_true(m.packed);
    assert_int_equal(m.n_tensors, 213);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* Cogito-V2's layout upstream: no model_type in the manifest, files for the layers with experts only. */
static void the_layout_of_cogito_opens(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "d");
    struct convert_options o = {.src = "tests/models/deepseek-odd/mlx", .dst = dir};
    struct convert_result r;
    struct extent x[EXPERT_MAX_EXTENTS];
    struct moeflux_err e;
    assert_int_equal(convert_run(&o, &r, &e), 0);
    assert_int_equal(unlink(tmp_tree_path(dir, "config.json")), 0);
    assert_int_equal(unlink(tmp_tree_path(dir, "packed_experts/layout.json")), 0);
    assert_int_equal(mkdir(tmp_tree_path(dir, "artifacts"), 0777), 0);
    assert_int_equal(mkdir(tmp_tree_path(dir, "root"), 0777), 0);
    move(dir, "model_weights.json", "artifacts/model_weights.json");
    move(dir, "model_weights.bin", "artifacts/model_weights.bin");
    move(dir, "packed_experts", "root/packed_experts");
    tmp_tree_replace(dir, "artifacts/model_weights.json", "\"model_type\"", "\"kind\"");
    struct model_dir m = model_dirs_open(dir);
    assert_ptr_equal(m.config.family, &family_deepseek3);
    assert_true(m.config.ropes[0].yarn && m.config.ropes[0].factor == 40.0);
    assert_int_equal(m.n_files, 1 + 3);
    assert_non_null(strstr(m.files[1].path, "root/packed_experts/layer_02.bin"));
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(model_dir_expert(&m, i, 7, x), i < 2 ? 0 : 1);
    assert_int_equal(x[0].off, 7 * 27648);
    model_dir_close(&m);
    assert_int_equal(unlink(tmp_tree_path(dir, "root/packed_experts/layer_03.bin")), 0);
    model_dirs_refuse(dir, ERR_IO, "layer_03.bin: No such file");
    tmp_tree_remove(tmp);
}

/* --- directories that are not there --- */

static void what_is_no_model_directory_is_refused(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    model_dirs_refuse("/nonexistent/model", ERR_IO, "/nonexistent/model: No such file or directory");
    model_dirs_refuse("tests/models/tiny/config.json", ERR_IO, "expected a model directory");
    model_dirs_refuse(tmp, ERR_IO, "neither model_weights.json nor config.json");
    tmp_tree_write_text(tmp, "config.json", "{}");
    model_dirs_refuse(tmp, ERR_FORMAT, "model_type");
    tmp_tree_write_text(tmp, "model_weights.json", "{}");
    model_dirs_refuse(tmp, ERR_IO, "model_weights.bin is not");
    tmp_tree_remove(tmp);
}

/* --- layer files --- */

static void layer_files_of_another_length_are_refused(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    const char *file = tmp_tree_path(dir, "packed_experts/layer_04.bin");
    static const struct {
        off_t bytes;
        int code;
        const char *text;
    } cases[] = {
        {0, ERR_FORMAT, "layer_04.bin: 0 bytes, expected 248832 (12 experts of 20736 bytes)"},
        {248831, ERR_FORMAT, "248831 bytes"},
        {248833, ERR_FORMAT, "248833 bytes"},
        {20736, ERR_FORMAT, "20736 bytes"},
        {138240, ERR_UNSUPPORTED, "the experts have 2 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(truncate(file, cases[i].bytes), 0);
        model_dirs_refuse(dir, cases[i].code, cases[i].text);
    }
    assert_int_equal(unlink(file), 0);
    model_dirs_refuse(dir, ERR_IO, "layer_04.bin: No such file or directory");
    assert_int_equal(mkdir(file, 0777), 0);
    model_dirs_refuse(dir, ERR_IO, "layer_04.bin: a directory, expected a regular file");
    tmp_tree_remove(tmp);
}

static void a_missing_experts_folder_is_refused(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    move(dir, "packed_experts", "elsewhere");
    model_dirs_refuse(dir, ERR_IO, "packed_experts is not");
    tmp_tree_remove(tmp);
}

/* --- manifests --- */

/* A short manifest opens up to its tensors: a missing one is then named. */
#define ENTRY(off, size, shape, dtype, more)                                                                 \
    "{\"tensors\":{\"x.y\":{\"offset\":" off ",\"size\":" size ",\"shape\":" shape ",\"dtype\":" dtype more  \
    "}}}"

static const struct {
    const char *manifest, *text;
} lies[] = {
    {ENTRY("0", "17", "[4]", "\"F32\"", ""), "17 bytes, expected 16 for F32 [4]"},
    {ENTRY("4", "16", "[4]", "\"F32\"", ""), "offset 4, expected a multiple of 64"},
    {ENTRY("64000000", "16", "[4]", "\"F32\"", ""), "past the end"},
    {ENTRY("9223372036854775744", "16", "[4]", "\"F32\"", ""), "past the end"},
    {ENTRY("-64", "16", "[4]", "\"F32\"", ""), "offset is -64"},
    {ENTRY("\"0\"", "16", "[4]", "\"F32\"", ""), "offset is a string, expected a whole number (tensor x.y)"},
    {ENTRY("0", "16", "[4294967296,4294967296]", "\"F32\"", ""), "overflows"},
    {ENTRY("0", "16", "[2,-2]", "\"F32\"", ""), "shape"},
    {ENTRY("0", "16", "{}", "\"F32\"", ""), "shape is an object"},
    {ENTRY("0", "16", "[16]", "\"I8\"", ""), "dtype I8, expected U32, BF16, F16 or F32"},
    {ENTRY("0", "16", "[4]", "\"I32\"", ""), "dtype I32, expected U32, BF16, F16 or F32"},
    {ENTRY("0", "16", "[2]", "\"I64\"", ""), "dtype I64, expected U32, BF16, F16 or F32"},
    {ENTRY("0", "16", "[16]", "\"U8\"", ""), "dtype U8, expected U32, BF16, F16 or F32"},
    {ENTRY("0", "16", "[4]", "\"Q4\"", ""), "unknown dtype Q4"},
    {ENTRY("0", "16", "[4]", "7", ""), "dtype is a whole number"},
    {ENTRY("0", "144", "[2,128]", "\"Q4_K\"", ""), "128 columns of Q4_K, expected a multiple of 256"},
    {ENTRY("0", "144", "[2,256]", "\"Q4_K\"", ""), "144 bytes, expected 288 for Q4_K [2, 256]"},
    {ENTRY("64000000", "144", "[256]", "\"Q4_K\"", ""), "past the end"},
    {ENTRY("0", "16", "[4294967296,4294967296]", "\"Q4_K\"", ""), "overflows"},
    {ENTRY("0", "144", "[256]", "\"Q4_K\"", ",\"bits\":4"), "bits are given for dtype Q4_K"},
    {ENTRY("0", "16", "[4]", "\"F32\"", ",\"bits\":4"), "bits are given for dtype F32"},
    {ENTRY("0", "16", "[4]", "\"U32\"", ",\"bits\":64"), "bits is 64"},
    {"{\"tensors\":{\"x\":{}}}", "offset is missing (tensor x)"},
    {"{\"tensors\":{\"x\":{\"offset\":0,\"size\":0}}}", "dtype is missing"},
    {"{\"tensors\":[]}", "expected an object \"tensors\""},
    {"{}", "expected an object \"tensors\""},
    {"{\"tensors\":{},\"num_tensors\":5}", "num_tensors is 5, but there are 0"},
    {"{\"tensors\":{\"a\":{\"offset\":0,\"size\":68,\"shape\":[17],\"dtype\":\"F32\"},"
     "\"b\":{\"offset\":64,\"size\":16,\"shape\":[4],\"dtype\":\"F32\"}}}",
     "tensors a and b overlap"},
    {"{\"tensors\":{}}", "tensor model.embed_tokens.weight is missing"},
};

static void manifests_that_lie_are_refused_with_the_reason(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        tmp_tree_write_text(dir, "model_weights.json", lies[i].manifest);
        model_dirs_refuse(dir, ERR_FORMAT, lies[i].text);
    }
    tmp_tree_remove(tmp);
}

static void a_manifest_cut_anywhere_is_refused(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    static const char small[] = ENTRY("0", "16", "[2,2]", "\"U32\"", ",\"bits\":8");
    for (size_t n = 0; n < sizeof small; n++) {
        tmp_tree_write(dir, "model_weights.json", small, n);
        model_dirs_refuse(dir, ERR_FORMAT, "");
    }
    size_t whole;
    uint8_t *bytes = tmp_tree_read(tmp_tree_path(f->packed, "model_weights.json"), &whole);
    for (size_t n = 0; n + 1 < whole; n += 331) {
        tmp_tree_write(dir, "model_weights.json", bytes, n);
        model_dirs_refuse(dir, ERR_FORMAT, "model_weights.json: ");
    }
    free(bytes);
    tmp_tree_remove(tmp);
}

/* A tensor that a checkpoint has in addition. */
static const char *extra;

static void add_extra(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    const float one = 1;
    if (t)
        st_writer_add_like(w, t->name, t, bytes);
    else
        st_writer_add(w, extra, "F32", "[1]", &one, sizeof one);
}

static void tensors_that_nothing_reads_are_refused_unless_they_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_refused;
    } cases[] = {
        {"language_model.model.layers.3.mlp.gate.e_score_correction_bias", true},
        {"language_model.model.layers.0.foo.weight", true},
        {"language_model.model.layers.0.linear_attn.out_proj.weight_zero_point", true},
        {"language_model.model.layers.0.mlp.experts.0.foo.weight", true},
        {"language_model.model.norm.bias", true},
        {"language_model.model.embed_tokens.bias", true},
        {"language_model.lm_head.bias", true},
        {"language_model.model.layers.0.linear_attn.out_proj.input_scale", false},
        {"language_model.model.layers.3.self_attn.k_proj.k_scale", false},
        {"language_model.model.layers.3.self_attn.rotary_emb.inv_freq", false},
        {"language_model.model.layers.0.mlp.experts.0.up_proj.input_scale", false},
        {"language_model.model.layers.99.foo.weight", false},
        {"language_model.mtp.layers.0.foo.weight", false},
        {"vision_tower.blocks.0.attn.proj.bias", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp = tmp_tree_new();
        const char *dir = tmp_tree_path(tmp, "m");
        extra = cases[i].name;
        st_writer_rewrite("tests/models/qwen-odd/mlx", dir, add_extra);
        if (cases[i].is_refused) {
            model_dirs_refuse(dir, ERR_UNSUPPORTED, extra + strlen("language_model."));
        } else {
            struct model_dir m = model_dirs_open(dir);
            model_dir_close(&m);
        }
        tmp_tree_remove(tmp);
    }
}

static void tensors_that_do_not_fit_the_config_are_refused(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *file, *old, *with, *text;
    } cases[] = {
        {"model_weights.json", "\"model.layers.2.self_attn.k_norm.weight\"",
         "\"model.layers.2.self_attn.k_nurm.weight\"",
         "tensor model.layers.2.self_attn.k_norm.weight is missing"},
        {"model_weights.json", "\"lm_head.scales\"", "\"lm_head.skales\"",
         "lm_head.weight is U32, but there are no scales"},
        {"model_weights.json", "\"bits\": 8", "\"bits\": 4", "declared with 4 bits"},
        {"model_weights.json", "\"bits\": 4", "\"bits\": 8", "declared with 8 bits"},
        {"config.json", "\"vocab_size\": 1003", "\"vocab_size\": 1004", "model.embed_tokens"},
        {"config.json", "\"head_dim\": 64", "\"head_dim\": 128", "self_attn.q_proj"},
        {"config.json", "\"num_experts\": 12", "\"num_experts\": 13", "mlp.gate"},
        {"config.json", "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 128", "layer_00.bin"},
        {"config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7", "layer_types"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp;
        const char *dir = copy_of(f->packed, &tmp);
        tmp_tree_replace(dir, cases[i].file, cases[i].old, cases[i].with);
        model_dirs_refuse(dir, ERR_FORMAT, cases[i].text);
        tmp_tree_remove(tmp);
    }
}

/* --- plain checkpoints --- */

static void plain_tensors_that_lie_are_refused(void **state)
{
    struct fixture *f = *state;
    /* Replacements of equal length: the header's own length stays true. */
    static const struct {
        const char *file, *old, *with, *text;
        int code;
    } cases[] = {
        {"config.json", "\"bits\": 4", "\"bits\": 8", "declared with 8 bits", ERR_FORMAT},
        {"config.json", "\"group_size\": 64", "\"group_size\": 48",
         "quantization: group_size is 48, expected 32, 64 or 128", ERR_UNSUPPORTED},
        {"config.json", "\"group_size\": 64", "\"group_size\": 32", "declared with 4 bits", ERR_FORMAT},
        {"config.json", "\"bits\": 4", "\"bits\": 7", "quantization: bits is 7, expected 2, 3, 4, 5, 6 or 8",
         ERR_UNSUPPORTED},
        {"config.json", "\"affine\"", "\"mxfp4\"",
         "quantization: 4 bits and group_size 64, expected 4 and 32 for mode mxfp4", ERR_UNSUPPORTED},
        {"config.json", "\"affine\"", "\"mxfp5\"", "mode is mxfp5, expected affine, mxfp4, mxfp8 or nvfp4",
         ERR_UNSUPPORTED},
        {"config.json", "layers.3.mlp.gate\": {\n   \"group_size\": 64,\n   \"bits\": 8",
         "layers.3.mlp.gate\": {\n   \"group_size\": 64,\n   \"bits\": 4", "layers.3.mlp.gate.weight",
         ERR_FORMAT},
        {"model.safetensors", "layers.1.mlp.switch_mlp.up_proj.scales",
         "layers.1.mlp.switch_mlp.up_proj.skales", "no scales", ERR_FORMAT},
        {"model.safetensors", "\"dtype\":\"BF16\",\"shape\":[12,192,1]",
         "\"dtype\":\"F16\" ,\"shape\":[12,192,1]", "biases: BF16, expected F16 as the scales", ERR_FORMAT},
        {"model.safetensors", "[12,64,24]", "[64,12,24]", "does not fit the weight", ERR_FORMAT},
        {"model.safetensors", "conv1d.weight\":{\"dtype\":\"BF16\",\"shape\":[1024,4,1]",
         "conv1d.weight\":{\"dtype\":\"BF16\",\"shape\":[1024,1,4]", "norms are still as in a Hugging Face",
         ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *tmp;
        const char *dir = copy_of(f->plain, &tmp);
        unlink(tmp_tree_path(dir, "model.safetensors.index.json"));
        tmp_tree_replace(dir, cases[i].file, cases[i].old, cases[i].with);
        model_dirs_refuse(dir, cases[i].code, cases[i].text);
        tmp_tree_remove(tmp);
    }
}

static void drop_up_stack(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && !strstr(t->name, "layers.4.mlp.switch_mlp.up_proj"))
        st_writer_add_like(w, t->name, t, bytes);
}

static void add_bias(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t)
        st_writer_add_like(w, t->name, t, bytes);
    else
        st_writer_add(w, "language_model.model.layers.2.self_attn.q_proj.bias", "BF16", "[2]", "\0\0\0", 4);
}

static void three_bits(struct st_writer *w, const struct tensor *t, const uint8_t *bytes)
{
    if (t && !strcmp(t->name, "language_model.lm_head.weight"))
        st_writer_add(w, t->name, "U32", "[1003, 18]", bytes, 72216);
    else if (t)
        st_writer_add_like(w, t->name, t, bytes);
}

static void stacks_that_are_missing_or_odd_are_refused(void **state)
{
    struct fixture *f = *state;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "a");
    st_writer_rewrite(f->plain, dir, drop_up_stack);
    model_dirs_refuse(dir, ERR_FORMAT, "layer 4 expert 0: no tensor with its up_proj");
    dir = tmp_tree_path(tmp, "b");
    st_writer_rewrite(f->plain, dir, add_bias);
    model_dirs_refuse(dir, ERR_UNSUPPORTED, "q_proj.bias: projections with a bias");
    dir = tmp_tree_path(tmp, "c");
    st_writer_rewrite(f->plain, dir, three_bits);
    model_dirs_refuse(dir, ERR_FORMAT, "declared with 4 bits");
    tmp_tree_replace(dir, "config.json", "\"mode\": \"affine\",",
                     "\"mode\": \"affine\", \"language_model.lm_head\": {\"bits\": 3},");
    struct model_dir m = model_dirs_open(dir);
    assert_int_equal(model_dir_find(&m, "lm_head.weight")->format, FORMAT_Q3);
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

/* --- contents --- */

/* Writes a bf16 NaN (or infinity) over the value at `off`. */
static void spoil(const char *path, uint64_t off, uint16_t value)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, 2, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void scales_that_are_not_finite_are_refused_when_read(void **state)
{
    struct fixture *f = *state;
    static const uint16_t values[] = {0x7fc0, 0x7f80, 0xff80};
    static const char *const names[] = {"lm_head.scales", "lm_head.biases"};
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    for (int i = 0; i < 6; i++) {
        struct model_dir m = model_dirs_open(dir);
        struct moeflux_err e;
        const struct tensor *t = model_dir_find(&m, names[i % 2]);
        uint8_t bytes[6018];
        spoil(tmp_tree_path(dir, "model_weights.bin"), t->off + 2000, values[i / 2]);
        assert_int_equal(model_dir_read(&m, t, 0, 2000, bytes, &e), 0);
        assert_int_equal(model_dir_read(&m, t, 2002, 1000, bytes, &e), 0);
        assert_int_equal(model_dir_read(&m, t, 0, t->bytes, bytes, &e), ERR_FORMAT);
        assert_int_equal(model_dir_read(&m, t, 2000, 2, bytes, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, names[i % 2]));
        spoil(tmp_tree_path(dir, "model_weights.bin"), t->off + 2000, 0x3f80);
        model_dir_close(&m);
    }
    tmp_tree_remove(tmp);
}

static void vectors_that_are_not_finite_are_refused_when_read(void **state)
{
    struct fixture *f = *state;
    char *tmp;
    const char *dir = copy_of(f->packed, &tmp);
    struct model_dir m = model_dirs_open(dir);
    struct moeflux_err e;
    const struct tensor *t = model_dir_find(&m, "model.norm.weight");
    float values[192];
    spoil(tmp_tree_path(dir, "model_weights.bin"), t->off + 382, 0x7f80);
    assert_int_equal(model_dir_read_f32(&m, t, values, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "model.norm.weight: element 191 is not finite"));
    model_dir_close(&m);
    tmp_tree_remove(tmp);
}

static void experts_that_are_not_finite_are_named(void **state)
{
    struct fixture *f = *state;
    struct model_dir m = model_dirs_open(f->packed);
    const struct expert_layout *l = &m.experts[0];
    uint8_t slot[20736];
    struct moeflux_err e;
    const struct {
        uint64_t at;
        const char *part;
    } parts[] = {
        {l->gate_s, "gate_proj.scales"},   {l->gate_b, "gate_proj.biases"},
        {l->up_s + 382, "up_proj.scales"}, {l->up_b + 2, "up_proj.biases"},
        {l->down_s, "down_proj.scales"},   {l->down_b + 382, "down_proj.biases"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        read_expert(&m, 1, 2, slot);
        memcpy(slot + parts[i].at, "\x80\x7f", 2);
        assert_int_equal(model_dir_check_expert(&m, 1, 2, slot, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "layer 1 expert 2"));
        assert_non_null(strstr(e.text, parts[i].part));
    }
    read_expert(&m, 1, 2, slot);
    memset(slot, 0xff, l->gate_s);
    assert_int_equal(model_dir_check_expert(&m, 1, 2, slot, &e), 0);
    model_dir_close(&m);
}

/* A file that holds rows of several matrices as one (fused.h). */
static void fused_matrices_of_another_shape_are_refused(void **state)
{
    struct fixture *f = *state;
    struct model_dir m;
    struct moeflux_err e;
    const char *dir = tmp_tree_path(f->tmp, "fused");
    tmp_tree_copy("tests/models/families/next-plain", dir);
    assert_int_equal(model_dir_open(&m, dir, &e), 0);
    assert_non_null(model_dir_find(&m, "model.layers.0.linear_attn.in_proj_z.scales"));
    assert_null(model_dir_find(&m, "model.layers.0.linear_attn.in_proj_qkvz.scales"));
    model_dir_close(&m);
    tmp_tree_replace(dir, "config.json", "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 1");
    assert_int_equal(model_dir_open(&m, dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "in_proj_qkvz"));
    assert_non_null(strstr(e.text, "has 384 rows, expected 320"));
}

static void tensors_get_the_names_of_their_family(void **state)
{
    static const char *const names[][2] = {
        {"model.layers.3.block_sparse_moe.experts.7.w2.weight",
         "model.layers.3.mlp.experts.7.down_proj.weight"},
        {"model.layers.0.block_sparse_moe.experts.1.w1.weight_scale_inv",
         "model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv"},
        {"model.layers.0.block_sparse_moe.experts.1.w3.weight",
         "model.layers.0.mlp.experts.1.up_proj.weight"},
        {"model.layers.0.block_sparse_moe.e_score_correction_bias",
         "model.layers.0.mlp.e_score_correction_bias"},
        {"model.norm.weight", "model.norm.weight"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct moeflux_err e;
        char *name = strdup(names[i][0]);
        assert_int_equal(names_rename(&name, family_minimaxm2.renamed, &e), 0);
        assert_string_equal(name, names[i][1]);
        assert_int_equal(names_rename(&name, family_qwen3moe.renamed, &e), 0);
        assert_string_equal(name, names[i][1]);
        free(name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_layouts_give_the_same_tensors_and_experts),
        cmocka_unit_test(a_packed_expert_is_one_extent_and_a_plain_one_nine),
        cmocka_unit_test(the_published_parts_of_an_expert_follow_each_other),
        cmocka_unit_test(matrices_carry_their_own_bits),
        cmocka_unit_test(a_matrix_of_another_shape_is_refused),
        cmocka_unit_test(vectors_are_counted_whatever_their_dimensions),
        cmocka_unit_test(bf16_is_widened_exactly),
        cmocka_unit_test(dense_layers_of_deepseek_have_no_experts),
        cmocka_unit_test(embed_q_and_unembed_out_stand_in_for_kv_b_proj),
        cmocka_unit_test(a_manifest_without_bits_takes_them_from_the_shapes),
        cmocka_unit_test(a_tokenizer_is_found_where_there_is_one),
        cmocka_unit_test(generation_config_adds_end_of_text_ids),
        cmocka_unit_test(the_manifest_alone_configures_a_packed_directory),
        cmocka_unit_test(parts_in_mlx_artifacts_and_root_are_found),
        cmocka_unit_test(the_layout_of_cogito_opens),
        cmocka_unit_test(what_is_no_model_directory_is_refused),
        cmocka_unit_test(layer_files_of_another_length_are_refused),
        cmocka_unit_test(a_missing_experts_folder_is_refused),
        cmocka_unit_test(manifests_that_lie_are_refused_with_the_reason),
        cmocka_unit_test(a_manifest_cut_anywhere_is_refused),
        cmocka_unit_test(tensors_that_nothing_reads_are_refused_unless_they_change_nothing),
        cmocka_unit_test(tensors_that_do_not_fit_the_config_are_refused),
        cmocka_unit_test(plain_tensors_that_lie_are_refused),
        cmocka_unit_test(stacks_that_are_missing_or_odd_are_refused),
        cmocka_unit_test(scales_that_are_not_finite_are_refused_when_read),
        cmocka_unit_test(vectors_that_are_not_finite_are_refused_when_read),
        cmocka_unit_test(experts_that_are_not_finite_are_named),
        cmocka_unit_test(fused_matrices_of_another_shape_are_refused),
        cmocka_unit_test(tensors_get_the_names_of_their_family),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
