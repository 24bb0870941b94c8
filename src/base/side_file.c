#include "base/side_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

/* Returns the path that `path` links to. A device or a pipe must not be replaced. *old: the existing file;
 * its st_mode is 0 if there is none. */
static char *resolve(const char *path, struct stat *old, struct moeflux_err *e)
{
    *old = (struct stat){0};
    if (stat(path, old) < 0) {
        if (errno != ENOENT)
            err_errno(e, ERR_IO, "%s", path);
        return errno == ENOENT ? mem_text(path, e) : NULL;
    }
    if (!S_ISREG(old->st_mode)) {
        err_set(e, ERR_IO, "%s: expected a regular file or a new name", path);
        return NULL;
    }
    char *real = realpath(path, NULL);
    if (!real)
        err_errno(e, ERR_IO, "%s", path);
    return real;
}

/* Most programs that may write one file at the same time. Each has a temporary file with its own number. */
enum { MOST_WRITERS = 16 };

static char *temporary_of(const char *path, int i, struct moeflux_err *e)
{
    struct str name = {0};
    str_addf(&name, "%s" SIDE_FILE_MARK "%d", path, i);
    if (!str_ok(&name))
        err_set(e, ERR_MEMORY, "%s: out of memory", path);
    return name.data;
}

bool side_file_is_temporary(const char *name)
{
    const char *at = strstr(name, SIDE_FILE_MARK);
    const char *number = at ? at + strlen(SIDE_FILE_MARK) : "";
    return *number && strspn(number, "0123456789") == strlen(number);
}

static bool has_name(int fd, const char *name)
{
    struct stat own, there;
    return fstat(fd, &own) == 0 && lstat(name, &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

/* A writer locks its file until the rename, so the writer of one without a lock is dead. Where files
 * cannot be locked, nothing is removed. */
void side_file_remove_dead(const char *name)
{
    int fd = open(name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd, name))
        unlink(name);
    close(fd);
}

/* Creates and locks a temporary file. -1 with errno EEXIST: it belongs to another writer. */
static int take(const char *name, mode_t mode)
{
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    /* Until it is locked, another writer may remove the file as a dead writer's. */
    if ((flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && has_name(fd, name))
        return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

/* Takes the first free number; removes what dead writers left under any number. */
static int open_temporary(struct side_file *f, mode_t mode, struct moeflux_err *e)
{
    bool may_take = true;
    int rc = 0;
    for (int i = 0; !rc && i < MOST_WRITERS; i++) {
        char *name = temporary_of(f->path, i, e);
        if (!name)
            return ERR_MEMORY;
        side_file_remove_dead(name);
        if (may_take && (f->fd = take(name, mode)) >= 0) {
            f->temporary = name;
            name = NULL;
            may_take = false;
        } else if (may_take && errno != EEXIST) {
            rc = err_errno(e, ERR_IO, "%s", f->path);
        }
        free(name);
    }
    if (!rc && may_take)
        rc = err_set(e, ERR_IO, "%s: %d programs are writing it already (%s" SIDE_FILE_MARK "0 and on)",
                     f->path, MOST_WRITERS, f->path);
    return rc;
}

/* Copies mode, owner and group of the file that will be replaced; owner and group only if the user may set
 * them. If the group cannot be set, the members of the new file's group get the permissions of others. */
static int take_over(const struct side_file *f, const struct stat *old, struct moeflux_err *e)
{
    struct stat own;
    mode_t mode = old->st_mode & 07777;
    if (fchown(f->fd, old->st_uid, old->st_gid) < 0 && fchown(f->fd, (uid_t)-1, old->st_gid) < 0)
        mode = (mode & ~(mode_t)070) | (mode & 07) << 3;
    if (fstat(f->fd, &own) == 0 && (own.st_mode & 07777) == mode)
        return 0;
    return fchmod(f->fd, mode) < 0 ? err_errno(e, ERR_IO, "%s: mode %04o", f->path, (unsigned)mode) : 0;
}

int side_file_create(struct side_file *f, const char *path, unsigned mode, struct moeflux_err *e)
{
    struct stat old;
    *f = (struct side_file){.fd = -1};
    if (!(f->path = resolve(path, &old, e)))
        return ERR_IO;
    /* The replacement of a private file is private from its creation on. */
    int rc = open_temporary(f, old.st_mode ? S_IRUSR | S_IWUSR : mode ? mode : 0666, e);
    if (!rc && old.st_mode)
        rc = take_over(f, &old, e);
    if (rc)
        side_file_free(f);
    return rc;
}

/* The file stays locked until it is renamed: another writer would remove it otherwise. */
int side_file_commit(struct side_file *f, struct moeflux_err *e)
{
    int rc = file_sync(f->fd, f->path, e);
    if (rc)
        return rc;
    if (rename(f->temporary, f->path) < 0)
        return err_errno(e, ERR_IO, "%s: rename", f->path);
    free(f->temporary);
    f->temporary = NULL;
    close(f->fd);
    f->fd = -1;
    return file_sync_parent(f->path, e);
}

int side_file_put(const char *path, unsigned mode, const void *bytes, uint64_t n, struct moeflux_err *e)
{
    struct side_file f;
    int rc = side_file_create(&f, path, mode, e);
    if (!rc && mode && fchmod(f.fd, mode) < 0)
        rc = err_errno(e, ERR_IO, "%s", path);
    if (!rc)
        rc = file_write(f.fd, path, bytes, n, e);
    if (!rc)
        rc = side_file_commit(&f, e);
    side_file_free(&f);
    return rc;
}

void side_file_clear(const char *path)
{
    for (int i = 0; i < MOST_WRITERS; i++) {
        char *name = temporary_of(path, i, NULL);
        if (name)
            side_file_remove_dead(name);
        free(name);
    }
}

void side_file_free(struct side_file *f)
{
    if (!f->path)
        return;
    if (f->temporary)
        unlink(f->temporary);
    if (f->fd >= 0)
        close(f->fd);
    free(f->temporary);
    free(f->path);
    *f = (struct side_file){.fd = -1};
}
