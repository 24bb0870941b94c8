#include "cli/measure/tensor_file.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

int tensor_file_create(struct tensor_file *f, const char *path, struct moeflux_err *e)
{
    *f = (struct tensor_file){0};
    return side_file_create(&f->file, path, 0, e);
}

static void add_spec(struct str *header, const struct tensor_spec *spec, uint64_t from, uint64_t to)
{
    str_addf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->len > 1 ? "," : "", spec->name,
             spec->dtype);
    for (uint32_t d = 0; d < spec->n_dims; d++)
        str_addf(header, "%s%llu", d ? "," : "", (unsigned long long)spec->shape[d]);
    str_addf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)from, (unsigned long long)to);
}

static bool spec_bytes(const struct tensor_spec *spec, uint64_t *bytes)
{
    bool ok = true;
    *bytes = 4;
    for (uint32_t d = 0; d < spec->n_dims; d++)
        ok = ok && size_mul(*bytes, spec->shape[d], bytes);
    return ok && *bytes <= INT64_MAX / TENSOR_FILE_MAX / 2;
}

int tensor_file_begin(struct tensor_file *f, const struct tensor_spec *specs, size_t n, struct moeflux_err *e)
{
    struct str header = {0};
    uint64_t at = 0;
    str_add_text(&header, "{");
    for (size_t i = 0; i < n; i++) {
        if (!spec_bytes(&specs[i], &f->bytes[i])) {
            str_free(&header);
            return err_set(e, ERR_IO, "%s: tensor %s is too large for a file", f->file.path, specs[i].name);
        }
        add_spec(&header, &specs[i], at, at + f->bytes[i]);
        f->offsets[i] = at;
        at += f->bytes[i];
    }
    str_add_text(&header, "}");
    /* Readers that map the file need aligned data. */
    while (header.len % 8)
        str_add_text(&header, " ");
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(header.len >> (8 * i));
    int rc = str_ok(&header) ? 0 : err_set(e, ERR_MEMORY, "%s: out of memory", f->file.path);
    if (!rc)
        rc = file_write_at(f->file.fd, f->file.path, length, sizeof length, 0, e);
    if (!rc)
        rc = file_write_at(f->file.fd, f->file.path, header.data, header.len, sizeof length, e);
    for (size_t i = 0; i < n; i++)
        f->offsets[i] += sizeof length + header.len;
    str_free(&header);
    return rc;
}

int tensor_file_write(struct tensor_file *f, size_t idx, uint64_t at, const void *elements, uint64_t n,
                      struct moeflux_err *e)
{
    if (at > f->bytes[idx] / 4 || n > f->bytes[idx] / 4 - at)
        return err_set(e, ERR_IO, "%s: %llu elements at %llu do not fit the tensor", f->file.path,
                       (unsigned long long)n, (unsigned long long)at);
    return file_write_at(f->file.fd, f->file.path, elements, n * 4, f->offsets[idx] + at * 4, e);
}

int tensor_file_commit(struct tensor_file *f, struct moeflux_err *e)
{
    return side_file_commit(&f->file, e);
}

void tensor_file_free(struct tensor_file *f)
{
    side_file_free(&f->file);
}
