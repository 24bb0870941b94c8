#include "cli/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

/* A link's target is replaced, not the link; a device or a pipe must not be replaced at all. */
static char *resolve(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        if (errno != ENOENT)
            err_errno(e, ERR_IO, "%s", path);
        return errno == ENOENT ? mem_text(path, e) : NULL;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: expected a regular file or a new name", path);
        return NULL;
    }
    char *real = realpath(path, NULL);
    if (!real)
        err_errno(e, ERR_IO, "%s", path);
    return real;
}

/* Opens a file of a name that nothing has, beside `path`; *name gets it. */
static int open_temporary(const char *path, char **name, struct err *e)
{
    enum { MOST_TRIES = 100 };
    for (int i = 0; i < MOST_TRIES; i++) {
        struct str text = {0};
        str_addf(&text, "%s.part-%ld-%d", path, (long)getpid(), i);
        if (!str_ok(&text))
            return err_set(e, ERR_MEMORY, "%s: out of memory", path);
        int fd = open(text.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *name = text.data;
            return fd;
        }
        str_free(&text);
        if (errno != EEXIST)
            break;
    }
    return err_errno(e, ERR_IO, "%s", path);
}

int tensor_file_create(struct tensor_file *f, const char *path, struct err *e)
{
    *f = (struct tensor_file){.fd = -1};
    if (!(f->path = resolve(path, e)))
        return ERR_IO;
    f->fd = open_temporary(f->path, &f->temporary, e);
    if (f->fd >= 0)
        return 0;
    int rc = f->fd;
    tensor_file_free(f);
    return rc;
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

int tensor_file_begin(struct tensor_file *f, const struct tensor_spec *specs, size_t n, struct err *e)
{
    struct str header = {0};
    uint64_t at = 0;
    str_add_text(&header, "{");
    for (size_t i = 0; i < n; i++) {
        if (!spec_bytes(&specs[i], &f->bytes[i])) {
            str_free(&header);
            return err_set(e, ERR_IO, "%s: tensor %s is too large for a file", f->path, specs[i].name);
        }
        add_spec(&header, &specs[i], at, at + f->bytes[i]);
        f->offsets[i] = at;
        at += f->bytes[i];
    }
    str_add_text(&header, "}");
    /* Readers that map the file want its data aligned. */
    while (header.len % 8)
        str_add_text(&header, " ");
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(header.len >> (8 * i));
    int rc = str_ok(&header) ? 0 : err_set(e, ERR_MEMORY, "%s: out of memory", f->path);
    if (!rc)
        rc = file_write_at(f->fd, f->path, length, sizeof length, 0, e);
    if (!rc)
        rc = file_write_at(f->fd, f->path, header.data, header.len, sizeof length, e);
    for (size_t i = 0; i < n; i++)
        f->offsets[i] += sizeof length + header.len;
    str_free(&header);
    return rc;
}

int tensor_file_write(struct tensor_file *f, size_t idx, uint64_t at, const void *elements, uint64_t n,
                      struct err *e)
{
    if (at > f->bytes[idx] / 4 || n > f->bytes[idx] / 4 - at)
        return err_set(e, ERR_IO, "%s: %llu elements at %llu do not fit the tensor", f->path,
                       (unsigned long long)n, (unsigned long long)at);
    return file_write_at(f->fd, f->path, elements, n * 4, f->offsets[idx] + at * 4, e);
}

int tensor_file_commit(struct tensor_file *f, struct err *e)
{
    int rc = 0;
    if (close(f->fd) < 0)
        rc = err_errno(e, ERR_IO, "%s: close", f->path);
    f->fd = -1;
    if (!rc && rename(f->temporary, f->path) < 0)
        rc = err_errno(e, ERR_IO, "%s: rename", f->path);
    if (!rc) {
        free(f->temporary);
        f->temporary = NULL;
    }
    return rc;
}

void tensor_file_free(struct tensor_file *f)
{
    if (!f->path)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->temporary)
        unlink(f->temporary);
    free(f->temporary);
    free(f->path);
    *f = (struct tensor_file){.fd = -1};
}
