#include "model/expert_places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/model_file.h"
#include "model/tensor.h"

/* Kernels read blocks by words of up to 16 bytes. */
enum { BLOCKS_ALIGN = 16 };

/* Appends weights, scales and biases of a projection of n weights. */
static void place_projection(uint32_t format, uint64_t n, uint64_t *w, uint64_t *s, uint64_t *b,
                             uint64_t *end)
{
    const struct format *f = format_of(format);
    *w = f->scheme == SCHEME_BLOCK ? size_round_up(*end, BLOCKS_ALIGN) : *end;
    *s = *w + format_code_bytes(f, n);
    *b = *s + format_scale_bytes(f, n);
    *end = *w + format_all_bytes(f, n);
}

struct expert_layout expert_places_layout(const struct config *c, const struct expert_formats *f)
{
    uint64_t n = (uint64_t)c->moe_inner * c->hidden;
    struct expert_layout l = {.formats = *f};
    place_projection(f->gate, n, &l.gate_w, &l.gate_s, &l.gate_b, &l.bytes);
    place_projection(f->up, n, &l.up_w, &l.up_s, &l.up_b, &l.bytes);
    place_projection(f->down, n, &l.down_w, &l.down_s, &l.down_b, &l.bytes);
    return l;
}

int expert_places_begin(struct model_dir *m, struct moeflux_err *e)
{
    m->experts = mem_new(m->config.n_layers, sizeof *m->experts, e);
    m->places = mem_new(m->config.n_layers, sizeof *m->places, e);
    return m->experts && m->places ? 0 : ERR_MEMORY;
}

static int check_formats(const struct model_dir *m, uint32_t layer, const struct expert_formats *f,
                         struct moeflux_err *e)
{
    if (f->gate == f->up)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: layer %u: the experts' gate_proj is %s and up_proj %s, expected equal formats%s",
                   m->path, layer, format_of(f->gate)->name, format_of(f->up)->name,
                   m->is_gguf ? "; moeflux convert makes them equal" : "");
}

int expert_places_lay_out(struct model_dir *m, uint32_t layer, const struct expert_formats *f,
                          struct moeflux_err *e)
{
    int rc = check_formats(m, layer, f, e);
    if (rc < 0)
        return rc;
    m->experts[layer] = expert_places_layout(&m->config, f);
    m->max_expert_bytes = size_max(m->max_expert_bytes, m->experts[layer].bytes);
    return 0;
}

/* --- layer files --- */

static int check_length(const struct model_dir *m, uint32_t layer, const struct model_file *f,
                        struct moeflux_err *e)
{
    struct spread s = spread_of_layer(&m->parts.spread, m->experts[layer].bytes);
    uint64_t each = s.stripe, expected = each * m->config.n_experts;
    if (f->bytes == expected)
        return 0;
    if (s.n_parts > 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %" PRIu64 " bytes, expected %" PRIu64 " (pieces of %u experts, %" PRIu64
                       " bytes each)",
                       f->path, f->bytes, expected, m->config.n_experts, each);
    /* Other engines give files of 2-bit experts the same names. */
    uint64_t n = (uint64_t)m->config.moe_inner * m->config.hidden;
    if (f->bytes == 3 * format_all_bytes(format_of(FORMAT_Q2), n) * m->config.n_experts)
        return err_set(e, ERR_UNSUPPORTED, "%s: the experts have 2 bits, expected %u", f->path,
                       format_of(m->experts[layer].formats.up)->bits);
    return err_set(e, ERR_FORMAT,
                   "%s: %" PRIu64 " bytes, expected %" PRIu64 " (%u experts of %" PRIu64 " bytes)", f->path,
                   f->bytes, expected, m->config.n_experts, each);
}

static int add_layer_file(struct model_dir *m, const char *dir, uint32_t layer, struct moeflux_err *e)
{
    char name[32];
    snprintf(name, sizeof name, "layer_%02u.bin", layer);
    char *path = file_join(dir, name, e);
    int rc = path ? model_file_add(&m->files, &m->n_files, path, e) : ERR_MEMORY;
    free(path);
    return rc < 0 ? rc : check_length(m, layer, &m->files[m->n_files - 1], e);
}

static int check_stripe(const struct model_dir *m, const struct spread *s, uint64_t expert_bytes,
                        struct moeflux_err *e)
{
    if (spread_n_pieces(s, expert_bytes) <= s->n_parts)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: stripe is %" PRIu64 ", too little for experts of %" PRIu64 " bytes in %u parts",
                   m->parts.file, s->stripe, expert_bytes, s->n_parts);
}

/* Adds the layer's files to m->files, consecutively, in the order of the parts. */
static int add_layer(struct model_dir *m, char *const dirs[], uint32_t layer, struct moeflux_err *e)
{
    uint64_t bytes = m->experts[layer].bytes;
    struct spread s = spread_of_layer(&m->parts.spread, bytes);
    struct expert_place *p = &m->places[layer];
    uint32_t first = m->n_files;
    int rc = check_stripe(m, &s, bytes, e);
    for (uint32_t i = 0; i < s.n_parts && rc == 0; i++)
        rc = add_layer_file(m, dirs[i], layer, e);
    if (rc < 0)
        return rc;
    p->n_parts = s.n_parts;
    p->n_runs = spread_n_pieces(&s, bytes);
    for (uint32_t i = 0; i < p->n_runs; i++) {
        struct spread_piece piece = spread_piece(&s, bytes, 0, i);
        p->runs[i] = (struct expert_run){first, 0, s.stripe, piece.bytes, piece.at};
    }
    m->expert_bytes += bytes * m->config.n_experts;
    return 0;
}

int expert_places_from_files(struct model_dir *m, const char *dir, const struct expert_formats *f,
                             struct moeflux_err *e)
{
    const struct spread *s = &m->parts.spread;
    char *dirs[SPREAD_MAX_PARTS] = {mem_text(dir, e)};
    int rc = dirs[0] ? expert_places_begin(m, e) : ERR_MEMORY;
    for (uint32_t i = 1; i < s->n_parts && rc == 0; i++) {
        rc = spread_check_part(&m->parts, i, e);
        if (rc == 0 && !(dirs[i] = file_join(m->parts.paths[i], "packed_experts", e)))
            rc = ERR_MEMORY;
    }
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++) {
        if (!config_has_experts(&m->config, i))
            continue;
        rc = expert_places_lay_out(m, i, &f[i], e);
        if (rc == 0)
            rc = add_layer(m, dirs, i, e);
    }
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        free(dirs[i]);
    return rc;
}

/* --- stacks --- */

struct stack_part {
    const char *name;
    uint64_t at;
    uint64_t shape[3];
    enum dtype dtype;
};

/* Describes the parts of a projection [rows][cols]: three, or two if its format has no biases. Returns how
 * many. */
static uint32_t describe_projection(uint32_t format, const char *const names[3], uint64_t n, uint64_t rows,
                                    uint64_t cols, const uint64_t at[3], struct stack_part *out)
{
    const struct format *f = format_of(format);
    enum dtype dtype = tensor_scale_dtype(f);
    out[0] = (struct stack_part){names[0], at[0], {n, rows, cols * f->bits / 32}, DTYPE_U32};
    out[1] = (struct stack_part){names[1], at[1], {n, rows, cols / f->group}, dtype};
    out[2] = (struct stack_part){names[2], at[2], {n, rows, cols / f->group}, dtype};
    return f->has_bias ? 3 : 2;
}

static uint32_t describe_parts(const struct model_dir *m, uint32_t layer,
                               struct stack_part parts[EXPERT_MAX_EXTENTS])
{
    static const char *const gate[] = {"gate_proj.weight", "gate_proj.scales", "gate_proj.biases"},
                             *const up[] = {"up_proj.weight", "up_proj.scales", "up_proj.biases"},
                             *const down[] = {"down_proj.weight", "down_proj.scales", "down_proj.biases"};
    const struct config *c = &m->config;
    const struct expert_layout *l = &m->experts[layer];
    uint64_t n = c->n_experts, h = c->hidden, in = c->moe_inner;
    const uint64_t gates[] = {l->gate_w, l->gate_s, l->gate_b}, ups[] = {l->up_w, l->up_s, l->up_b},
                   downs[] = {l->down_w, l->down_s, l->down_b};
    uint32_t n_parts = describe_projection(l->formats.gate, gate, n, in, h, gates, parts);
    n_parts += describe_projection(l->formats.up, up, n, in, h, ups, parts + n_parts);
    return n_parts + describe_projection(l->formats.down, down, n, h, in, downs, parts + n_parts);
}

static const struct tensor *find_stack(const struct model_dir *m, uint32_t layer, const char *part)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s", layer, part);
    return tensor_find(m->tensors, m->n_tensors, name);
}

static int check_part(const struct model_dir *m, uint32_t layer, const struct stack_part *p,
                      const struct tensor *t, struct moeflux_err *e)
{
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor model.layers.%u.mlp.switch_mlp.%s is missing", m->path,
                       layer, p->name);
    struct tensor wanted = {.n_dims = 3, .shape = {p->shape[0], p->shape[1], p->shape[2]}};
    char found[TENSOR_SHAPE_TEXT], expected[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    tensor_shape_text(&wanted, expected);
    bool same = t->n_dims == 3 && t->dtype == p->dtype;
    for (int i = 0; i < 3; i++)
        same = same && t->shape[i] == p->shape[i];
    if (same)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %s %s, expected %s %s", m->files[t->file].path, t->name,
                   tensor_dtype_name(t->dtype), found, tensor_dtype_name(p->dtype), expected);
}

static int find_format(const struct model_dir *m, uint32_t layer, const char *part, uint32_t *format,
                       struct moeflux_err *e)
{
    const struct tensor *t = find_stack(m, layer, part);
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor model.layers.%u.mlp.switch_mlp.%s is missing", m->path,
                       layer, part);
    if (t->format == FORMAT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: %s, expected quantised experts (U32)",
                       m->files[t->file].path, t->name, tensor_dtype_name(t->dtype));
    *format = t->format;
    return 0;
}

static int lay_out_stacks(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    struct expert_formats f = {0};
    int rc = find_format(m, layer, "gate_proj.weight", &f.gate, e);
    if (rc == 0)
        rc = find_format(m, layer, "up_proj.weight", &f.up, e);
    if (rc == 0)
        rc = find_format(m, layer, "down_proj.weight", &f.down, e);
    return rc < 0 ? rc : expert_places_lay_out(m, layer, &f, e);
}

static int place_layer(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    struct stack_part parts[EXPERT_MAX_EXTENTS];
    struct expert_place *place = &m->places[layer];
    uint32_t n = describe_parts(m, layer, parts);
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor *t = find_stack(m, layer, parts[i].name);
        int rc = check_part(m, layer, &parts[i], t, e);
        if (rc < 0)
            return rc;
        uint64_t bytes = t->bytes / m->config.n_experts;
        place->runs[i] = (struct expert_run){t->file, t->off, bytes, bytes, parts[i].at};
        m->expert_bytes += t->bytes;
    }
    place->n_runs = n;
    place->n_parts = 1;
    return 0;
}

int expert_places_from_stacks(struct model_dir *m, struct moeflux_err *e)
{
    int rc = expert_places_begin(m, e);
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++) {
        if (!config_has_experts(&m->config, i))
            continue;
        rc = lay_out_stacks(m, i, e);
        if (rc == 0)
            rc = place_layer(m, i, e);
    }
    return rc;
}
