#include "publish.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/str.h"
#include "check.h"
#include "model/quant_config.h"
#include "st_writer.h"
#include "tmp_tree.h"

enum { SHARDS = 3, NAME = 256 };

struct publisher {
    struct publish_form form;
    struct safetensors from;
    struct quant_config quant; /* MLX's codes */
    struct st_writer shards[SHARDS];
    json_t *map; /* weight_map */
    uint32_t n;  /* tensors written */
};

static uint8_t *read_all(const struct publisher *p, const struct tensor *t)
{
    struct moeflux_err e;
    uint8_t *bytes = malloc(t->bytes + 1);
    assert_non_null(bytes);
    assert_int_equal(file_read_at(p->from.files[t->file].fd, "tensor", bytes, t->bytes, t->off, &e), 0);
    return bytes;
}

static const struct tensor *find_like(const struct publisher *p, const struct tensor *weight,
                                      const char *tail)
{
    char name[NAME];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(weight->name) - strlen("weight")), weight->name, tail);
    return tensor_find(p->from.tensors.items, p->from.tensors.n, name);
}

static float *decode_codes(const struct publisher *p, const struct tensor *t, uint64_t *n)
{
    const struct tensor *s = find_like(p, t, "scales"), *b = find_like(p, t, "biases");
    assert_true(s && b);
    char base[NAME];
    struct quant_entry entry;
    struct moeflux_err e;
    snprintf(base, sizeof base, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
    assert_true(quant_config_matrix(&p->quant, base, &entry, &e) >= 0);
    uint64_t cols = tensor_cols(s) * entry.group;
    const struct format *f =
        format_of(format_find_affine(entry.bits, entry.group, tensor_scale_type(s->dtype)));
    assert_int_equal(tensor_cols(t) * 32, cols * f->bits);
    uint8_t *codes = read_all(p, t), *scales = read_all(p, s), *biases = read_all(p, b);
    *n = tensor_rows(t) * cols;
    float *out = malloc(*n * sizeof *out);
    assert_non_null(out);
    format_decode(f, codes, scales, biases, 0, *n, out);
    free(codes);
    free(scales);
    free(biases);
    return out;
}

static float *decode_plain(const struct publisher *p, const struct tensor *t, uint64_t *n)
{
    uint8_t *bytes = read_all(p, t);
    *n = t->bytes / tensor_dtype_bytes(t->dtype);
    float *out = malloc(*n * sizeof *out + 1);
    assert_non_null(out);
    assert_true(tensor_is_float(t->dtype));
    format_decode(format_of(tensor_format(t)), bytes, NULL, NULL, 0, *n, out);
    free(bytes);
    return out;
}

static void add_to_map(struct publisher *p, const char *name, uint32_t shard)
{
    char file[NAME];
    snprintf(file, sizeof file, "model-%05u-of-%05u.safetensors", shard + 1, (unsigned)SHARDS);
    json_object_set_new(p->map, name, json_string(file));
}

static void emit(struct publisher *p, const char *name, const char *dtype, const char *shape, const float *x,
                 uint64_t n)
{
    uint32_t shard = p->form.sharded ? p->n++ % SHARDS : 0;
    bool is_f32 = !strcmp(dtype, "F32"), is_f16 = !strcmp(dtype, "F16");
    uint16_t *halves = malloc(n * sizeof *halves + 1);
    assert_non_null(halves);
    for (uint64_t i = 0; i < n && !is_f32; i++) {
        halves[i] = is_f16 ? f16_from_float(x[i]) : bf16_from_float(x[i]);
        assert_true((is_f16 ? f16_to_float(halves[i]) : bf16_to_float(halves[i])) == x[i]);
    }
    st_writer_add(&p->shards[shard], name, dtype, shape, is_f32 ? (const void *)x : halves,
                  n * (is_f32 ? 4 : 2));
    free(halves);
    add_to_map(p, name, shard);
}

/* Returns the E4M3 number that is nearest to x. */
static uint8_t nearest_code(float x)
{
    uint8_t low = 0, high = 0x7e;
    float size = fabsf(x);
    while (high - low > 1) {
        uint8_t mid = (uint8_t)((low + high) / 2);
        *(e4m3_to_float(mid) <= size ? &low : &high) = mid;
    }
    uint8_t code = size - e4m3_to_float(low) <= e4m3_to_float(high) - size ? low : high;
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

struct block {
    uint64_t rows, cols;
};

static struct block block_of(const struct publish_form *f, uint64_t rows, uint64_t cols)
{
    return f->scales == PUBLISH_FOR_ALL    ? (struct block){rows, cols}
           : f->scales == PUBLISH_FOR_ROWS ? (struct block){1, cols}
                                           : (struct block){f->block, f->block};
}

static const char *scale_dtype(const struct publish_form *f)
{
    return f->scale_dtype ? f->scale_dtype : "F32";
}

/* Returns a scale that the form's dtype has. */
static float scale_of(const struct publish_form *f, const float *x, uint64_t rows, uint64_t cols,
                      uint64_t row, uint64_t col, struct block block)
{
    const char *dtype = scale_dtype(f);
    float most = 0;
    for (uint64_t r = row; r < rows && r < row + block.rows; r++)
        for (uint64_t c = col; c < cols && c < col + block.cols; c++)
            most = fmaxf(most, fabsf(x[r * cols + c]));
    float scale = most > 0 ? most / 448 : 1;
    return !strcmp(dtype, "F8_E8M0") ? exp2f(ceilf(log2f(scale)))
           : !strcmp(dtype, "BF16")  ? bf16_to_float(bf16_from_float(scale))
                                     : scale;
}

/* Writes "[rows, cols]", or "[stack, rows, cols]" for a stack of matrices. */
static void write_shape(char *out, size_t size, uint64_t stack, uint64_t rows, uint64_t cols)
{
    if (stack)
        snprintf(out, size, "[%u, %u, %u]", (unsigned)stack, (unsigned)rows, (unsigned)cols);
    else
        snprintf(out, size, "[%u, %u]", (unsigned)rows, (unsigned)cols);
}

static void emit_scales(struct publisher *p, const char *weight, uint64_t stack, uint64_t high, uint64_t wide,
                        const float *scales)
{
    char name[NAME + 80], shape[64];
    const char *dtype = scale_dtype(&p->form);
    uint64_t n = (stack ? stack : 1) * high * wide;
    snprintf(name, sizeof name, "%s_scale%s", weight, p->form.scales == PUBLISH_FOR_BLOCKS ? "_inv" : "");
    if (p->form.scales == PUBLISH_FOR_ALL)
        snprintf(shape, sizeof shape, "[1]");
    else
        write_shape(shape, sizeof shape, stack, high, wide);
    if (strcmp(dtype, "F8_E8M0") != 0) {
        emit(p, name, dtype, shape, scales, n);
        return;
    }
    uint8_t *exponents = malloc(n);
    assert_non_null(exponents);
    for (uint64_t i = 0; i < n; i++)
        exponents[i] = (uint8_t)(127 + ilogbf(scales[i]));
    uint32_t shard = p->form.sharded ? p->n++ % SHARDS : 0;
    st_writer_add(&p->shards[shard], name, dtype, shape, exponents, n);
    add_to_map(p, name, shard);
    free(exponents);
}

/* Rounds a matrix to 8-bit floats. numbers: what the codes stand for. */
static void round_blocks(const struct publisher *p, uint64_t rows, uint64_t cols, const float *x,
                         uint8_t *codes, float *scales, float *numbers)
{
    const struct block block = block_of(&p->form, rows, cols);
    uint64_t wide = (cols + block.cols - 1) / block.cols, high = (rows + block.rows - 1) / block.rows;
    for (uint64_t i = 0; i < wide * high; i++)
        scales[i] = scale_of(&p->form, x, rows, cols, i / wide * block.rows, i % wide * block.cols, block);
    for (uint64_t i = 0; i < rows * cols; i++) {
        float scale = scales[i / cols / block.rows * wide + i % cols / block.cols];
        codes[i] = nearest_code(x[i] / scale);
        numbers[i] = e4m3_to_float(codes[i]) * scale;
    }
}

/* Writes a matrix (stack: 0), or a stack of them, as 8-bit floats or as the numbers that these stand for. */
static void emit_blocks(struct publisher *p, const char *name, uint64_t stack, uint64_t rows, uint64_t cols,
                        const float *x)
{
    const struct block block = block_of(&p->form, rows, cols);
    uint64_t wide = (cols + block.cols - 1) / block.cols, high = (rows + block.rows - 1) / block.rows;
    uint64_t n = stack ? stack : 1, each = rows * cols;
    float *scales = malloc(n * wide * high * sizeof *scales), *numbers = malloc(n * each * sizeof *numbers);
    uint8_t *codes = malloc(n * each);
    char shape[64];
    assert_true(scales && numbers && codes);
    for (uint64_t i = 0; i < n; i++)
        round_blocks(p, rows, cols, x + i * each, codes + i * each, scales + i * wide * high,
                     numbers + i * each);
    write_shape(shape, sizeof shape, stack, rows, cols);
    if (p->form.widened) {
        emit(p, name, "F32", shape, numbers, n * each);
    } else {
        uint32_t shard = p->form.sharded ? p->n % SHARDS : 0;
        st_writer_add(&p->shards[shard], name, "F8_E4M3", shape, codes, n * each);
        add_to_map(p, name, shard);
        emit_scales(p, name, stack, high, wide, scales);
    }
    free(scales);
    free(numbers);
    free(codes);
}

/* Returns the E2M1 number that is nearest to x. */
static uint8_t nearest_small(float x)
{
    uint8_t best = 0;
    for (uint8_t i = 1; i < 16; i++)
        best = fabsf(e2m1_to_float(i) - x) < fabsf(e2m1_to_float(best) - x) ? i : best;
    return best;
}

static void add_bytes(struct publisher *p, const char *base, const char *tail, const char *dtype,
                      const char *shape, const void *bytes, uint64_t n)
{
    char name[NAME + 80];
    uint32_t shard = p->form.sharded ? p->n++ % SHARDS : 0;
    snprintf(name, sizeof name, "%s%s", base, tail);
    st_writer_add(&p->shards[shard], name, dtype, shape, bytes, n);
    add_to_map(p, name, shard);
}

/* Writes the tensors of a module, with those that say how its input and a cache of 8 bits are scaled. */
static void add_nvfp4(struct publisher *p, const char *name, uint64_t rows, uint64_t cols,
                      const uint8_t *codes, const uint8_t *scales, float factor)
{
    char base[NAME + 64], shape[64];
    bool is_modelopt = p->form.nvfp4 == PUBLISH_MODELOPT;
    const float other = 3;
    snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)rows, (unsigned)cols / 2);
    add_bytes(p, base, is_modelopt ? ".weight" : ".weight_packed", "U8", shape, codes, rows * cols / 2);
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)rows, (unsigned)cols / 16);
    add_bytes(p, base, ".weight_scale", "F8_E4M3", shape, scales, rows * cols / 16);
    add_bytes(p, base, is_modelopt ? ".weight_scale_2" : ".weight_global_scale", "F32",
              is_modelopt ? "[]" : "[1]", &factor, sizeof factor);
    add_bytes(p, base, is_modelopt ? ".input_scale" : ".input_global_scale", "F32", "[1]", &other,
              sizeof other);
    if (strstr(base, "k_proj"))
        add_bytes(p, base, ".k_scale", "F32", "[]", &other, sizeof other);
}

/* Writes a matrix in NVFP4, or as the numbers that it stands for. */
static void emit_nvfp4(struct publisher *p, const char *name, uint64_t rows, uint64_t cols, const float *x)
{
    bool is_modelopt = p->form.nvfp4 == PUBLISH_MODELOPT;
    uint8_t *codes = calloc(rows * cols, 1), *scales = malloc(rows * cols / 16);
    float *numbers = malloc(rows * cols * sizeof *numbers), most = 1e-6F;
    char shape[64];
    assert_true(codes && scales && numbers);
    for (uint64_t i = 0; i < rows * cols; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float factor = is_modelopt ? most / (448 * 6) : 448 * 6 / most;
    for (uint64_t g = 0; g < rows * cols / 16; g++) {
        float largest = 0;
        for (uint64_t i = 16 * g; i < 16 * (g + 1); i++)
            largest = fmaxf(largest, fabsf(x[i]));
        scales[g] = nearest_code(is_modelopt ? largest / 6 / factor : largest / 6 * factor);
        scales[g] = scales[g] ? scales[g] : 1;
        float scale = e4m3_to_float(scales[g]);
        scale = is_modelopt ? scale * factor : scale / factor;
        for (uint64_t i = 16 * g; i < 16 * (g + 1); i++) {
            uint8_t code = nearest_small(x[i] / scale);
            codes[i / 2] |= (uint8_t)(code << i % 2 * 4);
            numbers[i] = e2m1_to_float(code) * scale;
        }
    }
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)rows, (unsigned)cols);
    if (p->form.widened)
        emit(p, name, "F32", shape, numbers, rows * cols);
    else
        add_nvfp4(p, name, rows, cols, codes, scales, factor);
    free(codes);
    free(scales);
    free(numbers);
}

/* Writes a matrix. Embeddings and routers stay as they are. */
static void emit_matrix(struct publisher *p, const char *name, uint64_t rows, uint64_t cols, const float *x)
{
    char shape[64];
    bool stays = strstr(name, "embed") || strstr(name, "lm_head") || str_ends_with(name, "mlp.gate.weight") ||
                 str_ends_with(name, "moe.gate.weight") || str_ends_with(name, "_expert_gate.weight") ||
                 strstr(name, "in_proj_b") || strstr(name, "in_proj_a") || strstr(name, "kv_b_proj");
    snprintf(shape, sizeof shape, "[%u, %u]", (unsigned)rows, (unsigned)cols);
    bool is_nvfp4 = p->form.nvfp4 && !stays && cols % 64 == 0;
    const char *other = p->form.fp8_experts;
    if (is_nvfp4 && (!p->form.block || (strstr(name, ".experts.") && !(other && strstr(name, other)))))
        emit_nvfp4(p, name, rows, cols, x);
    else if (p->form.block && !stays)
        emit_blocks(p, name, 0, rows, cols, x);
    else
        emit(p, name, p->form.dtype, shape, x, rows * cols);
}

/* Writes a stack of experts [n][rows][cols] as one tensor each. */
static void emit_experts(struct publisher *p, const char *stem, const char *proj, uint64_t n, uint64_t rows,
                         uint64_t cols, const float *x)
{
    char name[NAME + 64];
    const char *as = proj;
    if (strstr(stem, "block_sparse_moe"))
        as = !strcmp(proj, "gate_proj") ? "w1" : !strcmp(proj, "up_proj") ? "w3" : "w2";
    for (uint64_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%sexperts.%u.%s.weight", stem, (unsigned)i, as);
        emit_matrix(p, name, rows, cols, x + i * rows * cols);
    }
}

/* Writes down, or with `up` given gate above up, as one stack. */
static void emit_stack(struct publisher *p, const char *stem, uint64_t n, uint64_t rows, uint64_t cols,
                       const float *x, const float *up)
{
    char name[NAME + 64], shape[64];
    uint64_t each = rows * cols, parts = up ? 2 : 1;
    float *all = malloc(n * each * parts * sizeof *all);
    assert_non_null(all);
    for (uint64_t i = 0; i < n; i++) {
        memcpy(all + i * parts * each, x + i * each, each * sizeof *all);
        if (up)
            memcpy(all + (i * parts + 1) * each, up + i * each, each * sizeof *all);
    }
    snprintf(name, sizeof name, "%sexperts.%s", stem, up ? "gate_up_proj" : "down_proj");
    snprintf(shape, sizeof shape, "[%u, %u, %u]", (unsigned)n, (unsigned)(parts * rows), (unsigned)cols);
    emit(p, name, p->form.dtype, shape, all, n * each * parts);
    free(all);
}

static float *decode(const struct publisher *p, const struct tensor *t, uint64_t *n)
{
    return t->dtype == DTYPE_U32 ? decode_codes(p, t, n) : decode_plain(p, t, n);
}

static void publish_stack(struct publisher *p, const struct tensor *t, const char *at)
{
    char stem[NAME], proj[16], other[NAME + 32];
    uint64_t n, n_up;
    snprintf(stem, sizeof stem, "%.*s", (int)(at - t->name), t->name);
    assert_int_equal(sscanf(at, "switch_mlp.%15[a-z_]", proj), 1);
    float *x = decode(p, t, &n);
    uint64_t rows = t->shape[1], cols = n / t->shape[0] / rows;
    if (!p->form.fused) {
        emit_experts(p, stem, proj, t->shape[0], rows, cols, x);
    } else if (!strcmp(proj, "down_proj")) {
        emit_stack(p, stem, t->shape[0], rows, cols, x, NULL);
    } else if (!strcmp(proj, "gate_proj")) {
        snprintf(other, sizeof other, "%sswitch_mlp.up_proj.weight", stem);
        const struct tensor *u = tensor_find(p->from.tensors.items, p->from.tensors.n, other);
        assert_non_null(u);
        float *up = decode(p, u, &n_up);
        emit_stack(p, stem, t->shape[0], rows, cols, x, up);
        free(up);
    }
    free(x);
}

static bool loses_one(const char *name)
{
    return str_ends_with(name, "_layernorm.weight") || str_ends_with(name, ".q_norm.weight") ||
           str_ends_with(name, ".k_norm.weight") || str_ends_with(name, "model.norm.weight");
}

static void publish_tensor(struct publisher *p, const struct tensor *t)
{
    char shape[TENSOR_SHAPE_TEXT];
    uint64_t n;
    const char *stack = strstr(t->name, "switch_mlp.");
    if (stack) {
        publish_stack(p, t, stack);
        return;
    }
    float *x = decode(p, t, &n);
    struct tensor like = *t;
    bool is_vector = t->n_dims < 2 || strstr(t->name, "conv1d"), is_less = loses_one(t->name);
    if (like.n_dims > 1)
        like.shape[like.n_dims - 1] = n / tensor_rows(t);
    for (uint64_t i = 0; p->form.less_one && is_less && i < n; i++)
        x[i] -= 1;
    if (p->form.less_one && strstr(t->name, "conv1d") && t->shape[2] == 1) {
        like.shape[1] = 1;
        like.shape[2] = t->shape[1];
    }
    tensor_shape_text(&like, shape);
    if (like.n_dims == 2)
        emit_matrix(p, t->name, like.shape[0], like.shape[1], x);
    else if (p->form.block && like.n_dims == 3 && strstr(t->name, ".moe.")) /* Step-3.5's stacks */
        emit_blocks(p, t->name, like.shape[0], like.shape[1], like.shape[2], x);
    else
        emit(p, t->name, is_vector ? "F32" : p->form.dtype, shape, x, n);
    free(x);
}

static json_t *read_config(const char *from)
{
    enum { MOST_BYTES = 1 << 20 };
    json_t *config;
    struct moeflux_err e;
    check_ok(json_read_file(tmp_tree_path(from, "config.json"), MOST_BYTES, JSON_MAX_SMALL, &config, &e), &e);
    return config;
}

/* The blocks of ModelOpt and compressed-tensors for NVFP4, next to 8-bit floats if there are some. */
static json_t *nvfp4_block(const struct publish_form *form)
{
    if (form->nvfp4 == PUBLISH_MODELOPT)
        return json_pack("{s:s, s:s, s:[s]}", "quant_method", "modelopt", "quant_algo",
                         form->block ? "MIXED_PRECISION" : "NVFP4", "ignore", "lm_head");
    json_t *block = json_pack("{s:s, s:s, s:[s,s], s:{s:{s:[s], s:{s:s, s:i, s:i}}}}", "quant_method",
                              "compressed-tensors", "format", "nvfp4-pack-quantized", "ignore", "lm_head",
                              "re:.*mlp\\.gate$", "config_groups", "group_0", "targets", "Linear", "weights",
                              "type", "float", "num_bits", 4, "group_size", 16);
    if (!form->block)
        return block;
    json_t *groups = json_object_get(block, "config_groups"), *first = json_object_get(groups, "group_0");
    json_object_set_new(block, "format", json_string("mixed-precision"));
    json_object_set_new(first, "format", json_string("nvfp4-pack-quantized"));
    json_object_set_new(first, "targets", json_pack("[s]", "re:.*mlp.experts.*"));
    json_object_set_new(groups, "group_1",
                        json_pack("{s:s, s:[s], s:{s:s, s:i, s:s}}", "format", "float-quantized", "targets",
                                  "Linear", "weights", "type", "float", "num_bits", 8, "strategy",
                                  form->scales == PUBLISH_FOR_ALL ? "tensor" : "channel"));
    json_object_set_new(groups, "group_2", json_pack("{s:[s], s:n}", "targets", "Conv1d", "weights"));
    return block;
}

static void finish(struct publisher *p, const char *to, json_t *config)
{
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    if (p->form.nvfp4 && !p->form.widened)
        json_object_set_new(config, "quantization_config", nvfp4_block(&p->form));
    else if (p->form.block && !p->form.widened && p->form.scales == PUBLISH_FOR_BLOCKS)
        json_object_set_new(config, "quantization_config",
                            json_pack("{s:s, s:s, s:[i, i]}", "quant_method", "fp8", "fmt", "e4m3",
                                      "weight_block_size", (int)p->form.block, (int)p->form.block));
    else if (p->form.modelopt_fp8 && !p->form.widened)
        json_object_set_new(config, "quantization_config",
                            json_pack("{s:s, s:s}", "quant_method", "modelopt", "quant_algo", "FP8"));
    char *text = json_dumps(config, JSON_INDENT(1));
    assert_non_null(text);
    tmp_tree_write_text(to, "config.json", text);
    free(text);
    if (!p->form.sharded) {
        st_writer_finish(&p->shards[0], to, "model.safetensors");
        return;
    }
    for (unsigned i = 0; i < SHARDS; i++) {
        char file[NAME];
        snprintf(file, sizeof file, "model-%05u-of-%05u.safetensors", i + 1, (unsigned)SHARDS);
        st_writer_finish(&p->shards[i], to, file);
    }
    json_t *index = json_pack("{s:{}, s:O}", "metadata", "weight_map", p->map);
    text = json_dumps(index, 0);
    assert_non_null(text);
    tmp_tree_write_text(to, "model.safetensors.index.json", text);
    free(text);
    json_decref(index);
}

static void copy_ids(struct publisher *p, const struct tensor *t)
{
    uint8_t *bytes = read_all(p, t);
    st_writer_add_like(&p->shards[0], t->name, t, bytes);
    add_to_map(p, t->name, 0);
    free(bytes);
}

void publish_model(const char *from, const char *to, const struct publish_form *form)
{
    struct publisher p = {.form = *form, .map = json_object()};
    struct moeflux_err e;
    json_t *config = read_config(from);
    check_ok(quant_config_read(&p.quant, config, from, &e), &e);
    assert_int_equal(mkdir(to, 0777), 0);
    check_ok(safetensors_open(&p.from, from, &e), &e);
    for (size_t i = 0; i < p.from.tensors.n; i++) {
        const struct tensor *t = &p.from.tensors.items[i];
        bool is_there = tensor_is_float(t->dtype) || t->dtype == DTYPE_U32;
        if (t->dtype == DTYPE_I64)
            copy_ids(&p, t);
        else if (is_there && !str_ends_with(t->name, ".scales") && !str_ends_with(t->name, ".biases"))
            publish_tensor(&p, t);
    }
    finish(&p, to, config);
    safetensors_close(&p.from);
    json_decref(p.map);
    json_decref(config);
}
