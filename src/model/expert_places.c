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

/* Appends a projection of n weights. */
static void place_projection(uint32_t format, uint64_t n, uint64_t *w, uint64_t *s, uint64_t *b,
                             uint64_t *end)
{
    const struct format *f = format_of(format);
    *w = *end;
    *s = *w + format_code_bytes(f, n);
    *b = *s + format_scale_bytes(f, n);
    *end += format_all_bytes(f, n);
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

static int new_places(struct model_dir *m, const struct expert_formats *f, struct moeflux_err *e)
{
    m->expert = expert_places_layout(&m->config, f);
    m->places = mem_new(m->config.n_layers, sizeof *m->places, e);
    return m->places ? 0 : ERR_MEMORY;
}

/* --- layer files --- */

static int check_length(const struct model_dir *m, const struct model_file *f, struct moeflux_err *e)
{
    const struct spread *s = &m->parts.spread;
    uint64_t each = s->n_parts > 1 ? s->stripe : m->expert.bytes;
    uint64_t expected = each * m->config.n_experts;
    if (f->bytes == expected)
        return 0;
    if (s->n_parts > 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %" PRIu64 " bytes, expected %" PRIu64 " (pieces of %u experts, %" PRIu64
                       " bytes each)",
                       f->path, f->bytes, expected, m->config.n_experts, each);
    /* The 2-bit experts of other engines have the same file names. */
    struct format two_bits = *format_of(m->expert.formats.up);
    two_bits.bits = 2;
    uint64_t n = (uint64_t)m->config.moe_inner * m->config.hidden;
    if (f->bytes == 3 * format_all_bytes(&two_bits, n) * m->config.n_experts)
        return err_set(e, ERR_UNSUPPORTED, "%s: the experts have 2 bits, expected %u", f->path,
                       format_of(m->expert.formats.up)->bits);
    return err_set(e, ERR_FORMAT,
                   "%s: %" PRIu64 " bytes, expected %" PRIu64 " (%u experts of %" PRIu64 " bytes)", f->path,
                   f->bytes, expected, m->config.n_experts, m->expert.bytes);
}

static int add_layer_file(struct model_dir *m, const char *dir, uint32_t layer, struct moeflux_err *e)
{
    char name[32];
    snprintf(name, sizeof name, "layer_%02u.bin", layer);
    char *path = file_join(dir, name, e);
    int rc = path ? model_file_add(&m->files, &m->n_files, path, e) : ERR_MEMORY;
    free(path);
    return rc < 0 ? rc : check_length(m, &m->files[m->n_files - 1], e);
}

/* The layer's files lie one after the other in m->files, in the order of the parts. */
static int add_layer(struct model_dir *m, char *const dirs[], uint32_t layer, struct moeflux_err *e)
{
    const struct spread *s = &m->parts.spread;
    struct expert_place *p = &m->places[layer];
    uint32_t first = m->n_files;
    int rc = 0;
    for (uint32_t i = 0; i < s->n_parts && rc == 0; i++)
        rc = add_layer_file(m, dirs[i], layer, e);
    p->n_parts = s->n_parts;
    p->n_runs = spread_n_pieces(s, m->expert.bytes);
    for (uint32_t i = 0; i < p->n_runs; i++) {
        struct spread_piece piece = spread_piece(s, m->expert.bytes, 0, i);
        p->runs[i] = (struct expert_run){first, 0, s->stripe, piece.bytes, piece.at};
    }
    m->expert_bytes += m->expert.bytes * m->config.n_experts;
    return rc;
}

static int check_stripe(const struct model_dir *m, struct moeflux_err *e)
{
    const struct spread *s = &m->parts.spread;
    if (spread_n_pieces(s, m->expert.bytes) <= s->n_parts)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: stripe is %" PRIu64 ", too little for experts of %" PRIu64 " bytes in %u parts",
                   m->parts.file, s->stripe, m->expert.bytes, s->n_parts);
}

int expert_places_from_files(struct model_dir *m, const char *dir, const struct expert_formats *f,
                             struct moeflux_err *e)
{
    struct spread *s = &m->parts.spread;
    char *dirs[SPREAD_MAX_PARTS] = {mem_text(dir, e)};
    int rc = dirs[0] ? new_places(m, f, e) : ERR_MEMORY;
    if (rc == 0 && s->n_parts == 1)
        *s = spread_of(m->expert.bytes, 1);
    if (rc == 0)
        rc = check_stripe(m, e);
    for (uint32_t i = 1; i < s->n_parts && rc == 0; i++) {
        rc = spread_check_part(&m->parts, i, e);
        if (rc == 0 && !(dirs[i] = file_join(m->parts.paths[i], "packed_experts", e)))
            rc = ERR_MEMORY;
    }
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++)
        if (config_has_experts(&m->config, i))
            rc = add_layer(m, dirs, i, e);
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

static void describe_parts(const struct model_dir *m, struct stack_part parts[EXPERT_MAX_EXTENTS])
{
    const struct config *c = &m->config;
    const struct expert_layout *l = &m->expert;
    uint64_t n = c->n_experts, h = c->hidden, in = c->moe_inner;
    const struct format *gate = format_of(l->formats.gate), *up = format_of(l->formats.up),
                        *down = format_of(l->formats.down);
    const struct stack_part all[EXPERT_MAX_EXTENTS] = {
        {"gate_proj.weight", l->gate_w, {n, in, h * gate->bits / 32}, DTYPE_U32},
        {"gate_proj.scales", l->gate_s, {n, in, h / gate->group}, DTYPE_BF16},
        {"gate_proj.biases", l->gate_b, {n, in, h / gate->group}, DTYPE_BF16},
        {"up_proj.weight", l->up_w, {n, in, h * up->bits / 32}, DTYPE_U32},
        {"up_proj.scales", l->up_s, {n, in, h / up->group}, DTYPE_BF16},
        {"up_proj.biases", l->up_b, {n, in, h / up->group}, DTYPE_BF16},
        {"down_proj.weight", l->down_w, {n, h, in * down->bits / 32}, DTYPE_U32},
        {"down_proj.scales", l->down_s, {n, h, in / down->group}, DTYPE_BF16},
        {"down_proj.biases", l->down_b, {n, h, in / down->group}, DTYPE_BF16},
    };
    for (int i = 0; i < EXPERT_MAX_EXTENTS; i++)
        parts[i] = all[i];
}

static const struct tensor *find_stack(const struct model_dir *m, uint32_t layer, const char *part)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s", layer, part);
    return model_dir_find(m, name);
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

static int place_layer(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    struct stack_part parts[EXPERT_MAX_EXTENTS];
    describe_parts(m, parts);
    struct expert_place *place = &m->places[layer];
    for (int i = 0; i < EXPERT_MAX_EXTENTS; i++) {
        const struct tensor *t = find_stack(m, layer, parts[i].name);
        int rc = check_part(m, layer, &parts[i], t, e);
        if (rc < 0)
            return rc;
        uint64_t bytes = t->bytes / m->config.n_experts;
        place->runs[i] = (struct expert_run){t->file, t->off, bytes, bytes, parts[i].at};
        m->expert_bytes += t->bytes;
    }
    place->n_runs = EXPERT_MAX_EXTENTS;
    place->n_parts = 1;
    return 0;
}

static int find_format(const struct model_dir *m, uint32_t layer, const char *part, uint32_t *format,
                       struct moeflux_err *e)
{
    const struct tensor *t = find_stack(m, layer, part);
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor model.layers.%u.mlp.switch_mlp.%s is missing", m->path,
                       layer, part);
    return tensor_affine_format(t, m->files[t->file].path, format, e);
}

/* As the first layer with experts has them. */
static int find_formats(const struct model_dir *m, struct expert_formats *f, struct moeflux_err *e)
{
    uint32_t first = 0;
    while (!config_has_experts(&m->config, first))
        first++;
    int rc = find_format(m, first, "gate_proj.weight", &f->gate, e);
    if (rc == 0)
        rc = find_format(m, first, "up_proj.weight", &f->up, e);
    if (rc == 0)
        rc = find_format(m, first, "down_proj.weight", &f->down, e);
    if (rc == 0 && f->gate != f->up)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: layer %u: the experts' gate_proj has %u bits and up_proj %u, expected equal formats",
            m->path, first, format_of(f->gate)->bits, format_of(f->up)->bits);
    return rc;
}

int expert_places_from_stacks(struct model_dir *m, struct moeflux_err *e)
{
    struct expert_formats f = {0};
    int rc = find_formats(m, &f, e);
    if (rc == 0)
        rc = new_places(m, &f, e);
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++)
        if (config_has_experts(&m->config, i))
            rc = place_layer(m, i, e);
    return rc;
}
