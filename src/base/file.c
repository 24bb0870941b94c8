#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

/* Linux moves at most this much in one call; larger requests are cut anyway. */
#define MAX_CALL_BYTES ((uint64_t)1 << 30)

static const char *kind_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a directory";
    case S_IFIFO:
        return "a FIFO";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    default:
        return "no regular file";
    }
}

/* Clears O_NONBLOCK because io_uring returns nothing for reads of such a descriptor. */
int file_need_regular(int fd, const char *path, uint64_t *size, struct moeflux_err *e)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (fstat(fd, &st) < 0 || flags < 0)
        return err_errno(e, ERR_IO, "%s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: %s, expected a regular file", path, kind_of(st.st_mode));
    if (fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return err_errno(e, ERR_IO, "%s", path);
    if (size)
        *size = (uint64_t)st.st_size;
    return 0;
}

int file_open_read(const char *path, uint64_t *size, struct moeflux_err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(e, ERR_IO, "%s", path);
    int rc = file_need_regular(fd, path, size, e);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

int file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off, struct moeflux_err *e)
{
    uint64_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)dst + done, size_min(n - done, MAX_CALL_BYTES), (off_t)(off + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, ERR_IO, "%s: read of %llu bytes at offset %llu", path, (unsigned long long)n,
                             (unsigned long long)off);
        if (got == 0)
            return err_set(e, ERR_IO, "%s: ends after %llu of %llu bytes at offset %llu", path,
                           (unsigned long long)done, (unsigned long long)n, (unsigned long long)off);
        done += (uint64_t)got;
    }
    return 0;
}

int file_write(int fd, const char *path, const void *src, uint64_t n, struct moeflux_err *e)
{
    uint64_t done = 0;
    while (done < n) {
        ssize_t put = write(fd, (const char *)src + done, size_min(n - done, MAX_CALL_BYTES));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(e, ERR_IO, "%s: write", path);
        done += (uint64_t)put;
    }
    return 0;
}

int file_write_at(int fd, const char *path, const void *src, uint64_t n, uint64_t off, struct moeflux_err *e)
{
    uint64_t done = 0;
    while (done < n) {
        ssize_t put =
            pwrite(fd, (const char *)src + done, size_min(n - done, MAX_CALL_BYTES), (off_t)(off + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(e, ERR_IO, "%s: write at offset %llu", path, (unsigned long long)off);
        done += (uint64_t)put;
    }
    return 0;
}

int file_read_text(const char *path, uint64_t max, char **data, size_t *len, struct moeflux_err *e)
{
    uint64_t size;
    int fd = file_open_read(path, &size, e);
    if (fd < 0)
        return fd;
    int rc = 0;
    char *text = NULL;
    if (size > max)
        rc = err_set(e, ERR_FORMAT, "%s: %llu bytes, expected at most %llu", path, (unsigned long long)size,
                     (unsigned long long)max);
    else if (!(text = mem_new(size + 1, 1, e)))
        rc = ERR_MEMORY;
    else
        rc = file_read_at(fd, path, text, size, 0, e);
    close(fd);
    if (rc < 0) {
        free(text);
        return rc;
    }
    *data = text;
    *len = size;
    return 0;
}

int file_sync(int fd, const char *path, struct moeflux_err *e)
{
    return fsync(fd) < 0 && errno != EINVAL ? err_errno(e, ERR_IO, "%s: sync", path) : 0;
}

int file_sync_dir(const char *dir, struct moeflux_err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : err_errno(e, ERR_IO, "%s", dir);
    int rc = file_sync(fd, dir, e);
    close(fd);
    return rc;
}

int file_sync_parent(const char *path, struct moeflux_err *e)
{
    char *dir = file_parent(path, e);
    int rc = dir ? file_sync_dir(dir, e) : ERR_MEMORY;
    free(dir);
    return rc;
}

char *file_parent(const char *path, struct moeflux_err *e)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + (slash == path) : 1;
    char *dir = mem_new(n + 1, 1, e);
    if (dir)
        memcpy(dir, slash ? path : ".", n);
    return dir;
}

char *file_join(const char *dir, const char *name, struct moeflux_err *e)
{
    size_t a = strlen(dir), b = strlen(name);
    char *path = mem_new(a + b + 2, 1, e);
    if (!path)
        return NULL;
    memcpy(path, dir, a);
    if (a && dir[a - 1] != '/')
        path[a++] = '/';
    memcpy(path + a, name, b + 1);
    return path;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}
