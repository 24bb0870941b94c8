/* convert with formats that are asked for: what the search of scales promises, what recipes choose, what DST
 * holds.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "convert/convert.h"
#include "convert/encode.h"
#include "convert/search.h"
#include "cpu/isa.h"
#include "check.h"
#include "model/config.h"
#include "model/model_dir.h"
#include "model/quant_config.h"
#include "sequence.h"
#include "tmp_tree.h"

#define QWEN_HF  "tests/models/sources/qwen/hf"
#define QWEN3_HF "tests/models/qwen3-odd/hf"
#define TINY     "tests/models/tiny"
#define MODELS   "tests/models/formats/"

/* ---- the search */

enum { N_GROUPS = 43, LONGEST = 128 }; /* no multiple of eight */
static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
static const uint32_t lengths[] = {32, 64, 128};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static float draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1;
}

/* Groups of every kind: around 0, with a number far out, far from 0, all equal, all 0, tiny, of one sign. */
static void fill(float *x, uint32_t n_groups, uint32_t group)
{
    uint32_t state = 7;
    for (uint32_t g = 0; g < n_groups; g++)
        for (uint32_t i = 0; i < group; i++) {
            float a = draw(&state) + draw(&state) + draw(&state);
            const float kinds[] = {a * 0.02f,  i == 3 ? 2 : a * 0.02f, 100 + a * 0.01f, 0.3f, 0,
                                   a * 1e-30f, fabsf(a) + 0.1f};
            x[g * group + i] = kinds[g % 7];
        }
}

static const uint32_t small_formats[] = {FORMAT_MXFP4, FORMAT_MXFP8, FORMAT_NVFP4};

struct coded {
    uint8_t codes[N_GROUPS * LONGEST];
    uint16_t scales[N_GROUPS], biases[N_GROUPS];
};

static void encode_ok(const float *x, uint32_t n, const struct format *f, enum convert_scales rule,
                      struct coded *c, struct convert_error *sum)
{
    const struct convert_codes to = {c->codes, c->scales, c->biases};
    memset(c, 0, sizeof *c);
    assert_true(convert_encode(DTYPE_F32, x, n, f, rule, &to, sum));
}

/* The squared error of group g as mlx decodes it. */
static double error_of(const float *x, const struct format *f, const struct coded *c, uint32_t g)
{
    float back[LONGEST];
    double sum = 0;
    format_decode(f, c->codes, c->scales, c->biases, (uint64_t)g * f->group, f->group, back);
    for (uint32_t i = 0; i < f->group; i++) {
        double r = (double)back[i] - (double)x[g * f->group + i];
        sum += r * r;
    }
    return sum;
}

static const struct format *affine(uint32_t bits, uint32_t group)
{
    return format_of(format_find_affine(bits, group, SCALE_BF16));
}

static void the_search_never_errs_more_than_min_and_max(void **state)
{
    (void)state;
    static float x[N_GROUPS * LONGEST];
    static struct coded plain, best;
    for (size_t i = 0; i < N_WIDTHS * 3; i++) {
        const struct format *f = affine(widths[i / 3], lengths[i % 3]);
        uint32_t n = N_GROUPS * f->group;
        double first = 0, second = 0;
        fill(x, N_GROUPS, f->group);
        encode_ok(x, n, f, CONVERT_SCALES_PLAIN, &plain, NULL);
        encode_ok(x, n, f, CONVERT_SCALES_SEARCH, &best, NULL);
        for (uint32_t g = 0; g < N_GROUPS; g++) {
            double a = error_of(x, f, &plain, g), b = error_of(x, f, &best, g);
            if (b > a)
                fail_msg("%s group %u: %g, with min and max %g", f->name, g, b, a);
            first += g % 7 == 0 ? a : 0;
            second += g % 7 == 0 ? b : 0;
        }
        /* Ordinary numbers lose some of it. */
        assert_true(second < 0.97 * first);
    }
}

static void the_errors_that_are_reported_are_those_of_what_is_stored(void **state)
{
    (void)state;
    static float x[N_GROUPS * LONGEST];
    static struct coded plain, best;
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const struct format *f = affine(widths[i], 64);
        struct convert_error sum = {0}, minmax = {0};
        double first = 0, second = 0, squares = 0;
        fill(x, N_GROUPS, f->group);
        encode_ok(x, N_GROUPS * f->group, f, CONVERT_SCALES_MINMAX, &plain, &minmax);
        encode_ok(x, N_GROUPS * f->group, f, CONVERT_SCALES_SEARCH, &best, &sum);
        for (uint32_t g = 0; g < N_GROUPS; g++) {
            first += error_of(x, f, &plain, g);
            second += error_of(x, f, &best, g);
        }
        for (uint32_t k = 0; k < N_GROUPS * f->group; k++)
            squares += (double)x[k] * (double)x[k];
        assert_int_equal(sum.weights, N_GROUPS * f->group);
        assert_int_equal(sum.bits, N_GROUPS * (f->group * f->bits + 32));
        assert_true(fabs(sum.squares - squares) < 1e-5 * squares);
        assert_true(fabs(sum.minmax - first) < 1e-3 * first);
        assert_true(fabs(sum.stored - second) < 1e-3 * second);
        assert_true(minmax.stored == minmax.minmax && minmax.minmax == sum.minmax);
    }
}

static void encode_small(const float *x, const struct format *f, enum convert_scales rule, struct coded *c,
                         struct convert_error *sum)
{
    const struct convert_codes to = {c->codes, c->scales, NULL};
    memset(c, 0, sizeof *c);
    assert_true(convert_encode(DTYPE_F32, x, N_GROUPS * f->group, f, rule, &to, sum));
}

static void the_search_for_small_floats_never_errs_more_than_mlx_and_reports_what_is_stored(void **state)
{
    (void)state;
    static float x[N_GROUPS * LONGEST];
    static struct coded plain, best;
    for (size_t i = 0; i < 3; i++) {
        const struct format *f = format_of(small_formats[i]);
        struct convert_error sum = {0}, minmax = {0};
        double first = 0, second = 0, usual = 0, better = 0;
        fill(x, N_GROUPS, f->group);
        encode_small(x, f, CONVERT_SCALES_MINMAX, &plain, &minmax);
        encode_small(x, f, CONVERT_SCALES_SEARCH, &best, &sum);
        for (uint32_t g = 0; g < N_GROUPS; g++) {
            double a = error_of(x, f, &plain, g), b = error_of(x, f, &best, g);
            if (b > a * (1 + 1e-5))
                fail_msg("%s group %u: %g, mlx's %g", f->name, g, b, a);
            first += a;
            second += b;
            usual += g % 7 == 0 ? a : 0;
            better += g % 7 == 0 ? b : 0;
        }
        assert_true(better < 0.97 * usual || f->bits == 8); /* 8 bits have little to gain */
        assert_int_equal(sum.weights, N_GROUPS * f->group);
        assert_int_equal(sum.bits, N_GROUPS * (f->group * f->bits + 8));
        assert_true(fabs(sum.minmax - first) < 1e-3 * first && fabs(sum.stored - second) < 1e-3 * second);
        assert_true(minmax.stored == minmax.minmax && minmax.minmax == sum.minmax);
        x[3 * f->group + 1] = NAN;
        const struct convert_codes to = {plain.codes, plain.scales, NULL};
        assert_false(convert_encode(DTYPE_F32, x, 4 * f->group, f, CONVERT_SCALES_SEARCH, &to, NULL));
    }
}

/* Also where the number of groups is no multiple of what the search takes at once. */
static void what_min_and_max_meet_exactly_keeps_their_bytes(void **state)
{
    (void)state;
    static float x[5 * 64];
    static struct coded plain, best;
    for (uint32_t i = 0; i < 5 * 64; i++) {
        const float kinds[] = {0, 0.25f, -3, (float)(i % 16) - 8, (float)(i % 16) * 2};
        x[i] = kinds[i / 64];
    }
    encode_ok(x, 5 * 64, affine(4, 64), CONVERT_SCALES_PLAIN, &plain, NULL);
    encode_ok(x, 5 * 64, affine(4, 64), CONVERT_SCALES_SEARCH, &best, NULL);
    assert_memory_equal(&plain, &best, sizeof plain);
}

static void values_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static float x[9 * 32];
    static struct coded c;
    const struct convert_codes to = {c.codes, c.scales, c.biases};
    fill(x, 9, 32);
    x[8 * 32 + 5] = NAN;
    assert_false(convert_encode(DTYPE_F32, x, 9 * 32, affine(3, 32), CONVERT_SCALES_SEARCH, &to, NULL));
    x[8 * 32 + 5] = -INFINITY;
    assert_false(convert_encode(DTYPE_F32, x, 9 * 32, affine(3, 32), CONVERT_SCALES_SEARCH, &to, NULL));
}

#define DECLARE(set) void search_##set(struct search *s, bool more);
CPU_ISAS_SHARED(DECLARE)

static void every_instruction_set_finds_the_same(void **state)
{
    (void)state;
#define ADDRESS(set) search_##set,
    static search_fn *const all[CPU_N_ISAS] = {CPU_ISAS_SHARED(ADDRESS)};
    static struct search first, s;
    for (size_t i = 0; i < N_WIDTHS * 3; i++) {
        for (uint32_t k = 0; k < CPU_N_ISAS; k++) {
            memset(&s, 0, sizeof s);
            s.group = lengths[i % 3];
            s.bits = widths[i / 3];
            fill(s.x, SEARCH_GROUPS, s.group);
            for (uint32_t g = 0; g < SEARCH_GROUPS; g++)
                s.scales[g] = bf16_from_float(0.01f);
            if (!cpu_isa_at(k))
                continue;
            all[k](&s, true);
            if (k == 0)
                first = s;
            assert_memory_equal(&s, &first, sizeof s);
        }
    }
}

/* ---- settings */

static void wish_is(const struct convert_settings *s, const struct config *c, const char *key,
                    const json_t *entry)
{
    const char *name = strncmp(key, "language_model.", 15) == 0 ? key + 15 : key;
    uint32_t bits = (uint32_t)json_integer_value(json_object_get(entry, "bits"));
    struct convert_wish w = convert_settings_matrix(s, c, name);
    if (w.bits != bits)
        fail_msg("%s: %u bits, mlx_lm chose %u", name, w.bits, bits);
    unsigned layer;
    if (strstr(name, "switch_mlp") && sscanf(name, "model.layers.%u.", &layer) == 1)
        assert_int_equal(convert_settings_experts(s, c, layer, strstr(name, "down") != NULL).bits, bits);
}

/* The models' tables are mlx_lm's. It gives routers the few bits too, which convert keeps at 8 (another
 * test). */
static void recipes_choose_the_bits_that_mlx_lm_chose(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        enum convert_recipe recipe;
    } cases[] = {{MODELS "mixed-3-6", CONVERT_MIXED_3_6}, {MODELS "deepseek-mixed-2-6", CONVERT_MIXED_2_6}};
    for (size_t i = 0; i < 2; i++) {
        struct model_dir m;
        struct moeflux_err e = {0};
        struct convert_settings s = {.recipe = cases[i].recipe};
        json_t *root = json_load_file(tmp_tree_path(cases[i].dir, "config.json"), 0, NULL), *entry;
        const char *key;
        size_t n = 0;
        check_ok(model_dir_open(&m, cases[i].dir, &e), &e);
        json_object_foreach(json_object_get(root, "quantization"), key, entry)
        {
            if (!json_is_object(entry))
                continue;
            wish_is(&s, &m.config, key, entry);
            n++;
        }
        assert_true(n > 20);
        json_decref(root);
        model_dir_close(&m);
    }
}

static int run(const char *src, const char *dst, struct convert_settings s, struct convert_result *r,
               struct moeflux_err *e)
{
    struct convert_options o = {.src = src, .dst = dst, .settings = s, .verify = true};
    struct convert_result ignored;
    *e = (struct moeflux_err){0};
    return convert_run(&o, r ? r : &ignored, e);
}

static void what_cannot_be_done_is_said_before_anything_is_written(void **state)
{
    (void)state;
    static const struct {
        const char *src;
        struct convert_settings s;
        const char *text;
    } cases[] = {
        {QWEN3_HF, {.bits = 7}, "`bits`: expected 2, 3, 4, 5, 6 or 8, found 7"},
        {QWEN3_HF, {.expert_bits = 1}, "`expert_bits`: expected 2, 3, 4, 5, 6 or 8, found 1"},
        {QWEN3_HF, {.group = 48}, "`group`: expected 32, 64 or 128, found 48"},
        {QWEN3_HF, {.expert_group = 256}, "`expert_group`: expected 32, 64 or 128, found 256"},
        {QWEN3_HF, {.bits = 4, .recipe = CONVERT_MIXED_3_6}, "`recipe` and `bits` exclude each other"},
        {QWEN3_HF, {.expert_bits = 4, .recipe = CONVERT_MIXED_3_6}, "`recipe` and `expert_bits` exclude"},
        {TINY,
         {.bits = 3, .expert_group = 128},
         "layer 0's experts, down: 64 columns, which `expert_group` 128 does not divide"},
        {TINY, {.bits = 6}, "tensor model.embed_tokens.weight: 4 bits, fewer than `bits` asks for (6)"},
        {TINY,
         {.bits = 3, .expert_bits = 5},
         "layer 0's experts, gate and up: 4 bits, fewer than `expert_bits` asks for (5)"},
        {TINY, {.bits = 4, .group = 32}, "4 bits in groups of 64 already; `group` 32 changes those of fewer"},
        {QWEN3_HF, {.mode = CONVERT_MODE_MXFP4, .bits = 4}, "`mode` mxfp4 and `bits` exclude each other"},
        {QWEN3_HF, {.mode = CONVERT_MODE_NVFP4, .group = 32}, "`mode` nvfp4 and `group` exclude each other"},
        {QWEN3_HF,
         {.mode = CONVERT_MODE_MXFP8, .recipe = CONVERT_MIXED_3_6},
         "`mode` mxfp8 and `recipe` exclude each other"},
        {QWEN3_HF,
         {.expert_mode = CONVERT_MODE_MXFP4, .expert_bits = 3},
         "`expert_mode` mxfp4 and `expert_bits` exclude each other"},
        {QWEN3_HF,
         {.expert_mode = CONVERT_MODE_MXFP4, .expert_group = 32},
         "`expert_mode` mxfp4 and `expert_group` exclude each other"},
        {TINY,
         {.expert_mode = CONVERT_MODE_MXFP4},
         "experts, gate and up: 4 bits already; `expert_mode` mxfp4 changes those of more bits alone"},
        {TINY, {.mode = CONVERT_MODE_MXFP8}, "4 bits, fewer than `mode` asks for (8)"},
        {TINY, {.mode = CONVERT_MODE_AFFINE}, "is quantised already;"},
        {TINY,
         {.group = 32},
         "is quantised already; `bits`, `expert_bits`, `mode`, `expert_mode` or `recipe`"},
        {TINY, {.rule = CONVERT_RULE_SEARCH}, "is quantised already"},
    };
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e;
        int rc = run(cases[i].src, dst, cases[i].s, NULL, &e);
        if (rc != ERR_USAGE || !strstr(e.text, cases[i].text))
            fail_msg("%d \"%s\", expected \"%s\"", rc, e.text, cases[i].text);
        assert_int_equal(tmp_tree_count(tmp), 0);
    }
    tmp_tree_remove(tmp);
}

/* ---- what is written */

/* Every quantised matrix of the directory is as the table in its config.json says; how many there are. */
static size_t check_table(const char *dir, const char *prefix)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    json_t *root = json_load_file(tmp_tree_path(dir, "config.json"), 0, NULL);
    const json_t *table = json_object_get(root, "quantization");
    size_t n = 0;
    assert_true(json_is_object(table));
    assert_null(json_object_get(root, "quantization_config"));
    check_ok(model_dir_open(&m, dir, &e), &e);
    for (size_t i = 0; i < m.n_tensors; i++) {
        const struct tensor *t = &m.tensors[i];
        char key[160];
        if (t->dtype != DTYPE_U32)
            continue;
        snprintf(key, sizeof key, "%s%.*s", prefix, (int)(strlen(t->name) - 7), t->name);
        const json_t *said = json_object_get(table, key) ? json_object_get(table, key) : table;
        assert_int_equal(json_integer_value(json_object_get(said, "bits")), t->bits);
        assert_int_equal(json_integer_value(json_object_get(said, "group_size")), t->group);
        assert_string_equal(json_string_value(json_object_get(said, "mode"))
                                ? json_string_value(json_object_get(said, "mode"))
                                : "affine",
                            quant_config_mode_name(t->mode));
        n++;
    }
    for (uint32_t i = 0; i < m.config.n_layers; i++) {
        char key[160];
        if (!config_has_experts(&m.config, i))
            continue;
        snprintf(key, sizeof key, "%smodel.layers.%u.mlp.switch_mlp.down_proj", prefix, i);
        const json_t *said = json_object_get(table, key) ? json_object_get(table, key) : table;
        const struct format *f = format_of(m.experts[i].formats.down);
        assert_int_equal(json_integer_value(json_object_get(said, "bits")), f->bits);
        assert_int_equal(json_integer_value(json_object_get(said, "group_size")), f->group);
    }
    model_dir_close(&m);
    json_decref(root);
    return n;
}

/* Logits of the directory. */
static void compute(const char *dir, const char *device, float *out)
{
    static const int32_t ids[] = {3, 14, 15, 9, 2, 6, 5};
    struct sequence q = sequence_open(dir, device, 8, 0, 16);
    sequence_eval(&q, ids, 7, out);
    sequence_close(&q);
}

/* The CPU's are the reference's. */
static void check_logits(const char *dir)
{
    static float want[4096], got[4096];
    float largest = 0, farthest = 0;
    compute(dir, "reference", want);
    compute(dir, "cpu", got);
    for (uint32_t i = 0; i < 4096; i++) {
        assert_true(isfinite(got[i]));
        largest = fmaxf(largest, fabsf(want[i]));
        farthest = fmaxf(farthest, fabsf(got[i] - want[i]));
    }
    assert_true(largest > 0);
    if (farthest > 1e-4f * largest)
        fail_msg("%s: %g of %g", dir, (double)farthest, (double)largest);
}

static double relative_error(const struct convert_error *x)
{
    assert_true(x->weights > 0 && x->stored < x->minmax);
    return sqrt(x->stored / x->squares);
}

/* The router has 8 bits, all else what is asked for. */
static void a_plain_source_converts_to_every_width(void **state)
{
    (void)state;
    static const struct {
        struct convert_settings s;
        double most; /* the relative error of the experts */
    } cases[] = {{{.bits = 8}, 0.006}, {{.bits = 6}, 0.022}, {{.bits = 5, .expert_group = 32}, 0.038},
                 {{.bits = 4}, 0.09},  {{.bits = 3}, 0.18},  {{.bits = 2, .expert_group = 32}, 0.32}};
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct convert_result r;
        struct moeflux_err e;
        struct model_dir m;
        char name[16];
        snprintf(name, sizeof name, "q%zu", i);
        const char *dst = tmp_tree_path(tmp, name);
        check_ok(run(QWEN3_HF, dst, cases[i].s, &r, &e), &e);
        check_ok(model_dir_open(&m, dst, &e), &e);
        assert_int_equal(model_dir_find(&m, "model.layers.0.mlp.gate.weight")->bits, 8);
        assert_int_equal(format_of(m.experts[0].formats.up)->bits, cases[i].s.bits);
        model_dir_close(&m);
        if (relative_error(&r.errors.of[CONVERT_CLASS_EXPERTS]) > cases[i].most)
            fail_msg("%g", relative_error(&r.errors.of[CONVERT_CLASS_EXPERTS]));
        assert_true(check_table(dst, "") > 10);
        check_logits(dst);
    }
    tmp_tree_remove(tmp);
}

static void every_mode_is_written_of_plain_and_of_quantised_sources(void **state)
{
    (void)state;
    static const struct {
        const char *src;
        struct convert_settings s;
        const char *prefix;
        uint32_t dense, experts;
    } cases[] = {
        {QWEN3_HF, {.mode = CONVERT_MODE_MXFP4}, "", FORMAT_MXFP4, FORMAT_MXFP4},
        {QWEN3_HF, {.mode = CONVERT_MODE_MXFP8, .expert_bits = 3}, "", FORMAT_MXFP8, FORMAT_Q3},
        {QWEN3_HF, {.bits = 4, .expert_mode = CONVERT_MODE_NVFP4}, "", FORMAT_Q4, FORMAT_NVFP4},
        {QWEN3_HF,
         {.mode = CONVERT_MODE_NVFP4, .expert_mode = CONVERT_MODE_AFFINE},
         "",
         FORMAT_NVFP4,
         FORMAT_Q4},
        {MODELS "mxfp8", {.expert_mode = CONVERT_MODE_MXFP4}, "language_model.", FORMAT_MXFP8, FORMAT_MXFP4},
    };
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct convert_result r;
        struct moeflux_err e;
        struct model_dir m;
        char name[16];
        snprintf(name, sizeof name, "m%zu", i);
        const char *dst = tmp_tree_path(tmp, name);
        check_ok(run(cases[i].src, dst, cases[i].s, &r, &e), &e);
        check_ok(model_dir_open(&m, dst, &e), &e);
        assert_int_equal(model_dir_find(&m, "model.embed_tokens.weight")->format, cases[i].dense);
        assert_int_equal(model_dir_find(&m, "model.layers.0.mlp.gate.weight")->bits, 8);
        assert_int_equal(m.experts[0].formats.up, cases[i].experts);
        assert_int_equal(m.experts[0].formats.down, cases[i].experts);
        model_dir_close(&m);
        assert_true(relative_error(&r.errors.of[CONVERT_CLASS_EXPERTS]) < 0.18);
        assert_true(check_table(dst, cases[i].prefix) > 10);
        check_logits(dst);
    }
    tmp_tree_remove(tmp);
}

/* Dequantised by format.h and encoded anew, the source's matrix is DST's byte for byte. */
static void expect_requantised(const struct model_dir *a, const struct model_dir *b, const char *base,
                               uint32_t rows, uint32_t cols)
{
    struct matrix from, to;
    struct moeflux_err e = {0};
    check_ok(model_dir_matrix(a, base, rows, cols, &from, &e), &e);
    check_ok(model_dir_matrix(b, base, rows, cols, &to, &e), &e);
    const struct format *f = format_of(from.format), *t = format_of(to.format);
    uint64_t n = (uint64_t)rows * cols, groups = n / t->group;
    assert_true(t->bits < f->bits);
    uint8_t *w = malloc(from.weight->bytes), *s = malloc(from.scales->bytes),
            *codes = malloc(to.weight->bytes), *found = malloc(to.weight->bytes);
    uint8_t *bias = malloc(from.scales->bytes);
    uint16_t *scales = malloc(2 * groups), *biases = malloc(2 * groups);
    float *x = malloc(n * sizeof *x);
    check_ok(model_dir_read(a, from.weight, 0, from.weight->bytes, w, &e), &e);
    check_ok(model_dir_read(a, from.scales, 0, from.scales->bytes, s, &e), &e);
    if (from.biases)
        check_ok(model_dir_read(a, from.biases, 0, from.biases->bytes, bias, &e), &e);
    format_decode(f, w, s, bias, 0, n, x);
    assert_true(convert_encode(DTYPE_F32, x, n, t, CONVERT_SCALES_SEARCH,
                               &(struct convert_codes){codes, scales, biases}, NULL));
    check_ok(model_dir_read(b, to.weight, 0, to.weight->bytes, found, &e), &e);
    assert_memory_equal(codes, found, to.weight->bytes);
    check_ok(model_dir_read(b, to.scales, 0, to.scales->bytes, found, &e), &e);
    assert_memory_equal(scales, found, to.scales->bytes);
    check_ok(model_dir_read(b, to.biases, 0, to.biases->bytes, found, &e), &e);
    assert_memory_equal(biases, found, to.biases->bytes);
    free(w);
    free(s);
    free(bias);
    free(codes);
    free(found);
    free(scales);
    free(biases);
    free(x);
}

static void sources_of_more_bits_are_brought_to_fewer(void **state)
{
    (void)state;
    static const char *const dirs[] = {MODELS "q5-g128-f32", MODELS "mxfp4", MODELS "mxfp8", MODELS "nvfp4",
                                       MODELS "every-f16"};
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        struct model_dir a, b;
        struct moeflux_err e;
        struct convert_result r;
        char name[16];
        snprintf(name, sizeof name, "q%zu", i);
        const char *dst = tmp_tree_path(tmp, name);
        check_ok(run(dirs[i], dst, (struct convert_settings){.bits = 3, .group = 32}, &r, &e), &e);
        check_ok(model_dir_open(&a, dirs[i], &e), &e);
        check_ok(model_dir_open(&b, dst, &e), &e);
        if (i < 4) /* every-f16 has other formats in turn */
            expect_requantised(&a, &b, "lm_head", 259, 128);
        assert_true(relative_error(&r.errors.of[CONVERT_CLASS_EXPERTS]) < 0.16);
        assert_int_equal(model_dir_find(&b, "model.layers.1.mlp.gate.weight")->bits,
                         model_dir_find(&a, "model.layers.1.mlp.gate.weight")->bits);
        model_dir_close(&a);
        model_dir_close(&b);
        assert_true(check_table(dst, "language_model.") > 10);
        check_logits(dst);
    }
    tmp_tree_remove(tmp);
}

/* mixed-3-6 has 3 and 6 bits: asked for 4, those of 3 are copied. */
static void matrices_with_fewer_bits_are_copied_and_counted(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *plain = tmp_tree_path(tmp, "plain");
    struct model_dir a, b;
    struct convert_result r;
    struct moeflux_err e;
    check_ok(run(MODELS "mixed-3-6", plain, (struct convert_settings){0}, &r, &e), &e);
    assert_int_equal(r.n_fewer, 0);
    assert_int_equal(r.errors.of[CONVERT_CLASS_HEAD].weights, 0);
    check_ok(run(MODELS "mixed-3-6", dst, (struct convert_settings){.bits = 4}, &r, &e), &e);
    assert_true(r.n_fewer > 10);
    check_ok(model_dir_open(&a, plain, &e), &e);
    check_ok(model_dir_open(&b, dst, &e), &e);
    assert_int_equal(format_of(b.experts[3].formats.down)->bits, 4);
    assert_int_equal(format_of(b.experts[3].formats.up)->bits, 3);
    expect_requantised(&a, &b, "lm_head", 259, 128);
    /* An expert of which one matrix changes has the others' bytes. */
    uint8_t *x = malloc(a.max_expert_bytes), *y = malloc(b.max_expert_bytes);
    struct extent p[EXPERT_MAX_EXTENTS], q[EXPERT_MAX_EXTENTS];
    assert_int_equal(model_dir_expert(&a, 3, 1, p), 1);
    assert_int_equal(model_dir_expert(&b, 3, 1, q), 1);
    check_ok(file_read_at(a.files[p[0].file].fd, "a", x, p[0].bytes, p[0].off, &e), &e);
    check_ok(file_read_at(b.files[q[0].file].fd, "b", y, q[0].bytes, q[0].off, &e), &e);
    assert_int_equal(a.experts[3].down_w, b.experts[3].down_w);
    assert_memory_equal(x, y, a.experts[3].down_w);
    free(x);
    free(y);
    model_dir_close(&a);
    model_dir_close(&b);
    tmp_tree_remove(tmp);
}

static void scales_of_min_and_max_give_the_bytes_of_no_settings(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *a = tmp_tree_path(tmp, "a"), *b = tmp_tree_path(tmp, "b"), *c = tmp_tree_path(tmp, "c");
    struct moeflux_err e;
    check_ok(run(QWEN3_HF, a, (struct convert_settings){0}, NULL, &e), &e);
    check_ok(run(QWEN3_HF, b, (struct convert_settings){.bits = 4, .rule = CONVERT_RULE_MINMAX}, NULL, &e),
             &e);
    check_ok(run(QWEN3_HF, c, (struct convert_settings){.bits = 4}, NULL, &e), &e);
    tmp_tree_expect_same(a, b, "model_weights.bin");
    tmp_tree_expect_same(a, b, "config.json");
    tmp_tree_expect_same(a, b, "checksums.json");
    size_t n, m;
    uint8_t *x = tmp_tree_read(tmp_tree_path(a, "model_weights.bin"), &n),
            *y = tmp_tree_read(tmp_tree_path(c, "model_weights.bin"), &m);
    assert_true(n == m && memcmp(x, y, n) != 0);
    free(x);
    free(y);
    tmp_tree_remove(tmp);
}

/* ---- going on */

static bool stop(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    (void)what;
    (void)unit;
    assert_true(done <= total);
    return done < *(uint64_t *)ctx;
}

static int run_to(const char *dst, struct convert_settings s, uint64_t most, uint32_t n_threads,
                  struct convert_result *r, struct moeflux_err *e)
{
    struct convert_options o = {
        .src = TINY, .dst = dst, .settings = s, .n_threads = n_threads, .progress = {stop, &most}};
    *e = (struct moeflux_err){0};
    return convert_run(&o, r, e);
}

static void a_stopped_run_goes_on_with_its_own_settings_alone(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *dst = tmp_tree_path(tmp, "dst"), *whole = tmp_tree_path(tmp, "whole");
    struct convert_settings s = {.expert_bits = 2, .expert_group = 32};
    struct convert_result r;
    struct moeflux_err e;
    check_ok(run_to(whole, s, UINT64_MAX, 2, &r, &e), &e);
    assert_int_equal(run_to(dst, s, 6000000, 2, &r, &e), ERR_INTERRUPTED);
    struct convert_settings others[] = {{0}, s, s};
    others[1].expert_group = 64;
    others[2].rule = CONVERT_RULE_MINMAX;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(run_to(dst, others[i], UINT64_MAX, 2, &r, &e), ERR_USAGE);
        assert_non_null(strstr(e.text,
                               "dst.partial holds an unfinished conversion of another source, or with "
                               "another `spread` or other formats"));
    }
    /* Another number of threads, too, gives the same bytes. */
    check_ok(run_to(dst, s, UINT64_MAX, 1, &r, &e), &e);
    assert_true(r.n_layers_kept > 0);
    tmp_tree_expect_same(whole, dst, "checksums.json");
    tmp_tree_remove(tmp);
}

/* Layers whose experts differ in size go onto two disks as onto one. */
static void a_recipe_can_be_spread(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    const char *whole = tmp_tree_path(tmp, "whole"), *dst = tmp_tree_path(tmp, "dst"),
               *part = tmp_tree_path(tmp, "part");
    static float want[4096], got[4096];
    struct convert_options o = {
        .src = QWEN_HF, .dst = whole, .settings = {.recipe = CONVERT_MIXED_2_6, .rule = CONVERT_RULE_MINMAX}};
    struct convert_result r;
    struct moeflux_err e = {0};
    struct model_dir m;
    check_ok(convert_run(&o, &r, &e), &e);
    o.dst = dst;
    o.spread = part;
    check_ok(convert_run(&o, &r, &e), &e);
    check_ok(model_dir_open(&m, whole, &e), &e);
    assert_int_equal(format_of(m.experts[0].formats.down)->bits, 2);
    assert_int_equal(format_of(m.experts[2].formats.down)->bits, 6);
    assert_int_equal(model_dir_find(&m, "lm_head.weight")->bits, 6);
    assert_int_equal(model_dir_find(&m, "model.layers.2.mlp.gate.weight")->bits, 8);
    assert_int_equal(model_dir_find(&m, "model.layers.2.mlp.shared_expert_gate.weight")->bits, 8);
    model_dir_close(&m);
    assert_true(check_table(dst, "language_model.") > 40);
    compute(whole, "cpu", want);
    compute(dst, "cpu", got);
    assert_memory_equal(want, got, sizeof want);
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_never_errs_more_than_min_and_max),
        cmocka_unit_test(the_errors_that_are_reported_are_those_of_what_is_stored),
        cmocka_unit_test(the_search_for_small_floats_never_errs_more_than_mlx_and_reports_what_is_stored),
        cmocka_unit_test(what_min_and_max_meet_exactly_keeps_their_bytes),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(every_instruction_set_finds_the_same),
        cmocka_unit_test(recipes_choose_the_bits_that_mlx_lm_chose),
        cmocka_unit_test(what_cannot_be_done_is_said_before_anything_is_written),
        cmocka_unit_test(a_plain_source_converts_to_every_width),
        cmocka_unit_test(every_mode_is_written_of_plain_and_of_quantised_sources),
        cmocka_unit_test(sources_of_more_bits_are_brought_to_fewer),
        cmocka_unit_test(matrices_with_fewer_bits_are_copied_and_counted),
        cmocka_unit_test(scales_of_min_and_max_give_the_bytes_of_no_settings),
        cmocka_unit_test(a_stopped_run_goes_on_with_its_own_settings_alone),
        cmocka_unit_test(a_recipe_can_be_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
