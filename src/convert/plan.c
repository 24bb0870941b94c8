#include "convert/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "convert/choose.h"
#include "model/gguf/config.h"
#include "model/gguf/drafter_file.h"
#include "model/gguf/tensors.h"
#include "model/model_file.h"
#include "model/checkpoint.h"
#include "model/drafter.h"
#include "model/config_read.h"
#include "model/expert_places.h"
#include "model/expert_tensors.h"
#include "model/family.h"
#include "model/fp8.h"
#include "model/layout.h"
#include "model/manifest.h"
#include "model/model_check.h"
#include "model/names.h"
#include "model/quant_config.h"
#include "model/schema.h"
#include "model/table.h"
#include "model/tensor.h"

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)

/* --- the source --- */

static int read_config(struct convert_plan *p, const struct layout *l, struct moeflux_err *e)
{
    int rc = file_read_text(l->config, MAX_CONFIG_BYTES, &p->config_text, &p->config_len, e);
    return rc < 0 ? rc : json_read(p->config_text, p->config_len, l->config, JSON_MAX_SMALL, &p->config, e);
}

static int add_generation(struct config *c, const char *path, struct moeflux_err *e)
{
    json_t *root = NULL;
    int rc = json_read_file(path, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &root, e);
    if (rc == 0)
        rc = config_add_generation(c, root, path, e);
    json_decref(root);
    return rc;
}

/* Reads the configuration: of the model or of its drafter. */
static int describe(struct convert_plan *p, const char *where, struct moeflux_err *e)
{
    struct config *c = &p->src.config;
    int rc = config_read(c, p->config, where, e);
    p->src.is_drafter = p->drafts;
    return rc == 0 && p->drafts ? drafter_config(c, where, e) : rc;
}

/* Opens a source that has codes. */
static int open_dir(struct convert_plan *p, const char *src, struct moeflux_err *e)
{
    return p->drafts ? model_dir_open_drafter(&p->src, src, NULL, e) : model_dir_open(&p->src, src, e);
}

static int open_unquantised(struct convert_plan *p, const struct layout *l, const char *src,
                            const struct quant_config *q, struct moeflux_err *e)
{
    struct model_dir *m = &p->src;
    m->path = mem_text(src, e);
    int rc = m->path ? describe(p, l->config, e) : ERR_MEMORY;
    if (rc == 0 && l->generation_config)
        rc = add_generation(&m->config, l->generation_config, e);
    m->fp8 = q->fp8;
    if (rc == 0)
        rc = checkpoint_open(m, q, e);
    if (rc == 0)
        rc = model_check_tensors(m, e);
    if (rc == 0)
        convert_choose_default(p, 0, 0);
    return rc;
}

/* Makes the configuration's text. Blocks keep the file's order of value heads, which the text then names. */
static int write_gguf_config(struct convert_plan *p, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    bool tiles = p->gguf.keeps_blocks && gguf_config_tiles_heads(c);
    bool is_set = !tiles || json_object_set_new(p->config, CONFIG_TILED_KEY, json_true()) == 0;
    p->config_text = is_set ? json_dumps(p->config, JSON_INDENT(1)) : NULL;
    if (!p->config_text)
        return err_set(e, ERR_MEMORY, "out of memory for config.json");
    p->config_len = strlen(p->config_text);
    return 0;
}

/* Opens a GGUF file, whose blocks stay unless the settings request another format. Else most codes have 4
 * bits in groups of 32; config.json lists the others. */
static int open_gguf(struct convert_plan *p, const char *src, struct moeflux_err *e)
{
    struct model_dir *m = &p->src;
    m->is_gguf = true;
    p->gguf.rounds_scales = p->settings.half_scales;
    p->gguf.keeps_blocks = !convert_settings_given(&p->settings);
    m->path = mem_text(src, e);
    int rc = m->path ? gguf_open(&p->gguf.file, src, e) : ERR_MEMORY;
    if (rc == 0)
        rc = gguf_config_make(&p->gguf.file, &p->config, e);
    if (rc == 0)
        rc = describe(p, src, e);
    if (rc == 0)
        rc = write_gguf_config(p, e);
    if (rc == 0 && p->drafter_file)
        rc = drafter_file_add(&p->gguf.file, &m->config, p->drafter_file, e);
    if (rc == 0)
        rc = gguf_source_open(&p->gguf, m, e);
    m->has_drafter = rc == 0 && gguf_tensors_have_drafter(&p->gguf.file, &m->config);
    if (rc == 0)
        rc = model_check_tensors(m, e);
    p->bits = 4;
    p->group = 32;
    return rc;
}

/* Returns whether some matrices are those of nvfp4.h. The tensors decide that, not config.json. */
static bool has_nvfp4(const struct model_dir *m)
{
    size_t i = 0;
    while (i < m->n_tensors && !m->tensors[i].factor.is_there)
        i++;
    return i < m->n_tensors;
}

/* Opens such a source anew as a quantised one: what has codes keeps them, and what has none stays plain. */
static int open_nvfp4(struct convert_plan *p, const char *src, struct moeflux_err *e)
{
    const struct format *f = format_of(FORMAT_NVFP4_FACTOR);
    model_dir_close(&p->src);
    p->quantised = true;
    p->expert_format = FORMAT_NONE;
    int rc = open_dir(p, src, e);
    if (rc == 0)
        convert_choose_default(p, f->bits, QUANT_DEFAULT_GROUP);
    return rc;
}

static int open_source(struct convert_plan *p, const char *src, struct moeflux_err *e)
{
    struct layout l;
    struct quant_config q;
    if (file_is_regular(src))
        return open_gguf(p, src, e);
    if (p->drafter_file)
        return err_set(e, ERR_UNSUPPORTED, "`drafter_file` %s: expected none for %s, which is no GGUF file",
                       p->drafter_file, src);
    int rc = layout_find(&l, src, e);
    if (rc < 0)
        return rc;
    if (l.packed)
        rc = err_set(e, ERR_USAGE, "%s: is converted already (it has a model_weights.json)", src);
    if (rc == 0)
        rc = read_config(p, &l, e);
    if (rc == 0)
        rc = quant_config_read(&q, p->config, l.config, e);
    if (rc == 0 && q.block) {
        p->quantised = true;
        rc = open_dir(p, src, e);
        if (rc == 0)
            convert_choose_default(p, q.rest.bits, q.rest.group);
    } else if (rc == 0) {
        /* Experts next to 8-bit floats may be 4-bit floats; check_experts finds out whether they are. */
        p->expert_format = q.fp8.rows ? FORMAT_MXFP4 : q.expert_format;
        p->is_packed = q.is_packed;
        rc = open_unquantised(p, &l, src, &q, e);
        if (rc == 0 && has_nvfp4(&p->src))
            rc = open_nvfp4(p, src, e);
    }
    layout_free(&l);
    return rc;
}

/* --- dense tensors --- */

static struct convert_item *add_item(struct convert_plan *p, enum convert_step step, const struct tensor *src,
                                     struct moeflux_err *e)
{
    void *items = p->items;
    int rc = mem_grow(&items, &p->cap_items, p->n_items + 1, sizeof *p->items, e);
    p->items = items;
    if (rc < 0)
        return NULL;
    struct convert_item *it = &p->items[p->n_items++];
    *it = (struct convert_item){.step = step, .src = src, .n = src->bytes / tensor_dtype_bytes(src->dtype)};
    p->dense_source_bytes += convert_plan_bytes(p, src, it->n);
    return it;
}

/* Gives item `it` its next output: `like` with another name, dtype and last dimension. */
static int add_output(struct convert_plan *p, struct convert_item *it, const char *name, enum dtype dtype,
                      uint64_t cols, struct moeflux_err *e)
{
    struct tensor *t = &it->out[it->n_out];
    *t = *it->src;
    t->bits = dtype == DTYPE_U32 ? it->src->bits : 0;
    t->group = dtype == DTYPE_U32 ? it->src->group : 0;
    t->mode = dtype == DTYPE_U32 ? it->src->mode : QUANT_AFFINE;
    if (tensor_set_name(t, name, NULL, e) < 0)
        return ERR_MEMORY;
    it->n_out++;
    uint64_t elements = it->src->bytes / tensor_dtype_bytes(it->src->dtype) / tensor_cols(it->src) * cols;
    t->dtype = dtype;
    t->bytes = elements * tensor_dtype_bytes(dtype);
    if (t->n_dims)
        t->shape[t->n_dims - 1] = cols;
    t->off = size_round_up(p->weights_bytes, MANIFEST_ALIGN);
    p->weights_bytes = t->off + t->bytes;
    return 0;
}

static int add_simple(struct convert_plan *p, enum convert_step step, const struct tensor *src,
                      struct moeflux_err *e)
{
    struct convert_item *it = add_item(p, step, src, e);
    enum dtype dtype = step == CONVERT_WIDEN || src->dtype == DTYPE_GGUF ? DTYPE_F32 : src->dtype;
    /* A matrix whose rows no format takes; a table's 8-bit floats stay, with their scales. */
    if (src->dtype == DTYPE_F8_E4M3 && !table_has(src->name))
        dtype = DTYPE_BF16;
    if (step == CONVERT_NARROW)
        dtype = src->format == FORMAT_F16 ? DTYPE_F16 : DTYPE_BF16;
    return it ? add_output(p, it, src->name, dtype, tensor_cols(src), e) : ERR_MEMORY;
}

/* Adds the factor of a matrix: one float32. */
static int add_factor(struct convert_plan *p, struct convert_item *it, struct moeflux_err *e)
{
    uint64_t at = p->weights_bytes;
    char *name = names_replace_end(it->src->name, strlen("weight"), "global_scale", e);
    int rc = name ? add_output(p, it, name, DTYPE_F32, 1, e) : ERR_MEMORY;
    free(name);
    if (rc < 0)
        return rc;
    struct tensor *t = &it->out[it->n_out - 1];
    t->n_dims = 1;
    t->shape[0] = 1;
    t->bytes = sizeof(float);
    p->weights_bytes = size_round_up(at, MANIFEST_ALIGN) + t->bytes;
    return 0;
}

/* Adds a matrix with step CONVERT_QUANTISE or CONVERT_REPACK. */
static int add_quantised(struct convert_plan *p, enum convert_step step, const struct matrix *w,
                         uint32_t format, struct moeflux_err *e)
{
    const struct format *f = format_of(format);
    const struct tensor *src = w->weight;
    static const char *const tails[] = {"weight", "scales", "biases"};
    struct convert_item *it = add_item(p, step, src, e);
    if (!it)
        return ERR_MEMORY;
    uint64_t n = w->cols, cols[] = {n * f->bits / 32, n / f->group, n / f->group};
    int rc = 0;
    for (int i = 0; i < 2 + f->has_bias && rc == 0; i++) {
        char *name = names_replace_end(src->name, strlen("weight"), tails[i], e);
        rc = name ? add_output(p, it, name, i ? tensor_scale_dtype(f) : DTYPE_U32, cols[i], e) : ERR_MEMORY;
        free(name);
    }
    if (rc == 0 && f->has_factor)
        rc = add_factor(p, it, e);
    it->out[0].bits = f->bits;
    it->out[0].group = f->group;
    it->out[0].mode = quant_config_format_mode(format);
    it->format = format;
    it->kind = convert_class_of(src->name, p->src.config.family);
    if (w->scales) {
        it->scales = w->scales;
        it->biases = w->biases;
        it->n = (uint64_t)w->rows * w->cols;
        bool has_biases = w->biases && format_of(src->format)->has_bias;
        p->dense_source_bytes += w->scales->bytes + (has_biases ? w->biases->bytes : 0);
    }
    return rc;
}

/* Adds a matrix of a GGUF file whose blocks stay. */
static int add_blocks(struct convert_plan *p, const struct matrix *w, uint32_t format, struct moeflux_err *e)
{
    struct convert_item *it = add_item(p, CONVERT_BLOCKS, w->weight, e);
    if (!it)
        return ERR_MEMORY;
    uint64_t at = p->weights_bytes;
    int rc = add_output(p, it, w->weight->name, DTYPE_BLOCKS, w->cols, e);
    struct tensor *t = &it->out[0];
    it->format = t->format = format;
    t->bytes = format_code_bytes(format_of(format), it->n);
    p->weights_bytes = size_round_up(at, MANIFEST_ALIGN) + t->bytes;
    return rc;
}

static int add_copy(struct convert_plan *p, const struct matrix *w, struct moeflux_err *e)
{
    int rc = add_simple(p, CONVERT_COPY, w->weight, e);
    if (rc == 0 && w->scales)
        rc = add_simple(p, CONVERT_COPY, w->scales, e);
    return rc < 0 || !w->biases ? rc : add_simple(p, CONVERT_COPY, w->biases, e);
}

static int plan_matrix(struct convert_plan *p, const struct schema_item *s, struct moeflux_err *e)
{
    struct matrix w;
    uint32_t format = FORMAT_NONE;
    int rc = model_dir_matrix(&p->src, s->name, s->rows, s->cols, &w, e);
    if (rc == 0)
        rc = convert_choose_matrix(p, &w, &format, e);
    if (rc < 0)
        return rc;
    if (format_is_block(format))
        return add_blocks(p, &w, format, e);
    if (p->src.is_gguf && format != FORMAT_NONE) {
        bool exact = gguf_source_holds(&p->gguf, w.weight, format);
        return add_quantised(p, exact ? CONVERT_REPACK : CONVERT_QUANTISE, &w, format, e);
    }
    if (p->src.is_gguf)
        return add_simple(p,
                          w.format == FORMAT_F16 || w.format == FORMAT_BF16 ? CONVERT_NARROW : CONVERT_COPY,
                          w.weight, e);
    return format == FORMAT_NONE ? add_copy(p, &w, e) : add_quantised(p, CONVERT_QUANTISE, &w, format, e);
}

static int plan_vector(struct convert_plan *p, const struct schema_item *s, struct moeflux_err *e)
{
    const struct tensor *t;
    int rc = s->is_ids ? model_dir_ids(&p->src, s->name, s->cols, &t, e)
                       : model_dir_vector(&p->src, s->name, s->cols, &t, e);
    if (rc < 0)
        return rc;
    enum convert_step step = CONVERT_COPY;
    if (str_ends_with(t->name, ".A_log") && t->dtype != DTYPE_F32 && t->dtype != DTYPE_GGUF)
        step = CONVERT_WIDEN;
    else if (checkpoint_is_less_one(&p->src, t->name))
        step = CONVERT_PLUS_ONE;
    rc = add_simple(p, step, t, e);
    /* [C, 1, taps] and [C, taps, 1] are the same bytes; the packed format has the second. */
    if (rc == 0 && p->src.norms_less_one && str_ends_with(t->name, ".conv1d.weight") && tensor_cols(t) != 1) {
        struct tensor *out = &p->items[p->n_items - 1].out[0];
        out->shape[1] = out->shape[2];
        out->shape[2] = 1;
    }
    return rc;
}

/* Plans the shards of a layer's n-gram table, if it has one. */
static int plan_table(struct convert_plan *p, uint32_t layer, struct moeflux_err *e)
{
    const struct ngram_config *c = table_of_layer(&p->src.config, layer);
    struct table t;
    int rc = c ? table_open(&t, &p->src, layer, c, e) : 0;
    if (rc < 0 || !c)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < t.n_shards; i++) {
        const struct matrix *w = &t.shards[i].matrix;
        struct schema_item s = {.rows = w->rows, .cols = w->cols};
        snprintf(s.name, sizeof s.name, "%.*s", (int)(strlen(w->weight->name) - strlen(".weight")),
                 w->weight->name);
        rc = plan_matrix(p, &s, e);
        /* All shards may have the same scale. */
        const struct tensor *scales = t.shards[i].fp8.scales;
        bool stays = scales && p->items[p->n_items - 1].step == CONVERT_COPY;
        if (rc == 0 && stays && (i == 0 || scales != t.shards[i - 1].fp8.scales))
            rc = add_simple(p, CONVERT_COPY, scales, e);
    }
    table_close(&t);
    return rc;
}

static int plan_dense(struct convert_plan *p, struct moeflux_err *e)
{
    struct schema s;
    int rc = schema_build(&s, &p->src.config, e);
    for (size_t i = 0; rc == 0 && i < s.n; i++)
        rc = p->drafts && drafter_shares(s.items[i].name) ? 0
             : s.items[i].rows                            ? plan_matrix(p, &s.items[i], e)
                                                          : plan_vector(p, &s.items[i], e);
    schema_free(&s);
    for (uint32_t i = 0; rc == 0 && i < p->src.config.n_layers; i++)
        rc = plan_table(p, i, e);
    return rc;
}

/* --- experts of an unquantised source --- */

enum dtype convert_plan_dtype(const struct tensor *t)
{
    if (t->dtype == DTYPE_GGUF)
        return DTYPE_F32;
    return t->dtype == DTYPE_F8_E4M3 ? DTYPE_BF16 : t->dtype;
}

uint64_t convert_plan_bytes(const struct convert_plan *p, const struct tensor *t, uint64_t n)
{
    return t->dtype == DTYPE_GGUF ? gguf_source_bytes(&p->gguf, t, n) : n * tensor_dtype_bytes(t->dtype);
}

int convert_plan_read(const struct convert_plan *p, const struct tensor *t, uint64_t first, uint64_t n,
                      void *out, struct moeflux_err *e)
{
    uint64_t width = tensor_dtype_bytes(t->dtype);
    if (t->dtype == DTYPE_GGUF)
        return gguf_source_read(&p->gguf, t, first, n, out, e);
    if (t->dtype == DTYPE_F8_E4M3)
        return fp8_read(&p->src, t, first, n, out, e);
    return model_file_read(p->src.files, t, first * width, n * width, out, e);
}

int convert_plan_check_error(const struct convert_plan *p, const struct tensor *t, uint32_t format,
                             const struct convert_error *sum, struct moeflux_err *e)
{
    double lost = sum->squares > 0 ? sqrt(sum->stored / sum->squares) : 0;
    if (!p->src.is_gguf || p->settings.lossy || convert_settings_give_bits(&p->settings) ||
        lost <= CONVERT_MAX_LOSS)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: tensor %s: %s becomes %s, which changes it by %.1f %% (expected at most %.0f %%); "
                   "`lossy` takes it",
                   p->src.files[t->file].path, tensor_label(t), gguf_source_type(&p->gguf, t),
                   format_of(format)->name, 100 * lost, 100 * CONVERT_MAX_LOSS);
}

/* Checks that codes are those of the configuration. */
static int check_codes(const struct convert_plan *p, const struct tensor *t, struct moeflux_err *e)
{
    if (t->dtype != DTYPE_U32 || t->format == FORMAT_MXFP4 || t->format == p->expert_format)
        return 0;
    return tensor_fail_dtype(t, "BF16, F16, F32 or F8_E4M3", p->src.files[t->file].path, e);
}

int convert_plan_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, enum expert_proj proj,
                        struct convert_run *out, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    uint64_t hidden = config_expert_hidden(c), rows = proj == EXPERT_DOWN ? hidden : c->moe_inner;
    uint64_t cols = proj == EXPERT_DOWN ? c->moe_inner : hidden;
    struct expert_tensor b;
    int rc = expert_tensors_find(&p->src, layer, expert, proj, &b, e);
    if (rc == 0)
        rc = check_codes(p, b.t, e);
    if (rc < 0)
        return rc;
    uint64_t bytes = b.t->bytes / b.of, width = tensor_dtype_bytes(b.t->dtype), parts = b.of / c->n_experts;
    *out = (struct convert_run){.t = b.t, .first = b.at * bytes / width, .n = rows * cols, .cols = cols};
    if (b.t->dtype == DTYPE_U32) {
        out->first = b.at * rows * cols;
        out->scales = expert_tensors_part(&p->src, b.t, "scales"); /* was checked with the codes */
        return 0;
    }
    if (expert_tensors_by_columns(&p->src, b.t)) {
        out->block = parts * rows * cols;
        out->first = expert * out->block;
        out->skip = parts > 1 ? (uint64_t)proj : 0;
        out->row_step = parts;
        out->col_step = parts * rows;
    }
    return 0;
}

/* Checks that all experts have codes if the configuration says so, or none: a dequantised checkpoint may have
 * kept the key. */
static int check_kind(const struct convert_plan *p, const struct convert_run *run, struct moeflux_err *e)
{
    const struct tensor *t = run->t;
    if (p->expert_format == FORMAT_NONE || run->scales)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected %s as other experts have it",
                   p->src.files[t->file].path, t->name, tensor_dtype_name(t->dtype),
                   p->is_packed ? "packed codes" : "mxfp4");
}

static int check_experts(const struct convert_plan *p, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (uint32_t i = 0; config_has_experts(c, layer) && i < c->n_experts; i++)
            for (enum expert_proj proj = expert_tensors_first(c); proj <= EXPERT_DOWN; proj++) {
                struct convert_run run;
                int rc = convert_plan_expert(p, layer, i, proj, &run, e);
                if (rc == 0)
                    rc = check_kind(p, &run, e);
                if (rc < 0)
                    return rc;
            }
    return 0;
}

/* Returns whether some expert has codes already. check_experts reports missing and misshapen tensors. */
static bool has_codes(const struct convert_plan *p)
{
    const struct config *c = &p->src.config;
    bool found = false;
    for (uint32_t layer = 0; layer < c->n_layers && !found; layer++)
        for (enum expert_proj proj = expert_tensors_first(c);
             config_has_experts(c, layer) && proj <= EXPERT_DOWN; proj++) {
            struct convert_run run;
            found = found || (convert_plan_expert(p, layer, 0, proj, &run, NULL) == 0 && run.scales);
        }
    return found;
}

/* Returns the bytes of an expert's matrix in its file. */
static uint64_t run_bytes(const struct convert_plan *p, const struct convert_run *run)
{
    return run->scales ? format_all_bytes(format_of(run->t->format), run->n)
                       : convert_plan_bytes(p, run->t, run->n);
}

/* Returns the bytes that are read whole before a matrix becomes codes: its codes, or a transposed matrix. */
static uint64_t run_room(const struct convert_run *run)
{
    if (run->scales)
        return format_all_bytes(format_of(run->t->format), run->n);
    return run->col_step ? run->block * tensor_dtype_bytes(run->t->dtype) : 0;
}

/* Returns the maximum over a layer's matrices. What is read whole lies in stacks, so all experts need what
 * the first one needs. */
static uint64_t source_room(const struct convert_plan *p, uint32_t layer)
{
    uint64_t most = 0;
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN; proj++) {
        struct convert_run run;
        if (convert_plan_expert(p, layer, 0, proj, &run, NULL) == 0)
            most = size_max(most, run_room(&run));
    }
    return most;
}

static int size_experts(struct convert_plan *p, struct moeflux_err *e)
{
    const struct config *c = &p->src.config;
    p->experts = mem_new(c->n_layers, sizeof *p->experts, e);
    if (!p->experts)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct expert_formats formats;
        if (!config_has_experts(c, i))
            continue;
        int rc = convert_choose_experts(p, i, &formats, e);
        if (rc < 0)
            return rc;
        p->n_expert_layers++;
        p->experts[i] = expert_places_layout(c, &formats);
        p->max_expert_bytes = size_max(p->max_expert_bytes, p->experts[i].bytes);
        uint64_t source = convert_plan_changes(p, i) ? p->src.experts[i].bytes
                          : p->quantised             ? 0
                                                     : source_room(p, i);
        p->expert_room = size_max(p->expert_room, p->experts[i].bytes + source);
        p->expert_source_bytes += convert_plan_layer_source(p, i);
    }
    return 0;
}

bool convert_plan_changes(const struct convert_plan *p, uint32_t layer)
{
    if (!p->quantised)
        return false;
    const struct expert_formats *a = &p->src.experts[layer].formats, *b = &p->experts[layer].formats;
    return a->gate != b->gate || a->up != b->up || a->down != b->down;
}

uint64_t convert_plan_layer_source(const struct convert_plan *p, uint32_t layer)
{
    uint64_t bytes = 0;
    if (p->quantised)
        return p->src.experts[layer].bytes * p->src.config.n_experts;
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN; proj++) {
        struct convert_run run;
        if (convert_plan_expert(p, layer, 0, proj, &run, NULL) == 0)
            bytes += run_bytes(p, &run);
    }
    return bytes * p->src.config.n_experts;
}

/* --- the whole --- */

/* Hashes names, lengths and times of the source's files: enough to notice another source, and cheap for
 * hundreds of GB. */
static void identify(struct convert_plan *p)
{
    XXH64_hash_t h = XXH3_64bits(p->config_text, p->config_len);
    for (uint32_t i = 0; i < p->src.n_files; i++) {
        const struct open_file *f = &p->src.files[i];
        char line[512];
        const char *slash = strrchr(f->path, '/');
        int n = snprintf(line, sizeof line, "%.300s %" PRIu64 " %lld.%09ld", slash ? slash + 1 : f->path,
                         f->bytes, (long long)f->written.tv_sec, f->written.tv_nsec);
        h = XXH3_64bits_withSeed(line, (size_t)n, h);
    }
    p->identity = convert_settings_hash(&p->settings, h);
}

int convert_plan_check_source(const struct convert_plan *p, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < p->src.n_files && rc == 0; i++)
        rc = open_file_check(&p->src.files[i], e);
    return rc;
}

static enum convert_scales choose_rule(const struct convert_settings *s, bool is_gguf)
{
    if (!convert_settings_given(s) && !is_gguf)
        return CONVERT_SCALES_PLAIN;
    return s->rule == CONVERT_RULE_MINMAX ? CONVERT_SCALES_MINMAX : CONVERT_SCALES_SEARCH;
}

static int plan(struct convert_plan *p, const char *src, const struct convert_settings *s,
                struct moeflux_err *e)
{
    int rc = convert_settings_check(s, e);
    if (rc == 0)
        rc = open_source(p, src, e);
    p->rule = choose_rule(s, p->src.is_gguf);
    if (rc == 0 && (s->lossy || s->half_scales) && !p->src.is_gguf)
        rc = err_set(e, ERR_USAGE, "`%s`: %s is no GGUF file", s->lossy ? "lossy" : "half_scales", src);
    /* Must precede plan_dense: dense matrices stay unquantised only if the experts have codes. */
    if (rc < 0 || p->expert_format == FORMAT_NONE || !has_codes(p))
        p->expert_format = FORMAT_NONE;
    if (rc == 0)
        rc = plan_dense(p, e);
    if (rc == 0 && !p->quantised)
        rc = check_experts(p, e);
    if (rc == 0)
        identify(p);
    if (rc == 0)
        rc = size_experts(p, e);
    return rc;
}

int convert_plan_open(struct convert_plan *p, const char *src, const struct convert_settings *s,
                      struct moeflux_err *e)
{
    *p = (struct convert_plan){.settings = *s, .expert_format = FORMAT_NONE};
    int rc = plan(p, src, s, e);
    if (rc == 0)
        rc = convert_choose_check(p, e);
    if (rc < 0)
        convert_plan_close(p);
    return rc;
}

int convert_plan_open_drafter(struct convert_plan *p, const char *src, const char *file,
                              struct moeflux_err *e)
{
    static const struct convert_settings eight = {.bits = 8};
    *p = (struct convert_plan){
        .settings = eight, .drafts = true, .drafter_file = file, .expert_format = FORMAT_NONE};
    int rc = plan(p, src, &eight, e);
    if (rc < 0)
        convert_plan_close(p);
    return rc;
}

void convert_plan_close(struct convert_plan *p)
{
    for (size_t i = 0; i < p->n_items; i++)
        for (uint32_t k = 0; k < p->items[i].n_out; k++)
            free(p->items[i].out[k].name);
    free(p->items);
    free(p->experts);
    json_decref(p->config);
    free(p->config_text);
    gguf_source_close(&p->gguf, &p->src);
    model_dir_close(&p->src);
    *p = (struct convert_plan){0};
}
