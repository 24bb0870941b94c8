#include "model/expert_places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/expert_tensors.h"
#include "model/model_file.h"
#include "model/tensor.h"

/* Appends weights, scales and biases of a projection of n weights. */
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

static int new_places(struct model_dir *m, struct moeflux_err *e)
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
                   "%s: layer %u: the experts' gate_proj is %s and up_proj %s, expected equal formats",
                   m->path, layer, format_of(f->gate)->name, format_of(f->up)->name);
}

static int lay_out(struct model_dir *m, uint32_t layer, const struct expert_formats *f, struct moeflux_err *e)
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
    int rc = dirs[0] ? new_places(m, e) : ERR_MEMORY;
    for (uint32_t i = 1; i < s->n_parts && rc == 0; i++) {
        rc = spread_check_part(&m->parts, i, e);
        if (rc == 0 && !(dirs[i] = file_join(m->parts.paths[i], "packed_experts", e)))
            rc = ERR_MEMORY;
    }
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++) {
        if (!config_has_experts(&m->config, i))
            continue;
        rc = lay_out(m, i, &f[i], e);
        if (rc == 0)
            rc = add_layer(m, dirs, i, e);
    }
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        free(dirs[i]);
    return rc;
}

/* --- tensors --- */

/* The parts of one projection in a checkpoint: codes or numbers, scales, biases. */
enum { N_PARTS = 3 };

struct projection {
    enum expert_proj proj;
    uint32_t format;
    uint64_t at[N_PARTS]; /* places of the parts in a slot */
};

static uint32_t format_of_tensor(const struct tensor *t)
{
    switch (t->dtype) {
    case DTYPE_BF16:
        return FORMAT_BF16;
    case DTYPE_F16:
        return FORMAT_F16;
    case DTYPE_F32:
        return FORMAT_F32;
    default:
        return t->format;
    }
}

static const char *file_of(const struct model_dir *m, const struct tensor *t)
{
    return m->files[t->file].path;
}

/* Finds an expert's part of a projection, with the tensor that its codes are in. */
static int find_part(const struct model_dir *m, uint32_t layer, uint32_t expert, const struct projection *p,
                     uint32_t part, struct expert_tensor *out, struct moeflux_err *e)
{
    static const char *const tails[N_PARTS] = {NULL, "scales", "biases"};
    int rc = expert_tensors_find(m, layer, expert, p->proj, out, e);
    if (rc < 0)
        return rc;
    const struct tensor *t = out->t;
    if (expert_tensors_by_columns(m, t))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: tensor %s: transposed experts do not run as they lie; run `moeflux convert` first",
            file_of(m, t), t->name);
    if (format_of_tensor(t) != p->format)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: %s, expected %s as in the layer's other experts",
                       file_of(m, t), t->name, tensor_dtype_name(t->dtype), format_of(p->format)->name);
    if (tails[part])
        out->t = expert_tensors_part(m, t, tails[part]); /* was checked with the codes */
    if (out->t->pieces.n_runs == 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: interleaved rows do not run as they lie",
                   file_of(m, t), t->name);
}

/* Returns where the part begins in its file. */
static struct expert_spot spot_of(const struct expert_tensor *x)
{
    return (struct expert_spot){x->t->file, x->t->off + x->at * (x->t->bytes / x->of)};
}

/* Appends the run of a part. Experts of a stack have a stride, others a spot each. */
static int add_run(struct model_dir *m, uint32_t layer, const struct projection *p, uint32_t part,
                   struct moeflux_err *e)
{
    struct expert_place *place = &m->places[layer];
    struct expert_tensor x;
    uint64_t n = m->config.n_experts;
    int rc = find_part(m, layer, 0, p, part, &x, e);
    if (rc < 0)
        return rc;
    struct expert_spot first = spot_of(&x), *spots = NULL;
    uint64_t bytes = x.t->bytes / x.of;
    if (x.of == 1) {
        spots = place->spots[place->n_runs] = mem_new(n, sizeof *spots, e);
        rc = spots ? 0 : ERR_MEMORY;
    }
    for (uint32_t i = 0; spots && i < n && rc == 0; i++) {
        rc = find_part(m, layer, i, p, part, &x, e);
        if (rc == 0)
            spots[i] = spot_of(&x);
    }
    place->runs[place->n_runs++] =
        (struct expert_run){first.file, first.off, spots ? 0 : x.of / n * bytes, bytes, p->at[part]};
    m->expert_bytes += n * bytes;
    return rc;
}

static int place_projection_of(struct model_dir *m, uint32_t layer, const struct projection *p,
                               struct moeflux_err *e)
{
    const struct format *f = format_of(p->format);
    uint32_t n_parts = f->group == 1 ? 1 : 2u + f->has_bias;
    int rc = 0;
    for (uint32_t i = 0; i < n_parts && rc == 0; i++)
        rc = add_run(m, layer, p, i, e);
    return rc;
}

static int find_formats(const struct model_dir *m, uint32_t layer, uint32_t formats[EXPERT_PROJS],
                        struct moeflux_err *e)
{
    int rc = 0;
    for (enum expert_proj proj = EXPERT_GATE; proj < EXPERT_PROJS && rc == 0; proj++) {
        struct expert_tensor x;
        rc = expert_tensors_find(m, layer, 0, proj, &x, e);
        if (rc < 0)
            return rc;
        formats[proj] = format_of_tensor(x.t);
        if (formats[proj] == FORMAT_NONE)
            rc = err_set(e, ERR_UNSUPPORTED,
                         "%s: tensor %s: %s experts do not run as they lie; run `moeflux "
                         "convert` first",
                         file_of(m, x.t), x.t->name, tensor_dtype_name(x.t->dtype));
    }
    return rc;
}

static int place_layer(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    uint32_t f[EXPERT_PROJS] = {0};
    int rc = find_formats(m, layer, f, e);
    if (rc == 0)
        rc = lay_out(m, layer, &(struct expert_formats){f[EXPERT_GATE], f[EXPERT_UP], f[EXPERT_DOWN]}, e);
    if (rc < 0)
        return rc;
    const struct expert_layout *l = &m->experts[layer];
    const struct projection all[] = {{EXPERT_GATE, f[EXPERT_GATE], {l->gate_w, l->gate_s, l->gate_b}},
                                     {EXPERT_UP, f[EXPERT_UP], {l->up_w, l->up_s, l->up_b}},
                                     {EXPERT_DOWN, f[EXPERT_DOWN], {l->down_w, l->down_s, l->down_b}}};
    m->places[layer].n_parts = 1;
    for (int i = 0; i < EXPERT_PROJS && rc == 0; i++)
        rc = place_projection_of(m, layer, &all[i], e);
    return rc;
}

int expert_places_from_tensors(struct model_dir *m, struct moeflux_err *e)
{
    int rc = new_places(m, e);
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++)
        if (config_has_experts(&m->config, i))
            rc = place_layer(m, i, e);
    return rc;
}

void expert_places_free(struct expert_place *places, uint32_t n_layers)
{
    for (uint32_t i = 0; places && i < n_layers; i++)
        for (uint32_t k = 0; k < EXPERT_MAX_EXTENTS; k++)
            free(places[i].spots[k]);
    free(places);
}
