/* The JSON files of a model, and which files a directory has. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/open_file.h"
#include "base/str.h"
#include "args.h"
#include "fuzz/target.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/layout.h"
#include "model/manifest.h"
#include "model/quant_config.h"
#include "model/safetensors.h"
#include "model/schema.h"
#include "model/spread.h"

static void use_config(const struct config *c)
{
    struct schema s = {0};
    struct moeflux_err e = {0};
    target_need(c->n_layers > 0 && c->top_k <= c->n_experts && c->n_eos <= CONFIG_MAX_EOS,
                "a configuration that contradicts itself");
    /* A layer's tensors do not depend on how many there are. */
    if (c->n_layers > 16 || !target_answered(schema_build(&s, c, &e), &e))
        return;
    for (size_t i = 0; i < s.n; i++)
        target_need(s.items[i].cols > 0 && memchr(s.items[i].name, '\0', SCHEMA_NAME),
                    "a tensor without columns or name");
    schema_free(&s);
}

void target_config(const uint8_t *data, size_t n)
{
    json_t *root = NULL;
    struct config c;
    struct quant_config q;
    struct moeflux_err e = {0};
    struct quant_entry entry;
    if (!target_answered(json_read((const char *)data, n, "config.json", JSON_MAX_SMALL, &root, &e), &e))
        return;
    if (target_answered(config_read(&c, root, "config.json", &e), &e)) {
        use_config(&c);
        target_answered(config_add_generation(&c, root, "config.json", &e), &e);
    }
    config_free(&c);
    if (target_answered(quant_config_read(&q, root, "config.json", &e), &e)) {
        target_answered(quant_config_matrix(&q, "language_model.model.layers.0.mlp.gate", &entry, &e), &e);
        uint32_t format = quant_groups_format(&q.groups, "model.layers.0.mlp.experts.0.up_proj");
        target_need(format < FORMAT_END || format == FORMAT_NONE, "a matrix without a format");
    }
    json_decref(root);
}

/* What the lists' contract says of every tensor. */
static void use_tensors(struct tensor_list *l, uint64_t file_bytes)
{
    struct moeflux_err e = {0};
    char text[TENSOR_SHAPE_TEXT];
    if (!target_answered(tensor_list_sort(l, "file", &e), &e))
        return;
    for (size_t i = 0; i < l->n; i++) {
        const struct tensor *t = &l->items[i];
        target_need(t->off <= file_bytes && t->bytes <= file_bytes - t->off, "a tensor beyond its file");
        target_need(tensor_find(l->items, l->n, t->name) == t, "a tensor that is not found");
        tensor_shape_text(t, text);
        if (t->bytes > 0 && t->dtype != DTYPE_OTHER)
            target_need(tensor_rows(t) * tensor_cols(t) * tensor_dtype_bytes(t->dtype) == t->bytes,
                        "a shape that is not the tensor's bytes");
    }
}

enum { DATA_BYTES = 1 << 20 };

void target_safetensors(const uint8_t *data, size_t n)
{
    static struct str file;
    struct tensor_list l = {0};
    struct moeflux_err e = {0};
    uint64_t bytes = n;
    str_clear(&file);
    if (n > 0 && data[0] == '#') {
        str_add(&file, (const char *)data + 1, n - 1);
    } else {
        str_add(&file, (const char *)&bytes, sizeof bytes);
        str_add(&file, (const char *)data, n);
    }
    struct open_file f = {.path = (char *)(uintptr_t) "f.safetensors"};
    f.fd = open(target_file((const uint8_t *)file.data, file.len), O_RDWR | O_CLOEXEC);
    f.bytes = file.len + (n > 0 && data[0] != '#' ? DATA_BYTES : 0);
    target_need(f.fd >= 0 && ftruncate(f.fd, (off_t)f.bytes) == 0, "no room for the file");
    if (target_answered(safetensors_read_header(&f, 0, &l, &e), &e))
        use_tensors(&l, f.bytes);
    tensor_list_free(&l);
    close(f.fd);
}

void target_manifest(const uint8_t *data, size_t n)
{
    struct tensor_list l = {0};
    struct moeflux_err e = {0};
    json_t *root = NULL;
    if (target_answered(manifest_read(target_file(data, n), 0, DATA_BYTES, &l, &root, &e), &e))
        use_tensors(&l, DATA_BYTES);
    json_decref(root);
    tensor_list_free(&l);
}

/* --- directories --- */

static const char *const entries[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model_weights.json",
    "model_weights.bin",
    "packed_experts",
    "mlx",
    "artifacts",
    "root",
    "mlx/config.json",
    "mlx/tokenizer.json",
    "artifacts/model_weights.json",
    "artifacts/model_weights.bin",
    "root/packed_experts",
    "mlx/generation_config.json",
};
enum { N_ENTRIES = sizeof entries / sizeof *entries };

static void make_entry(int dir, const char *name, unsigned kind)
{
    switch (kind % 6) {
    case 0: {
        int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            close(fd);
        break;
    }
    case 1:
        mkdirat(dir, name, 0777);
        break;
    case 2:
        mkfifoat(dir, name, 0666);
        break;
    case 3:
        (void)!symlinkat("nowhere", dir, name);
        break;
    case 4:
        (void)!symlinkat(".", dir, name);
        break;
    default:
        (void)!symlinkat("config.json", dir, name);
        break;
    }
}

static void remove_entries(int dir)
{
    for (int i = N_ENTRIES - 1; i >= 0; i--)
        if (unlinkat(dir, entries[i], 0) < 0)
            unlinkat(dir, entries[i], AT_REMOVEDIR);
    /* An entry may have been made below a link. */
    for (int i = N_ENTRIES - 1; i >= 0; i--)
        if (unlinkat(dir, entries[i], 0) < 0)
            unlinkat(dir, entries[i], AT_REMOVEDIR);
}

void target_layout(const uint8_t *data, size_t n)
{
    static const char *path;
    static int dir = -1;
    struct layout l;
    struct moeflux_err e = {0};
    if (dir < 0) {
        path = target_new_dir("layout");
        dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    for (size_t i = 0; i < n && i < 2 * N_ENTRIES; i++)
        make_entry(dir, entries[data[i] % N_ENTRIES], data[i] / N_ENTRIES);
    if (target_answered(layout_find(&l, path, &e), &e)) {
        target_need(l.packed == (l.manifest != NULL) && (l.config || l.packed), "a layout without its files");
        target_need(!l.packed || (l.weights && l.experts), "a packed layout without weights");
        layout_free(&l);
    }
    remove_entries(dir);
}

/* Checks the pieces of an expert that is one byte short of filling all stripes, and of a small one. */
static void use_spread(const struct spread *given)
{
    const struct spread own = spread_of_layer(given, 12345678), *s = &own;
    const uint64_t bytes[] = {s->stripe * s->n_parts - 1, 1};
    for (int k = 0; k < 2; k++) {
        uint64_t at = 0;
        uint32_t n = spread_n_pieces(s, bytes[k]), seen = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct spread_piece x = spread_piece(s, bytes[k], UINT16_MAX, i);
            target_need(x.part < s->n_parts && x.at == at && x.bytes > 0 && x.bytes <= s->stripe,
                        "a piece that does not follow the one before");
            seen |= 1u << x.part;
            at += x.bytes;
        }
        target_need(at == bytes[k] && __builtin_popcount(seen) == (int)n, "pieces that are no whole expert");
    }
}

void target_spread(const uint8_t *data, size_t n)
{
    static char dir[256], file[300], part[300];
    struct spread_dirs d;
    struct moeflux_err e = {0};
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", target_new_dir("spread"));
        snprintf(file, sizeof file, "%s/" SPREAD_FILE, dir);
        snprintf(part, sizeof part, "%s/" SPREAD_PART_FILE, dir);
    }
    const uint8_t *bar = n ? memchr(data, '|', n) : NULL;
    size_t first = bar ? (size_t)(bar - data) : n;
    target_put(file, data, first);
    target_put(part, bar ? bar + 1 : data, bar ? n - first - 1 : 0);
    if (!target_answered(spread_read(&d, dir, &e), &e))
        return;
    target_need(d.spread.n_parts >= 2 && d.spread.n_parts <= SPREAD_MAX_PARTS, "a spread without parts");
    use_spread(&d.spread);
    for (uint32_t i = 1; i < d.spread.n_parts; i++) {
        target_need(d.paths[i] != NULL, "a part without a path");
        target_answered(spread_check_part(&d, i, &e), &e);
    }
    spread_free(&d);
}
