#include "model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/open_file.h"

/* The limit of the published loaders; the largest known headers are under 20 MB. */
#define MAX_HEADER_BYTES ((uint64_t)100 << 20)
#define MAX_INDEX_BYTES  ((uint64_t)100 << 20)

enum { MAX_FILES = 4096 };

static const char INDEX[] = "model.safetensors.index.json";

/* --- one file --- */

static uint64_t load_le64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int read_text(const struct open_file *f, char **text, uint64_t *len, struct moeflux_err *e)
{
    uint8_t head[8];
    if (f->bytes < sizeof head)
        return err_set(e, ERR_FORMAT, "%s: %" PRIu64 " bytes, too short for a safetensors file", f->path,
                       f->bytes);
    int rc = file_read_at(f->fd, f->path, head, sizeof head, 0, e);
    if (rc < 0)
        return rc;
    uint64_t n = load_le64(head);
    if (n > f->bytes - sizeof head || n > MAX_HEADER_BYTES)
        return err_set(e, ERR_FORMAT, "%s: header length %" PRIu64 ", expected at most %" PRIu64, f->path, n,
                       size_min(f->bytes - sizeof head, MAX_HEADER_BYTES));
    *text = mem_new(n + 1, 1, e);
    if (!*text)
        return ERR_MEMORY;
    *len = n;
    return file_read_at(f->fd, f->path, *text, n, sizeof head, e);
}

static int read_entry(const struct open_file *f, uint64_t data_at, const char *name, const json_t *entry,
                      struct tensor *t, struct moeflux_err *e)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: expected an object with dtype, shape, data_offsets",
                       f->path, name);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from))
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: expected data_offsets [begin, end] with 0 <= begin <= end", f->path,
                       name);
    uint64_t begin = (uint64_t)json_integer_value(from), end = (uint64_t)json_integer_value(to);
    int rc = tensor_describe(t, dtype, json_object_get(entry, "shape"), begin, end - begin,
                             f->bytes - data_at, f->path, e);
    t->off += data_at;
    return rc;
}

static int read_entries(const struct open_file *f, uint32_t file, uint64_t data_at, json_t *root,
                        struct tensor_list *out, struct moeflux_err *e)
{
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        struct tensor t = {.name = mem_text(name, e), .file = file};
        if (!t.name)
            return ERR_MEMORY;
        int rc = read_entry(f, data_at, name, entry, &t, e);
        if (rc < 0) {
            free(t.name);
            return rc;
        }
        rc = tensor_list_add(out, &t, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int safetensors_read_header(const struct open_file *f, uint32_t file, struct tensor_list *out,
                            struct moeflux_err *e)
{
    char *text = NULL;
    uint64_t len = 0;
    json_t *root = NULL;
    size_t first = out->n;
    int rc = read_text(f, &text, &len, e);
    if (rc == 0)
        rc = json_read(text, len, f->path, JSON_MAX_LARGE, &root, e);
    if (rc == 0)
        rc = read_entries(f, file, 8 + len, root, out, e);
    if (rc == 0)
        rc = tensor_list_check_overlap(out, first, f->path, e);
    json_decref(root);
    free(text);
    return rc;
}

/* --- the directory --- */

static int add_file(struct safetensors *s, const char *dir, const char *name, struct moeflux_err *e)
{
    if (s->n_files == MAX_FILES)
        return err_set(e, ERR_FORMAT, "%s: more than %d safetensors files", dir, MAX_FILES);
    char *path = file_join(dir, name, e);
    int rc = path ? open_file_add(&s->files, &s->n_files, path, e) : ERR_MEMORY;
    free(path);
    return rc;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static uint32_t file_of(const struct safetensors *s, const char *name)
{
    uint32_t i = 0;
    while (i < s->n_files && strcmp(base_name(s->files[i].path), name) != 0)
        i++;
    return i;
}

static bool is_missing(const char *dir, const char *name)
{
    struct moeflux_err ignored;
    char *path = file_join(dir, name, &ignored);
    bool is = path && access(path, F_OK) < 0;
    free(path);
    return is;
}

static int open_mapped_files(struct safetensors *s, const char *dir, const char *index, json_t *map,
                             struct moeflux_err *e)
{
    const char *name;
    json_t *value;
    struct moeflux_err why = {0};
    json_object_foreach(map, name, value)
    {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/') || !strcmp(file, ".") || !strcmp(file, ".."))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: expected the name of a file in the same directory",
                           index, name);
        int rc = file_of(s, file) < s->n_files ? 0 : add_file(s, dir, file, &why);
        if (rc < 0)
            return err_set(e, rc, is_missing(dir, file) ? "%s (%s has it: is the download complete?)" : "%s",
                           why.text, base_name(index));
    }
    return 0;
}

static int check_map(const struct safetensors *s, const char *index, json_t *map, struct moeflux_err *e)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const struct tensor *t = tensor_find(s->tensors.items, s->tensors.n, name);
        if (!t || t->file != file_of(s, json_string_value(value)))
            return err_set(e, ERR_FORMAT, "%s: tensor %s is not in %s", index, name,
                           json_string_value(value));
    }
    return 0;
}

static int read_headers(struct safetensors *s, const char *dir, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < s->n_files && rc == 0; i++)
        rc = safetensors_read_header(&s->files[i], i, &s->tensors, e);
    return rc < 0 ? rc : tensor_list_sort(&s->tensors, dir, e);
}

static int open_indexed(struct safetensors *s, const char *dir, const char *index, struct moeflux_err *e)
{
    json_t *root = NULL;
    int rc = json_read_file(index, MAX_INDEX_BYTES, JSON_MAX_LARGE, &root, e);
    if (rc < 0)
        return rc;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = err_set(e, ERR_FORMAT, "%s: expected a weight_map with tensors", index);
    if (rc == 0)
        rc = open_mapped_files(s, dir, index, map, e);
    if (rc == 0)
        rc = read_headers(s, dir, e);
    if (rc == 0)
        rc = check_map(s, index, map, e);
    json_decref(root);
    return rc;
}

static int is_safetensors(const struct dirent *d)
{
    const char *dot = strrchr(d->d_name, '.');
    return dot && dot != d->d_name && !strcmp(dot, ".safetensors");
}

static int open_all(struct safetensors *s, const char *dir, struct moeflux_err *e)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_safetensors, alphasort);
    if (n < 0)
        return err_errno(e, ERR_IO, "%s", dir);
    int rc = n > 0 ? 0 : err_set(e, ERR_IO, "%s: no *.safetensors file", dir);
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = add_file(s, dir, names[i]->d_name, e);
        free(names[i]);
    }
    free(names);
    return rc < 0 ? rc : read_headers(s, dir, e);
}

int safetensors_open(struct safetensors *s, const char *dir, struct moeflux_err *e)
{
    *s = (struct safetensors){0};
    char *index = file_join(dir, INDEX, e);
    if (!index)
        return ERR_MEMORY;
    int rc = file_exists(index) ? open_indexed(s, dir, index, e) : open_all(s, dir, e);
    free(index);
    if (rc < 0)
        safetensors_close(s);
    return rc;
}

void safetensors_close(struct safetensors *s)
{
    open_file_close_all(s->files, s->n_files);
    tensor_list_free(&s->tensors);
    *s = (struct safetensors){0};
}
