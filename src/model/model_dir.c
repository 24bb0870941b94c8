#include "model/model_dir.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/open_file.h"
#include "base/str.h"
#include "model/checkpoint.h"
#include "model/config_read.h"
#include "model/drafter.h"
#include "model/expert_places.h"
#include "model/gguf/open.h"
#include "model/expert_tensors.h"
#include "model/fp8.h"
#include "model/layout.h"
#include "model/manifest.h"
#include "model/model_check.h"
#include "model/quant_config.h"
#include "model/table.h"
#include "model/tensor.h"

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)

/* State that is only needed while a directory is being opened. */
struct opening {
    struct model_dir *m;
    struct layout layout;
    struct layout whole;       /* that of the model, if layout is its drafter's (drafter.h) */
    json_t *config, *manifest; /* parsed files; NULL: missing */
};

static int read_config(struct opening *o, struct moeflux_err *e)
{
    struct config *c = &o->m->config;
    int rc;
    if (o->layout.config) {
        rc = json_read_file(o->layout.config, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &o->config, e);
        if (rc == 0)
            rc = config_read(c, o->config, o->layout.config, e);
    } else {
        const json_t *inside = json_object_get(o->manifest, "config");
        rc = json_is_object(inside)
                 ? config_read(c, inside, o->layout.manifest, e)
                 : err_set(e, ERR_FORMAT, "%s: no \"config\", and no config.json next to it",
                           o->layout.manifest);
    }
    if (rc < 0 || !o->layout.generation_config)
        return rc;
    json_t *generation = NULL;
    rc = json_read_file(o->layout.generation_config, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &generation, e);
    if (rc == 0)
        rc = config_add_generation(c, generation, o->layout.generation_config, e);
    json_decref(generation);
    return rc;
}

/* Adds the model's embedding and head to its drafter's tensors. */
static int add_shared(struct opening *o, struct tensor_list *l, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    struct tensor_list all = {0};
    json_t *manifest = NULL;
    int rc = open_file_add(&m->files, &m->n_files, o->whole.weights, e);
    if (rc == 0)
        rc = manifest_read(o->whole.manifest, 1, m->files[1].bytes, &all, &manifest, e);
    for (size_t i = 0; rc == 0 && i < all.n; i++)
        if (drafter_shares(all.items[i].name)) {
            rc = tensor_list_add(l, &all.items[i], e);
            all.items[i].name = NULL;
        }
    tensor_list_free(&all);
    json_decref(manifest);
    return rc;
}

/* Reads the manifest into m->tensors. After a failure the caller owns what is in `l`. */
static int read_manifest(struct opening *o, struct tensor_list *l, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    int rc = manifest_read(o->layout.manifest, 0, m->files[0].bytes, l, &o->manifest, e);
    if (rc == 0 && m->is_drafter)
        rc = add_shared(o, l, e);
    if (rc == 0)
        rc = tensor_list_sort(l, m->path, e);
    if (rc < 0)
        return rc;
    m->tensors = l->items;
    m->n_tensors = l->n;
    *l = (struct tensor_list){0};
    return 0;
}

/* Reads the format of all layers' experts from the manifest's configuration, where every version writes
 * it. */
static int read_usual_formats(const struct opening *o, struct expert_formats *f, struct moeflux_err *e)
{
    struct json_view v = {
        .objects = {json_object_get(o->manifest, "config")}, .where = o->layout.manifest, .e = e};
    uint32_t bits = json_view_u32_or(&v, "expert_bits", 4, 1, 32);
    uint32_t down = json_view_u32_or(&v, "expert_down_bits", bits, 1, 32);
    char known[FORMAT_LIST_TEXT];
    if (v.rc < 0)
        return v.rc;
    f->gate = f->up = format_find_affine(bits, QUANT_DEFAULT_GROUP, SCALE_BF16);
    f->down = format_find_affine(down, QUANT_DEFAULT_GROUP, SCALE_BF16);
    if (f->up == FORMAT_NONE || f->down == FORMAT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is %u, expected %s", v.where,
                       f->up == FORMAT_NONE ? "expert_bits" : "expert_down_bits",
                       f->up == FORMAT_NONE ? bits : down, format_list_bits(known));
    return 0;
}

/* Reads the format of one projection of a layer's experts from an object with mode, bits, group_size, the
 * dtype of the scales and whether there is a factor, or with a block format's name as dtype. */
static int read_format(const struct opening *o, const json_t *layer, const char *part, uint32_t at,
                       uint32_t *format, struct moeflux_err *e)
{
    char what[64];
    struct quant_entry entry;
    const char *where = o->layout.manifest;
    const json_t *object = json_object_get(layer, part);
    snprintf(what, sizeof what, "experts of layer %u: %s", at, part);
    if (!json_is_object(object))
        return err_set(e, ERR_FORMAT, "%s: %s is missing, expected an object", where, what);
    struct json_view v = {.objects = {object}, .where = where, .e = e};
    const char *blocks = json_view_text_or(&v, "dtype", NULL);
    if (v.rc < 0 || blocks) {
        *format = blocks ? format_find_block(blocks) : FORMAT_NONE;
        return v.rc < 0 ? v.rc
               : *format != FORMAT_NONE
                   ? 0
                   : err_set(e, ERR_UNSUPPORTED, "%s: %s: unknown dtype %.32s", where, what, blocks);
    }
    int rc = quant_config_entry(object, 4, where, what, &entry, e);
    if (rc < 0)
        return rc;
    const char *dtype = json_view_text_or(&v, "scales", entry.mode == QUANT_AFFINE ? "BF16" : "U8");
    const struct tensor t = {.name = what, .mode = entry.mode, .bits = entry.bits, .group = entry.group};
    bool has_factor = json_view_bool_or(&v, QUANT_FACTOR_KEY, false);
    rc = v.rc < 0 ? v.rc : tensor_find_format(&t, tensor_find_dtype(dtype), where, format, e);
    if (rc < 0 || !has_factor)
        return rc;
    if (*format != FORMAT_NVFP4)
        return err_set(e, ERR_FORMAT, "%s: %s: a " QUANT_FACTOR_KEY ", expected none for mode %s", where,
                       what, quant_config_mode_name(entry.mode));
    *format = FORMAT_NVFP4_FACTOR;
    return 0;
}

/* Reads the formats of the experts in layer files, which have no header: f [n_layers]. */
static int read_expert_formats(const struct opening *o, struct expert_formats *f, struct moeflux_err *e)
{
    const struct config *c = &o->m->config;
    struct json_view v = {.objects = {o->manifest}, .where = o->layout.manifest, .e = e};
    const json_t *layers = json_view_array(&v, "experts");
    struct expert_formats usual;
    int rc = v.rc < 0 ? v.rc : layers ? 0 : read_usual_formats(o, &usual, e);
    if (rc == 0 && layers && json_array_size(layers) != c->n_layers)
        rc = err_set(e, ERR_FORMAT, "%s: experts of %zu layers, expected %u", v.where,
                     json_array_size(layers), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && rc == 0; i++) {
        if (!layers)
            f[i] = usual;
        if (!layers || !config_has_experts(c, i))
            continue;
        const json_t *layer = json_array_get(layers, i);
        bool is_mixed = json_object_get(layer, "gate") != NULL;
        rc = read_format(o, layer, is_mixed ? "gate" : "gate_up", i, &f[i].gate, e);
        f[i].up = f[i].gate;
        if (rc == 0 && is_mixed)
            rc = read_format(o, layer, "up", i, &f[i].up, e);
        if (rc == 0)
            rc = read_format(o, layer, "down", i, &f[i].down, e);
    }
    return rc;
}

static int add_expert_files(struct opening *o, struct moeflux_err *e)
{
    struct expert_formats *formats = mem_new(o->m->config.n_layers, sizeof *formats, e);
    int rc = formats ? read_expert_formats(o, formats, e) : ERR_MEMORY;
    if (rc == 0)
        rc = expert_places_from_files(o->m, o->layout.experts, formats, e);
    free(formats);
    return rc;
}

static int open_packed(struct opening *o, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    struct tensor_list tensors = {0};
    int rc = open_file_add(&m->files, &m->n_files, o->layout.weights, e);
    if (rc == 0)
        rc = read_manifest(o, &tensors, e);
    tensor_list_free(&tensors);
    if (rc == 0)
        rc = read_config(o, e);
    if (rc == 0 && m->is_drafter)
        rc = drafter_config(&m->config, m->path, e);
    if (rc == 0)
        rc = model_check_tensors(m, e);
    if (rc == 0)
        rc = spread_read(&m->parts, m->path, e);
    return rc < 0 ? rc : add_expert_files(o, e);
}

static int fail_no_layer(const struct model_dir *m, struct moeflux_err *e)
{
    char name[DRAFTER_LABEL];
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: no tensor %s with its norms: it has no layer of multi-token prediction", m->path,
                   drafter_label(&m->config, name));
}

static int open_plain(struct opening *o, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    struct quant_config q = {0};
    int rc = read_config(o, e);
    if (rc == 0 && m->is_drafter)
        rc = drafter_config(&m->config, m->path, e);
    if (rc == 0)
        rc = quant_config_read(&q, o->config, o->layout.config, e);
    if (rc < 0)
        return rc;
    m->fp8 = q.fp8;
    rc = checkpoint_open(m, &q, e);
    if (rc == 0 && m->is_drafter && !m->has_drafter)
        rc = fail_no_layer(m, e);
    if (rc == 0)
        rc = model_check_tensors(m, e);
    if (rc == 0 && q.block && checkpoint_is_hugging_face(m))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: quantised, but the norms are still as in a Hugging Face checkpoint", m->path);
    return rc < 0 ? rc : expert_places_from_tensors(m, e);
}

/* Counts a tensor, except numbers of routed experts, which are counted with their places, and what a drafter
 * has of its model. */
static void count_bytes(struct model_dir *m, const struct tensor *t)
{
    if (m->is_drafter && drafter_shares(t->name))
        return;
    if (table_has(t->name))
        m->table_bytes += t->bytes;
    else if (!expert_tensors_has(t->name) || str_ends_with(t->name, "_proj.bias"))
        m->dense_bytes += fp8_memory(m, t);
}

static void count_dense_bytes(struct model_dir *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        count_bytes(m, &m->tensors[i]);
}

/* Goes on with the directory of a converted model's drafter. */
static int enter_drafter(struct opening *o, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    char *own = file_join(m->path, DRAFTER_DIR, e);
    if (!own)
        return ERR_MEMORY;
    if (!file_exists(own)) {
        free(own);
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: no " DRAFTER_DIR ": it was converted without a layer of multi-token prediction",
                       m->path);
    }
    free(m->path);
    m->path = own;
    o->whole = o->layout;
    int rc = layout_find(&o->layout, own, e);
    if (rc == 0 && !o->layout.packed)
        rc = err_set(e, ERR_FORMAT, "%s: no model_weights.json", own);
    return rc;
}

static int find_drafter(struct model_dir *m, struct moeflux_err *e)
{
    char *own = file_join(m->path, DRAFTER_DIR, e);
    m->has_drafter = own && file_exists(own);
    free(own);
    return own ? 0 : ERR_MEMORY;
}

/* Opens the files of a directory. */
static int open_dir(struct opening *o, const char *path, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    int rc = layout_find(&o->layout, path, e);
    if (rc == 0) {
        m->packed = o->layout.packed;
        if (m->packed)
            rc = m->is_drafter ? enter_drafter(o, e) : find_drafter(m, e);
        if (rc == 0)
            rc = m->packed ? open_packed(o, e) : open_plain(o, e);
    }
    if (rc == 0) {
        m->tokenizer_path = o->layout.tokenizer;
        o->layout.tokenizer = NULL;
    }
    layout_free(&o->layout);
    layout_free(&o->whole);
    json_decref(o->config);
    json_decref(o->manifest);
    return rc;
}

static int open_model(struct model_dir *m, const char *path, struct moeflux_err *e)
{
    struct opening o = {.m = m};
    m->path = mem_text(path, e);
    int rc = !m->path ? ERR_MEMORY : gguf_is_file(path) ? gguf_open_model(m, e) : open_dir(&o, path, e);
    if (rc == 0)
        count_dense_bytes(m);
    if (rc < 0)
        model_dir_close(m);
    return rc;
}

int model_dir_open(struct model_dir *m, const char *path, struct moeflux_err *e)
{
    *m = (struct model_dir){.parts.spread.n_parts = 1};
    return open_model(m, path, e);
}

int model_dir_open_drafter(struct model_dir *m, const char *path, const char *file, struct moeflux_err *e)
{
    *m = (struct model_dir){.parts.spread.n_parts = 1, .is_drafter = true, .drafter_file = file};
    if (file && !gguf_is_file(path))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: a file with the layer of multi-token prediction, expected none for %s, which is no GGUF "
            "file",
            file, path);
    return open_model(m, path, e);
}

void model_dir_close(struct model_dir *m)
{
    struct tensor_list tensors = {m->tensors, m->n_tensors, m->n_tensors};
    tensor_list_free(&tensors);
    open_file_close_all(m->files, m->n_files);
    expert_places_free(m->places, m->config.n_layers);
    config_free(&m->config);
    spread_free(&m->parts);
    free(m->experts);
    free(m->tokenizer_path);
    free(m->path);
    *m = (struct model_dir){0};
}
