#include "convert/json.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/expert_tensors.h"
#include "model/family.h"
#include "model/quant_config.h"
#include "model/tensor.h"

/* Makes the text and frees `root`. jansson's setters fail only without memory, and then leave NULL or an
 * incomplete object; `ok` says whether all succeeded. */
static char *dump(json_t *root, bool ok, struct moeflux_err *e)
{
    char *text = ok ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        err_set(e, ERR_MEMORY, "out of memory for JSON");
    return text;
}

static json_t *shape_of(const struct tensor *t)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    return shape;
}

/* --- manifest --- */

/* Adds mode, bits and group. Leaves out the values that older versions assume, so that they read what they
 * can. */
static void add_codes(json_t *entry, enum quant_mode mode, uint32_t bits, uint32_t group)
{
    json_object_set_new(entry, "bits", json_integer(bits));
    if (group != QUANT_DEFAULT_GROUP)
        json_object_set_new(entry, "group_size", json_integer(group));
    if (mode != QUANT_AFFINE)
        json_object_set_new(entry, "mode", json_string(quant_config_mode_name(mode)));
}

static bool add_tensor(json_t *tensors, const struct tensor *t)
{
    const char *dtype = t->dtype == DTYPE_BLOCKS ? format_of(t->format)->name : tensor_dtype_name(t->dtype);
    json_t *entry = json_pack("{s:I, s:I, s:o, s:s}", "offset", (json_int_t)t->off, "size",
                              (json_int_t)t->bytes, "shape", shape_of(t), "dtype", dtype);
    if (entry && t->dtype == DTYPE_U32)
        add_codes(entry, t->mode, t->bits, t->group);
    return json_object_set_new(tensors, t->name, entry) == 0;
}

static json_t *eos_of(const struct config *c)
{
    json_t *ids = json_array();
    for (uint32_t i = 0; i < c->n_eos; i++)
        json_array_append_new(ids, json_integer(c->eos[i]));
    return ids;
}

static uint32_t first_layer(const struct convert_plan *p)
{
    uint32_t i = 0;
    while (!config_has_experts(&p->src.config, i))
        i++;
    return i;
}

static bool have_same_formats(const struct expert_formats *a, const struct expert_formats *b)
{
    return a->gate == b->gate && a->up == b->up && a->down == b->down;
}

static bool has_equal_experts(const struct convert_plan *p)
{
    const struct expert_formats *first = &p->experts[first_layer(p)].formats;
    bool equal = true;
    for (uint32_t i = 0; i < p->src.config.n_layers; i++)
        equal = equal &&
                (!config_has_experts(&p->src.config, i) || have_same_formats(&p->experts[i].formats, first));
    return equal;
}

static bool is_usual(uint32_t format)
{
    const struct format *f = format_of(format);
    return f->scheme == SCHEME_AFFINE && f->group == QUANT_DEFAULT_GROUP && f->scale == SCALE_BF16;
}

/* Returns whether bits alone describe the format of all experts. */
static bool has_usual_experts(const struct convert_plan *p)
{
    const struct expert_formats *first = &p->experts[first_layer(p)].formats;
    return has_equal_experts(p) && first->gate == first->up && is_usual(first->up) && is_usual(first->down);
}

static json_t *format_json(uint32_t format)
{
    const struct format *f = format_of(format);
    enum quant_mode mode = quant_config_format_mode(format);
    json_t *object = json_object();
    if (format_is_block(format)) {
        json_object_set_new(object, "dtype", json_string(f->name));
        return object;
    }
    add_codes(object, mode, f->bits, f->group);
    if (f->has_factor)
        json_object_set_new(object, QUANT_FACTOR_KEY, json_true());
    if (mode == QUANT_AFFINE && f->scale != SCALE_BF16)
        json_object_set_new(object, "scales", json_string(tensor_dtype_name(tensor_scale_dtype(f))));
    return object;
}

/* Makes a list with an item per layer; null: no experts. */
static json_t *experts_json(const struct convert_plan *p)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < p->src.config.n_layers; i++) {
        const struct expert_formats *f = &p->experts[i].formats;
        json_t *layer = config_has_experts(&p->src.config, i) ? json_object() : json_null();
        if (json_is_object(layer) && f->gate == f->up)
            json_object_set_new(layer, "gate_up", format_json(f->up));
        else if (json_is_object(layer)) {
            json_object_set_new(layer, "gate", format_json(f->gate));
            json_object_set_new(layer, "up", format_json(f->up));
        }
        if (json_is_object(layer))
            json_object_set_new(layer, "down", format_json(f->down));
        json_array_append_new(all, layer);
    }
    return all;
}

/* Makes the source's configuration flat, without the keys that only its own layout needs. */
static json_t *flat_config(const struct convert_plan *p)
{
    static const char *const dropped[] = {"text_config", "vision_config", "quantization",
                                          "quantization_config"};
    const struct expert_formats *experts = &p->experts[first_layer(p)].formats;
    uint32_t bits = format_of(experts->up)->bits, down_bits = format_of(experts->down)->bits;
    json_t *flat = json_copy(p->config);
    json_object_update(flat, json_object_get(p->config, "text_config"));
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        json_object_del(flat, dropped[i]);
    const char *type = json_string_value(json_object_get(flat, "model_type"));
    if (type && family_find(type) != p->src.config.family) /* the type of a text part */
        json_object_set(flat, "model_type", json_object_get(p->config, "model_type"));
    json_object_set_new(flat, "eos_token_id", eos_of(&p->src.config));
    json_object_set_new(flat, "default_bits", json_integer(p->bits));
    json_object_set_new(flat, "default_group_size", json_integer(p->group));
    if (!has_usual_experts(p))
        return flat;
    json_object_set_new(flat, "expert_bits", json_integer(bits));
    if (down_bits != bits)
        json_object_set_new(flat, "expert_down_bits", json_integer(down_bits));
    return flat;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

char *convert_json_manifest(const struct convert_plan *p, struct moeflux_err *e)
{
    json_t *tensors = json_object(), *root = json_object();
    bool ok = tensors && root;
    for (size_t i = 0; i < p->n_items; i++)
        for (uint32_t k = 0; k < p->items[i].n_out; k++)
            ok = ok && add_tensor(tensors, &p->items[i].out[k]);
    json_t *model = json_string(base_name(p->src.path));
    /* A directory's name need not be UTF-8. */
    ok = ok && json_object_set_new(root, "model", model ? model : json_string("model")) == 0;
    ok = ok &&
         json_object_set_new(root, "num_tensors", json_integer((json_int_t)json_object_size(tensors))) == 0;
    ok = json_object_set_new(root, "tensors", tensors) == 0 && ok;
    ok = ok && json_object_set_new(root, "config", flat_config(p)) == 0;
    if (!has_usual_experts(p))
        ok = ok && json_object_set_new(root, "experts", experts_json(p)) == 0;
    return dump(root, ok, e);
}

/* --- layout --- */

/* type: name of the dtype. */
static bool add_bytes(json_t *list, const char *proj, const char *part, uint64_t *at, uint64_t rows,
                      uint64_t cols, const char *type, uint64_t bytes)
{
    char name[40];
    struct tensor t = {.n_dims = 2, .shape = {rows, cols}};
    snprintf(name, sizeof name, "%s.%s", proj, part);
    json_t *c = json_pack("{s:s, s:I, s:I, s:s, s:o}", "name", name, "offset", (json_int_t)*at, "size",
                          (json_int_t)bytes, "dtype", type, "shape", shape_of(&t));
    *at += bytes;
    return json_array_append_new(list, c) == 0;
}

static bool add_component(json_t *list, const char *proj, const char *part, uint64_t *at, uint64_t rows,
                          uint64_t cols, enum dtype dtype)
{
    return add_bytes(list, proj, part, at, rows, cols, tensor_dtype_name(dtype),
                     rows * cols * tensor_dtype_bytes(dtype));
}

/* Lists the parts of an expert, which are contiguous except for the alignment of blocks and after factors. */
static json_t *components(const struct convert_plan *p, const struct expert_layout *l, bool *ok)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const struct config *c = &p->src.config;
    const uint32_t formats[] = {l->formats.gate, l->formats.up, l->formats.down};
    json_t *parts = json_array();
    const uint64_t places[] = {l->gate_w, l->up_w, l->down_w};
    for (int i = expert_tensors_first(c); i < 3; i++) {
        uint64_t at = places[i];
        const struct format *f = format_of(formats[i]);
        enum dtype dtype = tensor_scale_dtype(f);
        uint64_t hidden = config_expert_hidden(c), rows = i < 2 ? c->moe_inner : hidden,
                 cols = i < 2 ? hidden : c->moe_inner;
        if (f->scheme == SCHEME_BLOCK) {
            *ok = *ok && add_bytes(parts, names[i], "weight", &at, rows, cols, f->name,
                                   format_code_bytes(f, rows * cols));
            continue;
        }
        *ok = *ok && add_component(parts, names[i], "weight", &at, rows, cols * f->bits / 32, DTYPE_U32) &&
              add_component(parts, names[i], "scales", &at, rows, cols / f->group, dtype) &&
              (!f->has_bias || add_component(parts, names[i], "biases", &at, rows, cols / f->group, dtype)) &&
              (!f->has_factor || add_component(parts, names[i], "global_scale", &at, 1, 1, DTYPE_F32));
    }
    return parts;
}

/* Adds a list of layers if they differ, instead of one size and its parts. */
static bool add_layers(json_t *root, const struct convert_plan *p)
{
    json_t *layers = json_array();
    bool ok = layers != NULL;
    for (uint32_t i = 0; ok && i < p->src.config.n_layers; i++) {
        const struct expert_layout *l = &p->experts[i];
        json_t *layer = config_has_experts(&p->src.config, i)
                            ? json_pack("{s:I, s:o}", "expert_size", (json_int_t)l->bytes, "components",
                                        components(p, l, &ok))
                            : json_null();
        ok = json_array_append_new(layers, layer) == 0 && ok;
    }
    return json_object_set_new(root, "layers", layers) == 0 && ok;
}

char *convert_json_layout(const struct convert_plan *p, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    const struct expert_layout *l = &p->experts[first_layer(p)];
    json_t *root = json_object();
    bool ok = root != NULL, equal = has_equal_experts(p);
    if (equal)
        ok = ok && json_object_set_new(root, "expert_size", json_integer((json_int_t)l->bytes)) == 0;
    ok = ok && json_object_set_new(root, "num_layers", json_integer(c->n_layers)) == 0;
    ok = ok && json_object_set_new(root, "num_experts", json_integer(c->n_experts)) == 0;
    if (equal)
        ok = ok && json_object_set_new(root, "components", components(p, l, &ok)) == 0;
    else
        ok = ok && add_layers(root, p);
    return dump(root, ok, e);
}

/* --- config.json --- */

/* Adds the entry of a matrix that has another format than most. base: its canonical name without the ending,
 * n characters. */
static void add_entry(struct str *s, const struct convert_plan *p, const char *base, int n,
                      enum quant_mode mode, uint32_t bits, uint32_t group)
{
    if (mode == QUANT_AFFINE && bits == p->bits && group == p->group)
        return;
    str_addf(s, ",\n  \"%s%.*s\": {\n   \"group_size\": %u,\n   \"bits\": %u",
             p->src.config.family->mlx_prefix, n, base, group, bits);
    if (mode != QUANT_AFFINE)
        str_addf(s, ",\n   \"mode\": \"%s\"", quant_config_mode_name(mode));
    str_add_text(s, "\n  }");
}

static void add_expert_entries(struct str *s, const struct convert_plan *p)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (uint32_t i = 0; i < p->src.config.n_layers; i++) {
        const struct expert_formats *f = &p->experts[i].formats;
        for (int k = expert_tensors_first(&p->src.config); k < 3 && config_has_experts(&p->src.config, i);
             k++) {
            char base[96];
            uint32_t number = k == 0 ? f->gate : k == 1 ? f->up : f->down;
            const struct format *x = format_of(number);
            int n = snprintf(base, sizeof base, "model.layers.%u.mlp.switch_mlp.%s", i, names[k]);
            add_entry(s, p, base, n, quant_config_format_mode(number), x->bits, x->group);
        }
    }
}

static void add_block(struct str *s, const struct convert_plan *p)
{
    str_addf(s, ",\n \"quantization\": {\n  \"group_size\": %u,\n  \"bits\": %u,\n  \"mode\": \"affine\"",
             p->group, p->bits);
    for (size_t i = 0; i < p->n_items; i++) {
        const struct tensor *t = &p->items[i].out[0];
        if (t->dtype == DTYPE_U32)
            add_entry(s, p, t->name, (int)(strlen(t->name) - strlen(".weight")), t->mode, t->bits, t->group);
    }
    add_expert_entries(s, p);
    str_add_text(s, "\n }\n}");
}

/* Finds the member `key` of the outermost object with its comma: text[from..to), empty if it is missing. The
 * text was parsed before, so it is valid. */
static void find_member(const char *text, size_t n, const char *key, size_t *from, size_t *to)
{
    size_t depth = 0, start = 0, len = strlen(key);
    bool quoted = false, in_value = false, is_it = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
            if (depth == 1 && !in_value)
                is_it = n - i > len + 1 && memcmp(text + i + 1, key, len) == 0 && text[i + 1 + len] == '"';
        } else if (depth == 1 && (c == ',' || c == '}')) {
            *from = text[start] == '{' ? start + 1 : start;
            *to = text[start] == '{' && c == ',' ? i + 1 : i;
            if (is_it)
                return;
            start = i;
            in_value = false;
        } else if (depth == 1 && c == ':') {
            in_value = true;
        } else if (c == '{' || c == '[') {
            start = depth++ == 0 ? i : start;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    *from = *to = 0;
}

/* Removes the member from a text of n bytes. Returns the new length. */
static size_t drop_member(char *text, size_t n, const char *key)
{
    size_t from, to;
    find_member(text, n, key, &from, &to);
    memmove(text + from, text + to, n - to);
    return n - (to - from);
}

/* The text itself is edited, so that the author's numbers and order stay. The source's quantization block is
 * removed, and the new one is added before the last brace. */
char *convert_json_config(const struct convert_plan *p, struct moeflux_err *e)
{
    struct str s = {0};
    str_add(&s, p->config_text, p->config_len);
    bool is_as_it_was =
        p->quantised || (p->expert_format != FORMAT_NONE && !p->src.fp8.rows) || p->gguf.keeps_blocks;
    if (str_ok(&s) && (!is_as_it_was || convert_settings_given(&p->settings))) {
        while (s.data[s.len - 1] != '}')
            s.len--;
        s.len = drop_member(s.data, s.len, "quantization_config");
        s.len = drop_member(s.data, s.len, "quantization") - 1;
        while (isspace((unsigned char)s.data[s.len - 1]))
            s.len--;
        add_block(&s, p);
    }
    if (str_ok(&s))
        return s.data;
    str_free(&s);
    err_set(e, ERR_MEMORY, "out of memory for config.json");
    return NULL;
}

/* --- checksums --- */

char *convert_json_checksums(const struct convert_target *t, struct moeflux_err *e)
{
    json_t *files = json_object();
    bool ok = files != NULL;
    for (size_t i = 0; i < t->n_sums; i++) {
        char hex[17];
        if (!strcmp(t->sums[i].name, CONVERT_CHECKSUMS) || !strcmp(t->sums[i].name, SPREAD_FILE))
            continue;
        snprintf(hex, sizeof hex, "%016" PRIx64, t->sums[i].xxh3);
        json_t *entry = json_pack("{s:I, s:s}", "bytes", (json_int_t)t->sums[i].bytes, "xxh3", hex);
        ok = ok && json_object_set_new(files, t->sums[i].name, entry) == 0;
    }
    json_t *root = json_pack("{s:s, s:o}", "algorithm", "XXH3-64", "files", files);
    return dump(root, ok && root, e);
}

/* --- parts --- */

char *convert_json_spread(const struct convert_parts *p, uint64_t id, struct moeflux_err *e)
{
    char hex[17];
    json_t *paths = json_array();
    for (uint32_t i = 1; i < p->spread.n_parts; i++) {
        json_t *path = json_string(p->targets[i].final);
        if (!path) {
            json_decref(paths);
            err_set(e, ERR_USAGE, "`spread`: %s is not UTF-8, which %s must be", p->targets[i].final,
                    SPREAD_FILE);
            return NULL;
        }
        json_array_append_new(paths, path);
    }
    snprintf(hex, sizeof hex, "%016" PRIx64, id);
    json_t *root = json_pack("{s:s, s:o}", "id", hex, "parts", paths);
    bool ok = root != NULL;
    if (p->spread.stripe)
        ok = ok && json_object_set_new(root, "stripe", json_integer((json_int_t)p->spread.stripe)) == 0;
    return dump(root, ok, e);
}

char *convert_json_part(const struct convert_parts *p, uint64_t id, uint32_t part, struct moeflux_err *e)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, id);
    json_t *root = json_pack("{s:s, s:I, s:I}", "id", hex, "part", (json_int_t)part, "parts",
                             (json_int_t)p->spread.n_parts);
    return dump(root, root != NULL, e);
}
