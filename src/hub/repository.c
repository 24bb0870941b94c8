#include "hub/repository.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"
#include "hub/listing.h"

/* Joins two names of a path and a third; the caller frees it. */
static char *join(const char *a, const char *b, const char *c, struct moeflux_err *e)
{
    struct str s = {0};
    str_addf(&s, "%s/%s%s", a, b, c);
    if (str_ok(&s))
        return s.data;
    str_free(&s);
    err_set(e, ERR_MEMORY, "out of memory for a path");
    return NULL;
}

int repository_open(struct repository *r, const char *cache, const char *folder, struct moeflux_err *e)
{
    *r = (struct repository){.cache = mem_text(cache, e), .dir = join(cache, folder, "", e)};
    r->locks = join(cache, ".locks/", folder, e);
    if (r->dir)
        r->blobs = join(r->dir, "blobs", "", e);
    return r->cache && r->dir && r->blobs && r->locks ? 0 : ERR_MEMORY;
}

int repository_set_commit(struct repository *r, const char *commit, struct moeflux_err *e)
{
    snprintf(r->commit, sizeof r->commit, "%s", commit);
    r->snapshot = join(r->dir, "snapshots/", commit, e);
    return r->snapshot ? 0 : ERR_MEMORY;
}

void repository_free(struct repository *r)
{
    free(r->cache);
    free(r->dir);
    free(r->blobs);
    free(r->locks);
    free(r->snapshot);
    *r = (struct repository){0};
}

/* Makes a directory and those above it. */
static int make_dirs(const char *path, struct moeflux_err *e)
{
    char *copy = mem_text(path, e);
    int rc = copy ? 0 : ERR_MEMORY;
    for (char *at = copy; rc == 0 && at;) {
        char *slash = strchr(at + 1, '/');
        if (slash)
            *slash = '\0';
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = err_errno(e, ERR_IO, "%s", copy);
        if (slash)
            *slash = '/';
        at = slash;
    }
    if (rc == 0 && !file_is_dir(path))
        rc = err_set(e, ERR_IO, "%s: expected a directory", path);
    free(copy);
    return rc;
}

/* Makes the directory that will have the file. */
static int make_parent(const char *path, struct moeflux_err *e)
{
    char *parent = file_parent(path, e);
    int rc = parent ? make_dirs(parent, e) : ERR_MEMORY;
    free(parent);
    return rc;
}

/* Backups and indexers leave out a directory with this file (bford.info/cachedir). Hugging Face's tools write
 * it, too, and do without it where a cache's first directory is another user's. */
static void tag_cache(const struct repository *r)
{
    static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                               "# Models of a Hugging Face repository, which can be fetched again.\n";
    char *path = join(r->cache, "CACHEDIR.TAG", "", NULL);
    if (path && !file_exists(path))
        side_file_put(path, 0, text, sizeof text - 1, NULL);
    free(path);
}

int repository_make(const struct repository *r, struct moeflux_err *e)
{
    int rc = make_dirs(r->blobs, e);
    if (rc == 0)
        rc = make_dirs(r->snapshot, e);
    if (rc == 0)
        rc = make_dirs(r->locks, e);
    if (rc == 0)
        tag_cache(r);
    return rc;
}

char *repository_blob(const struct repository *r, const struct listing_file *f, const char *ending,
                      struct moeflux_err *e)
{
    return join(r->blobs, f->digest, ending, e);
}

/* Returns the size of a regular file; -1: there is none. */
static int64_t size_of(char *path)
{
    struct stat st;
    bool there = path && lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return there ? (int64_t)st.st_size : -1;
}

bool repository_has(const struct repository *r, const struct listing_file *f)
{
    return size_of(repository_blob(r, f, "", NULL)) == (int64_t)f->bytes;
}

uint64_t repository_count(const struct repository *r, const struct listing_file *f)
{
    if (repository_has(r, f))
        return f->bytes;
    int64_t part = size_of(repository_blob(r, f, ".incomplete", NULL));
    return part < 0 || (uint64_t)part > f->bytes ? 0 : (uint64_t)part;
}

/* Users who share a cache share its locks, whatever the umask of the first is. */
static int open_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && fchmod(fd, 0664) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Some tools remove a lock's file when they release it: what was locked must still have the name. */
static bool has_name(int fd, const char *path)
{
    struct stat own, there;
    return fstat(fd, &own) == 0 && stat(path, &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

int repository_lock(const struct repository *r, const struct listing_file *f, struct moeflux_err *e)
{
    char *path = join(r->locks, f->digest, ".lock", e);
    int rc = path ? -1 : ERR_MEMORY;
    while (rc == -1) {
        int fd = open_lock(path);
        if (fd < 0) {
            rc = err_errno(e, ERR_IO, "%s", path);
        } else if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            bool busy = errno == EWOULDBLOCK;
            rc = busy ? err_set(e, ERR_UNSUPPORTED, "%s: locked", path) : err_errno(e, ERR_IO, "%s", path);
            close(fd);
        } else if (!has_name(fd, path)) {
            close(fd);
        } else {
            free(path);
            return fd;
        }
    }
    free(path);
    return rc;
}

void repository_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Writes what the link of a file has: the way from its directory to the blob. */
static void add_target(const struct listing_file *f, struct str *target)
{
    str_add_text(target, "../../");
    for (const char *at = f->name; (at = strchr(at, '/')); at++)
        str_add_text(target, "../");
    str_addf(target, "blobs/%s", f->digest);
}

int repository_link(const struct repository *r, const struct listing_file *f, struct moeflux_err *e)
{
    /* Two programs may link the same file: each has a name of its own until the rename. */
    char ending[48];
    struct str target = {0};
    snprintf(ending, sizeof ending, ".link-%ld", (long)getpid());
    char *path = join(r->snapshot, f->name, "", e), *temporary = join(r->snapshot, f->name, ending, e);
    int rc = path && temporary ? make_parent(path, e) : ERR_MEMORY;
    add_target(f, &target);
    if (rc == 0 && !str_ok(&target))
        rc = err_set(e, ERR_MEMORY, "out of memory for a path");
    if (rc == 0) {
        unlink(temporary);
        if (symlink(str_text(&target), temporary) < 0 || rename(temporary, path) < 0) {
            rc = err_errno(e, ERR_IO, "%s: link to a blob", path);
            unlink(temporary);
        }
    }
    str_free(&target);
    free(temporary);
    free(path);
    return rc;
}

int repository_set_ref(const struct repository *r, const char *revision, struct moeflux_err *e)
{
    char *path = strcmp(revision, r->commit) == 0 ? NULL : join(r->dir, "refs/", revision, e);
    if (!path)
        return strcmp(revision, r->commit) == 0 ? 0 : ERR_MEMORY;
    int rc = make_parent(path, e);
    if (rc == 0)
        rc = side_file_put(path, 0, r->commit, strlen(r->commit), e);
    free(path);
    return rc;
}

uint64_t repository_room(const struct repository *r)
{
    struct statvfs fs;
    char *path = mem_text(r->blobs, NULL);
    uint64_t room = UINT64_MAX;
    while (path && statvfs(path, &fs) < 0 && errno == ENOENT) {
        char *up = file_parent(path, NULL);
        bool same = !up || strcmp(up, path) == 0;
        free(path);
        path = same ? NULL : up;
        if (same)
            free(up);
    }
    if (path && statvfs(path, &fs) == 0)
        room = (uint64_t)fs.f_bavail * fs.f_frsize;
    free(path);
    return room;
}
