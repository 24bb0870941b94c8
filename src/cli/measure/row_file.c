#include "cli/measure/row_file.h"

#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options/number.h"

/* Checks the room before the work: a disk that becomes full in the middle of it would waste that time. */
static int check_room(const struct row_file *f, const char *what, uint64_t n_rows, struct moeflux_err *e)
{
    struct statvfs fs;
    char need[32], room[32];
    uint64_t bytes = 0, free_bytes = 0;
    if (fstatvfs(f->fd, &fs) < 0)
        return err_errno(e, ERR_IO, "%s", f->dir);
    if (!size_mul(fs.f_bavail, fs.f_frsize, &free_bytes))
        free_bytes = UINT64_MAX;
    if (size_mul(n_rows, f->row_bytes, &bytes) && bytes <= free_bytes)
        return 0;
    number_show_bytes(need, sizeof need, (double)n_rows * (double)f->row_bytes);
    number_show_bytes(room, sizeof room, (double)free_bytes);
    return err_set(e, ERR_NO_FIT, "%s: %s take %s, %s are free (TMPDIR names another place)", f->dir, what,
                   need, room);
}

int row_file_open(struct row_file *f, const char *what, uint64_t n_rows, uint32_t width,
                  struct moeflux_err *e)
{
    const char *dir = getenv("TMPDIR");
    struct str path = {0};
    *f = (struct row_file){.dir = dir && *dir ? dir : "/tmp", .row_bytes = (uint64_t)width * sizeof(float)};
    str_addf(&path, "%s/moeflux-XXXXXX", f->dir);
    if (!str_ok(&path))
        return err_set(e, ERR_MEMORY, "out of memory");
    f->fd = mkstemp(path.data);
    int rc = f->fd < 0 ? err_errno(e, ERR_IO, "%s: a temporary file", f->dir) : 0;
    if (!rc)
        unlink(path.data);
    str_free(&path);
    if (!rc)
        rc = check_room(f, what, n_rows, e);
    if (rc)
        row_file_close(f);
    return rc;
}

int row_file_write(const struct row_file *f, uint64_t idx, const float *row, struct moeflux_err *e)
{
    return file_write_at(f->fd, f->dir, row, f->row_bytes, idx * f->row_bytes, e);
}

int row_file_read(const struct row_file *f, uint64_t idx, float *row, struct moeflux_err *e)
{
    return file_read_at(f->fd, f->dir, row, f->row_bytes, idx * f->row_bytes, e);
}

void row_file_close(struct row_file *f)
{
    if (f->dir && f->fd >= 0)
        close(f->fd);
    *f = (struct row_file){.fd = -1};
}
