#include "model/expert_places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/open_file.h"
#include "model/expert_tensors.h"
#include "model/extent_rule.h"
#include "model/fp8.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/nvfp4.h"
#include "model/tensor.h"

/* Kernels read blocks by words of up to 16 bytes. */
enum { BLOCKS_ALIGN = 16 };

/* How projections follow each other in a slot: each at a multiple of `align` and `lead` bytes. align 0:
 * blocks at BLOCKS_ALIGN, others without a gap. */
struct gaps {
    uint32_t align, lead;
};

/* Appends weights, scales and biases of a projection of n weights. */
static void place_projection(uint32_t format, uint64_t n, const struct gaps *g, uint64_t *w, uint64_t *s,
                             uint64_t *b, uint64_t *end)
{
    const struct format *f = format_of(format);
    uint64_t align = g->align ? g->align : f->scheme == SCHEME_BLOCK ? BLOCKS_ALIGN : 1;
    *w = size_round_up(*end, align) + g->lead;
    *s = *w + format_code_bytes(f, n);
    *b = *s + format_scale_bytes(f, n);
    *end = *b + format_bias_bytes(f, n);
}

static struct expert_layout layout_of(const struct config *c, const struct expert_formats *f, struct gaps g)
{
    uint64_t n = (uint64_t)c->moe_inner * config_expert_hidden(c);
    struct expert_layout l = {.formats = *f, .owns_blocks = g.align > 0};
    place_projection(f->gate, n, &g, &l.gate_w, &l.gate_s, &l.gate_b, &l.bytes);
    if (c->gateless) /* up is read as the gate, too */
        l.bytes = 0;
    place_projection(f->up, n, &g, &l.up_w, &l.up_s, &l.up_b, &l.bytes);
    place_projection(f->down, n, &g, &l.down_w, &l.down_s, &l.down_b, &l.bytes);
    return l;
}

struct expert_layout expert_places_layout(const struct config *c, const struct expert_formats *f)
{
    return layout_of(c, f, (struct gaps){0});
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
    const struct config *c = &m->config;
    const uint32_t formats[] = {f->gate, f->up, f->down}, hidden = config_expert_hidden(c),
                   cols[] = {hidden, hidden, c->moe_inner};
    for (int i = 0; i < EXPERT_PROJS; i++)
        if (!format_takes_cols(format_of(formats[i]), cols[i]))
            return err_set(
                e, ERR_UNSUPPORTED,
                "%s: layer %u: the experts' %s has rows of %u columns, which are not whole groups of %s",
                m->path, layer, expert_tensors_proj((enum expert_proj)i), cols[i],
                format_of(formats[i])->name);
    return 0;
}

int expert_places_lay_out(struct model_dir *m, uint32_t layer, const struct expert_formats *f,
                          struct moeflux_err *e)
{
    int rc = check_formats(m, layer, f, e);
    if (rc < 0)
        return rc;
    bool owns = m->may_own_blocks && !format_of(f->gate)->scale_bytes && !format_of(f->up)->scale_bytes &&
                !format_of(f->down)->scale_bytes;
    struct gaps g = {owns ? EXPERT_BLOCK : 0, owns ? m->expert_lead : 0};
    m->experts[layer] = layout_of(&m->config, f, g);
    m->max_expert_bytes = size_max(m->max_expert_bytes, m->experts[layer].bytes);
    return 0;
}

/* --- layer files --- */

static int check_length(const struct model_dir *m, uint32_t layer, const struct open_file *f,
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
    uint64_t n = (uint64_t)m->config.moe_inner * config_expert_hidden(&m->config);
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
    int rc = path ? open_file_add(&m->files, &m->n_files, path, e) : ERR_MEMORY;
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

/* --- tensors --- */

/* The parts of one projection in a checkpoint: codes or numbers, scales, biases. */
enum { N_PARTS = 3 };

struct projection {
    enum expert_proj proj;
    uint32_t format;
    uint64_t at[N_PARTS]; /* places of the parts in a slot */
    struct expert_place *place;
};

static bool is_fp8(uint32_t format)
{
    return format == FORMAT_FP8 || format == FORMAT_FP8_32;
}

/* Returns FORMAT_NONE if no format has the bytes. */
static uint32_t format_of_tensor(const struct model_dir *m, const struct tensor *t)
{
    if (t->dtype != DTYPE_F8_E4M3)
        return tensor_format(t);
    uint32_t format = fp8_format(&m->fp8, (uint32_t)tensor_cols(t));
    return is_fp8(format) ? format : FORMAT_NONE;
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
    if (format_of_tensor(m, t) != p->format)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: %s, expected %s as in the layer's other experts",
                       file_of(m, t), tensor_label(t), tensor_dtype_name(t->dtype),
                       format_of(p->format)->name);
    if (t->dtype == DTYPE_F8_E4M3)
        return part ? fp8_scales(m, t, &out->t, e) : 0;
    if (tails[part])
        out->t = expert_tensors_part(m, t, tails[part]); /* was checked with the codes */
    return 0;
}

/* Returns the bytes of an expert's part in its file. NVFP4 blocks come with their scales. */
static uint64_t bytes_in_file(const struct expert_tensor *x)
{
    uint64_t bytes = x->t->bytes / x->of;
    return x->t->of_blocks == TENSOR_BLOCK_CODES ? bytes / NVFP4_BLOCK_CODES * NVFP4_BLOCK_BYTES : bytes;
}

/* Returns where the part begins in its file. */
static struct expert_spot spot_of(const struct expert_tensor *x)
{
    return (struct expert_spot){x->t->file, x->t->off + x->at * bytes_in_file(x), {0}};
}

/* Reads the factors of a stack's experts. */
static int read_factors(const struct model_dir *m, const struct tensor *t, struct expert_spot *spots,
                        struct moeflux_err *e)
{
    uint32_t n = m->config.n_experts;
    float *values = mem_new(n, sizeof *values, e);
    int rc = values ? model_dir_read(m, t, 0, n * sizeof *values, values, e) : ERR_MEMORY;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        spots[i].factor = (struct tensor_factor){true, values[i]};
        rc = nvfp4_check_factor(t, values[i], file_of(m, t), e);
    }
    free(values);
    return rc;
}

/* Finds the factors of the experts' matrices. */
static int find_factors(const struct model_dir *m, uint32_t layer, const struct projection *p,
                        struct expert_spot *spots, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->config.n_experts && rc == 0; i++) {
        struct expert_tensor x;
        rc = expert_tensors_find(m, layer, i, p->proj, &x, e);
        if (rc < 0)
            return rc;
        const struct tensor *t = expert_tensors_part(m, x.t, "global_scale"); /* was checked with the codes */
        if (x.of > 1)
            return read_factors(m, t, spots, e);
        spots[i].factor = t->factor;
    }
    return rc;
}

/* Returns whether the experts' scales are those of packed.h, whose biases follow from them. */
static bool is_centred(const struct model_dir *m, const struct tensor *scales)
{
    const struct tensor *b = model_dir_find_like(m, scales->name, strlen("scales"), "biases");
    return b && b->file == scales->file && b->off == scales->off;
}

/* Sets the rule of a part, whose tensor is `t`, if its bytes do not lie in a slot as in the file. */
static void set_rule(struct model_dir *m, const struct expert_layout *l, const struct projection *p,
                     uint32_t part, const struct tensor *t, struct extent_rule *out)
{
    const uint64_t ups[N_PARTS] = {l->up_w, l->up_s, l->up_b};
    uint32_t hidden = config_expert_hidden(&m->config), inner = m->config.moe_inner,
             rows = p->proj == EXPERT_DOWN ? hidden : inner, cols = p->proj == EXPERT_DOWN ? inner : hidden;
    uint64_t bytes = t->bytes / m->config.n_experts;
    if (t->of_blocks)
        *out = (struct extent_rule){.change = EXTENT_NVFP4,
                                    .at = p->at[0],
                                    .end = p->at[2] + FORMAT_FACTOR_BYTES,
                                    .second_at = p->at[2],
                                    .scales_at = p->at[1]};
    else if (t->pieces.n_runs)
        *out = (struct extent_rule){.change = EXTENT_ROWS,
                                    .at = p->at[part],
                                    .end = ups[part] + bytes,
                                    .second_at = ups[part],
                                    .row_bytes = t->pieces.runs[0].bytes,
                                    .scale = part ? format_of(p->format)->scale : SCALE_NONE};
    else if (part == 1 && is_fp8(p->format)) {
        const struct fp8_blocks of = fp8_blocks_of(m, rows, cols, t);
        *out = extent_rule_blocks(&of, t, rows, cols, format_of(p->format)->group, p->at[part]);
    } else if (part == 1 && format_of(p->format)->has_factor)
        *out = (struct extent_rule){.change = EXTENT_FACTOR,
                                    .at = p->at[1],
                                    .end = p->at[2] + FORMAT_FACTOR_BYTES,
                                    .second_at = p->at[2]};
    else if (part == 1 && is_centred(m, t))
        *out = (struct extent_rule){.change = EXTENT_CENTRED,
                                    .at = p->at[1],
                                    .end = p->at[2] +
                                           format_scale_bytes(format_of(p->format), (uint64_t)rows * cols),
                                    .second_at = p->at[2]};
    m->has_rules |= out->change != EXTENT_SAME;
}

/* Returns whether the run of another part fills this one too: interleaved up rows come with gate's, the
 * biases of packed.h with their scales, the scales of NVFP4 blocks with their codes. */
static bool comes_along(const struct projection *p, uint32_t part, const struct tensor *t)
{
    const struct expert_place *place = p->place;
    bool is_up = p->proj == EXPERT_UP && t->pieces.n_runs;
    return is_up || t->of_blocks == TENSOR_BLOCK_SCALES ||
           (part == 2 && place->rules[place->n_runs - 1].change == EXTENT_CENTRED);
}

/* Checks that a part is stored as the first expert's, whose length and rule are used for all. */
static int check_like(const struct model_dir *m, const struct tensor *t, const struct tensor *first,
                      struct moeflux_err *e)
{
    char found[TENSOR_SHAPE_TEXT], expected[TENSOR_SHAPE_TEXT];
    if (t->dtype != first->dtype)
        return tensor_fail_dtype(t, tensor_dtype_name(first->dtype), file_of(m, t), e);
    tensor_shape_text(t, found);
    tensor_shape_text(first, expected);
    return strcmp(found, expected) == 0
               ? 0
               : err_set(e, ERR_UNSUPPORTED,
                         "%s: tensor %s: shape %s, expected %s as in the layer's other experts",
                         file_of(m, t), tensor_label(t), found, expected);
}

/* Finds the spot of each expert's part. first: the first expert's tensor. */
static int find_spots(struct model_dir *m, uint32_t layer, const struct projection *p, uint32_t part,
                      const struct tensor *first, struct expert_spot **out, struct moeflux_err *e)
{
    uint32_t n = m->config.n_experts;
    struct expert_spot *spots = *out = mem_new(n, sizeof *spots, e);
    int rc = spots ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        struct expert_tensor x;
        rc = find_part(m, layer, i, p, part, &x, e);
        if (rc == 0)
            rc = check_like(m, x.t, first, e);
        if (rc == 0)
            spots[i] = spot_of(&x);
    }
    return rc < 0 || !format_of(p->format)->has_factor ? rc : find_factors(m, layer, p, spots, e);
}

/* Appends the run of a part. Experts of a stack have a stride, others a spot each. */
static int add_run(struct model_dir *m, uint32_t layer, const struct projection *p, uint32_t part,
                   struct moeflux_err *e)
{
    struct expert_place *place = p->place;
    struct expert_tensor x;
    int rc = find_part(m, layer, 0, p, part, &x, e);
    if (rc < 0 || comes_along(p, part, x.t))
        return rc;
    struct expert_spot first = spot_of(&x);
    uint64_t n = m->config.n_experts, bytes = bytes_in_file(&x) * (x.t->pieces.n_runs ? 2 : 1);
    set_rule(m, &m->experts[layer], p, part, x.t, &place->rules[place->n_runs]);
    place->runs[place->n_runs] =
        (struct expert_run){first.file, first.off, x.of > 1 ? x.of / n * bytes : 0, bytes, p->at[part]};
    m->expert_bytes += n * bytes;
    if (x.of == 1 || x.t->of_blocks)
        rc = find_spots(m, layer, p, part, x.t, &place->spots[place->n_runs], e);
    place->n_runs++;
    return rc;
}

static int place_projection_of(struct model_dir *m, uint32_t layer, const struct projection *p,
                               struct moeflux_err *e)
{
    const struct format *f = format_of(p->format);
    uint32_t n_parts = f->scale_bytes ? 2u + f->has_bias : 1;
    int rc = 0;
    for (uint32_t i = 0; i < n_parts && rc == 0; i++)
        rc = add_run(m, layer, p, i, e);
    return rc;
}

static int fail_format(const struct model_dir *m, const struct tensor *t, struct moeflux_err *e)
{
    char blocks[64] = "";
    if (t->dtype == DTYPE_F8_E4M3)
        snprintf(blocks, sizeof blocks, " of %" PRIu64 " columns in blocks of %u", tensor_cols(t),
                 m->fp8.cols);
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: tensor %s: %s experts%s do not run as they lie; run `moeflux convert` first",
                   file_of(m, t), tensor_label(t), tensor_dtype_name(t->dtype), blocks);
}

static int find_formats(const struct model_dir *m, uint32_t layer, uint32_t formats[EXPERT_PROJS],
                        struct moeflux_err *e)
{
    int rc = 0;
    for (enum expert_proj proj = expert_tensors_first(&m->config); proj < EXPERT_PROJS && rc == 0; proj++) {
        struct expert_tensor x;
        rc = expert_tensors_find(m, layer, 0, proj, &x, e);
        if (rc < 0)
            return rc;
        formats[proj] = format_of_tensor(m, x.t);
        if (formats[proj] == FORMAT_NONE)
            rc = fail_format(m, x.t, e);
    }
    if (m->config.gateless)
        formats[EXPERT_GATE] = formats[EXPERT_UP];
    return rc;
}

static int place_layer(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    uint32_t f[EXPERT_PROJS] = {0};
    int rc = find_formats(m, layer, f, e);
    if (rc == 0)
        rc = expert_places_lay_out(m, layer,
                                   &(struct expert_formats){f[EXPERT_GATE], f[EXPERT_UP], f[EXPERT_DOWN]}, e);
    if (rc < 0)
        return rc;
    const struct expert_layout *l = &m->experts[layer];
    struct expert_place *at = &m->places[layer];
    const struct projection all[] = {{EXPERT_GATE, f[EXPERT_GATE], {l->gate_w, l->gate_s, l->gate_b}, at},
                                     {EXPERT_UP, f[EXPERT_UP], {l->up_w, l->up_s, l->up_b}, at},
                                     {EXPERT_DOWN, f[EXPERT_DOWN], {l->down_w, l->down_s, l->down_b}, at}};
    at->n_parts = 1;
    for (int i = expert_tensors_first(&m->config); i < EXPERT_PROJS && rc == 0; i++)
        rc = place_projection_of(m, layer, &all[i], e);
    return rc;
}

/* Sets where the runs of a layer, and of all others, begin in blocks of a slot, if it is of a GGUF file. */
static int find_lead(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    struct expert_tensor x;
    if (!m->is_gguf)
        return 0;
    int rc = expert_tensors_find(m, layer, 0, expert_tensors_first(&m->config), &x, e);
    if (rc < 0)
        return rc;
    uint64_t lead = spot_of(&x).off % EXPERT_BLOCK;
    m->may_own_blocks = lead % BLOCKS_ALIGN == 0;
    m->expert_lead = (uint32_t)lead;
    return 0;
}

int expert_places_from_tensors(struct model_dir *m, struct moeflux_err *e)
{
    int rc = expert_places_begin(m, e);
    uint32_t first = 0;
    while (first < m->config.n_layers && !config_has_experts(&m->config, first))
        first++;
    if (rc == 0 && first < m->config.n_layers)
        rc = find_lead(m, first, e);
    for (uint32_t i = first; i < m->config.n_layers && rc == 0; i++)
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
