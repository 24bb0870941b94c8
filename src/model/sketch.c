#include "model/sketch.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/open_file.h"
#include "base/str.h"
#include "model/config_read.h"
#include "model/expert_places.h"
#include "model/family.h"
#include "model/fp8.h"
#include "model/quant_config.h"
#include "model/schema.h"
#include "model/table.h"
#include "model/tensor.h"

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)
#define PIECE_BYTES      ((uint64_t)4 << 20)

enum { NAME = 128 };

struct sketching {
    struct model_dir *m;
    const char *path;
    struct quant_config quant;
    bool has_fp4_experts; /* 4-bit floats next to 8-bit ones: DeepSeek-V4's */
    struct tensor_list tensors;
};

/* --- formats --- */

static uint32_t format_of_entry(const struct quant_entry *q)
{
    uint32_t format = quant_config_mode_format(q->mode);
    return format == FORMAT_NONE ? format_find_affine(q->bits, q->group, SCALE_BF16) : format;
}

/* Gives the name in the family's files: that of the fused matrix which contains it, with the family's renamed
 * part. The dot appended to `base` matches parts at the end, such as ".mlp.gate.". The first match counts:
 * MLX's files keep gate_proj, up_proj and down_proj where others have w1, w3 and w2. */
static void spell(const struct family *f, const char *base, char name[NAME])
{
    char whole[NAME];
    snprintf(whole, sizeof whole, "%s.", base);
    for (const struct fused_matrix *x = f->fused; x && x->name; x++)
        for (int i = 0; i < FUSED_MAX_PARTS; i++)
            if (x->parts[i].name && x->parts[i].name[0] && str_ends_with(base, x->parts[i].name))
                snprintf(whole, sizeof whole, "%.*s%s.", (int)(strlen(base) - strlen(x->parts[i].name)), base,
                         x->name);
    snprintf(name, NAME, "%s", whole);
    const char *at = NULL;
    for (const char *const(*r)[2] = f->renamed; r && (*r)[0] && !at; r++) {
        at = strstr(whole, (*r)[1]);
        if (at)
            snprintf(name, NAME, "%.*s%s%s", (int)(at - whole), whole, (*r)[0], at + strlen((*r)[1]));
    }
    name[strlen(name) - 1] = '\0';
}

/* Looks up `base` in the quantization table, which has MLX's names: those of a part of a larger model, or of
 * the model alone, which may be called backbone. */
static int look_up(const struct sketching *s, const char *base, struct quant_entry *out,
                   struct moeflux_err *e)
{
    char name[NAME], with_prefix[2 * NAME];
    spell(s->m->config.family, base, name);
    snprintf(with_prefix, sizeof with_prefix, "language_model.%s", name);
    int said = quant_config_matrix(&s->quant, with_prefix, out, e);
    if (said == QUANT_SAID_NOTHING)
        said = quant_config_matrix(&s->quant, name, out, e);
    if (said != QUANT_SAID_NOTHING || strncmp(name, "model.", strlen("model.")) != 0)
        return said;
    snprintf(with_prefix, sizeof with_prefix, "backbone.%s", name + strlen("model."));
    return quant_config_matrix(&s->quant, with_prefix, out, e);
}

/* Looks up `base` in the groups of a published block. Kernels take rows of whole PRODUCT_COLS. */
static uint32_t look_up_group(const struct sketching *s, const char *base, uint32_t cols)
{
    static const char EXPERTS[] = ".mlp.switch_mlp.";
    char name[NAME], own[2 * NAME];
    const char *at = strstr(base, EXPERTS);
    bool stays = str_ends_with(base, "embed_tokens") || cols % PRODUCT_COLS != 0;
    if (at)
        snprintf(own, sizeof own, "%.*s.mlp.experts.0.%.32s", (int)size_min((size_t)(at - base), NAME), base,
                 at + strlen(EXPERTS));
    else
        snprintf(own, sizeof own, "%s", base);
    spell(s->m->config.family, own, name);
    uint32_t format = quant_groups_format(&s->quant.groups, name);
    if (format == FORMAT_NONE || stays)
        return format == FORMAT_NONE ? format : FORMAT_BF16;
    return format == FORMAT_FP8 ? fp8_format(&s->m->fp8, cols) : format;
}

/* Chooses the FORMAT_* of a matrix; FORMAT_BF16: not quantised. */
static int choose(const struct sketching *s, const char *base, uint32_t cols, uint32_t *format,
                  struct moeflux_err *e)
{
    const struct family *f = s->m->config.family;
    struct quant_entry entry = {QUANT_AFFINE, 4, QUANT_DEFAULT_GROUP};
    bool gate = family_is_gate(f, base, s->m->config.streams.rank);
    int said = s->quant.block ? look_up(s, base, &entry, e) : QUANT_SAID_NOTHING;
    uint32_t group;
    if (said < 0)
        return said;
    if (!s->quant.block && gate)
        entry.bits = f->gate_bits;
    *format = said == QUANT_SAID_PLAIN ? FORMAT_BF16 : format_of_entry(&entry);
    if ((group = look_up_group(s, base, cols)) != FORMAT_NONE) {
        *format = gate ? FORMAT_BF16 : group;
        return 0;
    }
    if (s->quant.expert_format != FORMAT_NONE) {
        *format = strstr(base, ".switch_mlp.") ? s->quant.expert_format : FORMAT_BF16;
        return 0;
    }
    if (s->has_fp4_experts && strstr(base, ".switch_mlp.")) { /* convert keeps them */
        *format = FORMAT_MXFP4;
        return 0;
    }
    /* MLX does not quantise what it cannot or must not. */
    if (said == QUANT_SAID_NOTHING &&
        ((gate && !f->gate_bits) || !format_takes_cols(format_of(*format), cols)))
        *format = FORMAT_BF16;
    return 0;
}

/* --- tensors --- */

static int add_tensor(struct sketching *s, const char *base, const char *tail, const struct tensor *like,
                      struct moeflux_err *e)
{
    struct tensor t = *like;
    char name[NAME];
    snprintf(name, sizeof name, "%s%s", base, tail);
    t.name = mem_text(name, e);
    return t.name ? tensor_list_add(&s->tensors, &t, e) : ERR_MEMORY;
}

static struct tensor describe(enum dtype dtype, uint64_t rows, uint64_t cols, uint64_t bytes)
{
    return (struct tensor){
        .dtype = dtype, .n_dims = 2, .shape = {rows, cols}, .format = FORMAT_NONE, .bytes = bytes};
}

static int add_quantised(struct sketching *s, const struct schema_item *it, uint32_t format,
                         struct moeflux_err *e)
{
    const struct format *f = format_of(format);
    uint64_t n = (uint64_t)it->rows * it->cols, scales = format_scale_bytes(f, n);
    struct tensor t =
        describe(DTYPE_U32, it->rows, (uint64_t)it->cols * f->bits / 32, format_code_bytes(f, n));
    t.bits = f->bits;
    t.group = f->group;
    t.format = format;
    int rc = add_tensor(s, it->name, ".weight", &t, e);
    t = describe(tensor_scale_dtype(f), it->rows, it->cols / f->group, scales);
    t.format = format;
    if (rc == 0)
        rc = add_tensor(s, it->name, ".scales", &t, e);
    if (rc == 0 && f->has_bias)
        rc = add_tensor(s, it->name, ".biases", &t, e);
    t = describe(DTYPE_F32, 1, 1, sizeof(float));
    t.format = format;
    return rc == 0 && f->has_factor ? add_tensor(s, it->name, ".global_scale", &t, e) : rc;
}

/* Adds a vector: float32 for two that published files have so, else bf16. */
static int add_vector(struct sketching *s, const struct schema_item *it, struct moeflux_err *e)
{
    const char *bias = s->m->config.router.sigmoid ? s->m->config.family->router_bias : NULL;
    bool wide = str_ends_with(it->name, ".A_log") || (bias && str_ends_with(it->name, bias));
    struct tensor t =
        describe(wide ? DTYPE_F32 : DTYPE_BF16, 1, it->cols, (wide ? 4 : 2) * (uint64_t)it->cols);
    if (it->is_ids)
        t = describe(DTYPE_I32, 1, it->cols, 4 * (uint64_t)it->cols);
    return add_tensor(s, it->name, "", &t, e);
}

static int add_item(struct sketching *s, const struct schema_item *it, struct moeflux_err *e)
{
    const uint64_t n = (uint64_t)it->rows * it->cols;
    const struct tensor plain = describe(DTYPE_BF16, it->rows, it->cols, 2 * n),
                        fp8 = describe(DTYPE_F8_E4M3, it->rows, it->cols, n);
    uint32_t format = FORMAT_BF16;
    if (!it->rows)
        return add_vector(s, it, e);
    int rc = choose(s, it->name, it->cols, &format, e);
    if (rc < 0)
        return rc;
    if (format == FORMAT_FP8 || format == FORMAT_FP8_32)
        return add_tensor(s, it->name, ".weight", &fp8, e);
    return format == FORMAT_BF16 ? add_tensor(s, it->name, ".weight", &plain, e)
                                 : add_quantised(s, it, format, e);
}

/* Adds the n-gram table of a layer, if it has one, in the format that `convert` chooses. */
static int add_table(struct sketching *s, uint32_t layer, struct moeflux_err *e)
{
    const struct ngram_config *c = table_of_layer(&s->m->config, layer);
    struct schema_item it = {0};
    struct ngram_hash hash;
    uint32_t format = FORMAT_BF16;
    int rc = c ? table_hash(c, &hash, e) : 0;
    if (!c || rc < 0)
        return rc;
    table_name(layer, it.name);
    it.rows = hash.n_rows;
    it.cols = c->inner / hash.n_heads;
    const struct tensor codes = describe(DTYPE_F8_E4M3, it.rows, it.cols, (uint64_t)it.rows * it.cols);
    if (s->quant.fp8.rows) {
        /* Tables of words have scales for the blocks of each row, others one scale. */
        uint64_t blocks = div_up(it.cols, s->quant.fp8.cols);
        const struct tensor scales = describe(DTYPE_F8_E8M0, it.rows, blocks, it.rows * blocks);
        rc = c->table.n_words ? add_tensor(s, it.name, ".scale", &scales, e) : 0;
        return rc < 0 ? rc : add_tensor(s, it.name, ".weight", &codes, e);
    }
    struct quant_entry entry = {QUANT_AFFINE, 4, QUANT_DEFAULT_GROUP};
    int said = s->quant.block ? look_up(s, it.name, &entry, e) : QUANT_SAID_NOTHING;
    if (said < 0)
        return said;
    if (said != QUANT_SAID_PLAIN)
        format = table_format(format_of_entry(&entry), it.cols);
    const struct tensor plain = describe(DTYPE_BF16, it.rows, it.cols, 2 * (uint64_t)it.rows * it.cols);
    return format == FORMAT_BF16 || format == FORMAT_NONE ? add_tensor(s, it.name, ".weight", &plain, e)
                                                          : add_quantised(s, &it, format, e);
}

static int add_dense(struct sketching *s, struct moeflux_err *e)
{
    struct model_dir *m = s->m;
    struct schema schema;
    m->config.has_kv_b = true;
    int rc = schema_build(&schema, &m->config, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < schema.n && rc == 0; i++)
        rc = add_item(s, &schema.items[i], e);
    schema_free(&schema);
    for (uint32_t i = 0; rc == 0 && i < m->config.n_layers; i++)
        rc = add_table(s, i, e);
    if (rc == 0)
        rc = tensor_list_sort(&s->tensors, s->path, e);
    if (rc < 0)
        return rc;
    m->tensors = s->tensors.items;
    m->n_tensors = s->tensors.n;
    s->tensors = (struct tensor_list){0};
    for (size_t i = 0; i < m->n_tensors; i++)
        *(table_has(m->tensors[i].name) ? &m->table_bytes : &m->dense_bytes) += m->tensors[i].bytes;
    return 0;
}

/* --- experts --- */

static int choose_projection(const struct sketching *s, uint32_t layer, const char *part, uint32_t cols,
                             uint32_t *format, struct moeflux_err *e)
{
    char base[NAME];
    snprintf(base, sizeof base, "model.layers.%u.mlp.switch_mlp.%s", layer, part);
    int rc = choose(s, base, cols, format, e);
    if (rc == 0 && *format == FORMAT_BF16)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: the experts of layer %u are not quantised: %s has %u columns",
                     s->path, layer, part, cols);
    return rc;
}

static int add_layer(struct sketching *s, uint32_t layer, struct moeflux_err *e)
{
    struct model_dir *m = s->m;
    const struct config *c = &m->config;
    struct expert_formats f;
    int rc = choose_projection(s, layer, "up_proj", config_expert_hidden(c), &f.up, e);
    if (rc < 0)
        return rc;
    f.gate = f.up;
    if (!c->gateless)
        rc = choose_projection(s, layer, "gate_proj", config_expert_hidden(c), &f.gate, e);
    if (rc == 0)
        rc = choose_projection(s, layer, "down_proj", c->moe_inner, &f.down, e);
    if (rc < 0)
        return rc;
    m->experts[layer] = expert_places_layout(c, &f);
    m->max_expert_bytes = size_max(m->max_expert_bytes, m->experts[layer].bytes);
    m->expert_bytes += m->experts[layer].bytes * c->n_experts;
    return 0;
}

static int add_experts(struct sketching *s, struct moeflux_err *e)
{
    struct model_dir *m = s->m;
    uint32_t n = m->config.n_layers;
    m->experts = mem_new(n, sizeof *m->experts, e);
    m->places = mem_new(n, sizeof *m->places, e);
    int rc = m->experts && m->places ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (config_has_experts(&m->config, i))
            rc = add_layer(s, i, e);
    return rc;
}

int sketch_open(struct model_dir *m, const char *path, struct moeflux_err *e)
{
    struct sketching s = {.m = m, .path = path};
    json_t *root = NULL;
    *m = (struct model_dir){.parts.spread.n_parts = 1, .packed = true, .is_sketch = true};
    m->path = mem_text(path, e);
    int rc = m->path ? json_read_file(path, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &root, e) : ERR_MEMORY;
    if (rc == 0)
        rc = config_read(&m->config, root, path, e);
    if (rc == 0)
        rc = quant_config_read(&s.quant, root, path, e);
    if (rc == 0 && quant_groups_say(&s.quant.groups))
        m->fp8 = s.quant.fp8;
    s.has_fp4_experts =
        rc == 0 && s.quant.fp8.rows && json_is_text(json_object_get(root, "expert_dtype"), "fp4");
    if (rc == 0)
        rc = add_dense(&s, e);
    if (rc == 0)
        rc = add_experts(&s, e);
    m->is_assumed = !s.quant.block && !quant_groups_say(&s.quant.groups) &&
                    (s.quant.expert_format == FORMAT_NONE || s.quant.expert_format == FORMAT_NVFP4_FACTOR);
    tensor_list_free(&s.tensors);
    json_decref(root);
    if (rc < 0)
        model_dir_close(m);
    return rc;
}

/* --- a file to measure with --- */

/* Fills a piece with numbers that no file system can compress away, and that are finite as scales. */
static void fill(uint8_t *piece, uint64_t *random)
{
    for (uint64_t i = 0; i < PIECE_BYTES; i += sizeof *random) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        uint64_t word = (*random ^ *random >> 29) & 0x3f3f3f3f3f3f3f3fu;
        memcpy(piece + i, &word, sizeof word);
    }
}

static int write_pieces(int fd, const char *path, uint64_t bytes, struct moeflux_err *e)
{
    uint8_t *piece = mem_new(PIECE_BYTES, 1, e);
    uint64_t random = 1;
    int rc = piece ? 0 : ERR_MEMORY;
    for (uint64_t at = 0; at < bytes && rc == 0; at += PIECE_BYTES) {
        fill(piece, &random);
        rc = file_write(fd, path, piece, size_min(PIECE_BYTES, bytes - at), e);
    }
    free(piece);
    if (rc == 0)
        rc = file_sync(fd, path, e);
    /* Drops it from the page cache where the system allows that, so that it is read from the disk. */
    if (rc == 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return rc;
}

/* Creates a file without a name in `dir`. */
static int new_file(const char *dir, uint64_t bytes, int *fd, struct moeflux_err *e)
{
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0)
        return err_errno(e, ERR_IO, "%s: a file to measure the disk with", dir);
    int rc = write_pieces(*fd, dir, bytes, e);
    if (rc < 0)
        close(*fd);
    return rc;
}

int sketch_make_file(struct model_dir *m, uint64_t bytes, uint32_t *layer, uint32_t *n, struct moeflux_err *e)
{
    char *dir = file_parent(m->path, e), place[40];
    int fd = -1;
    *layer = 0;
    while (!config_has_experts(&m->config, *layer))
        ++*layer;
    uint64_t each = m->experts[*layer].bytes;
    *n = (uint32_t)size_max(1, size_min(m->config.n_experts, bytes / each));
    int rc = dir ? new_file(dir, *n * each, &fd, e) : ERR_MEMORY;
    free(dir);
    if (rc < 0)
        return rc;
    /* Opens it a second time by path, as readers do. */
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    rc = open_file_add(&m->files, &m->n_files, place, e);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    /* The path names the first descriptor, so that one must stay open. */
    close(m->files[0].fd);
    m->files[0].fd = fd;
    m->places[*layer] = (struct expert_place){.n_runs = 1, .n_parts = 1, .runs = {{0, 0, each, each, 0}}};
    return 0;
}
