#include "hub/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/listing.h"
#include "hub/repository.h"
#include "hub/stop.h"

/* The first part is written in pieces of this size: more would be lost with the program. */
enum { PIECE_BYTES = 1 << 20 };

/* --- the beginning --- */

/* Sums what an earlier run has left. */
static int sum_prefix(struct transfer *t, uint64_t n, atomic_uint_fast64_t *done, const struct stop *stop,
                      struct moeflux_err *e)
{
    char *piece = mem_new(PIECE_BYTES, 1, e);
    int rc = piece ? 0 : ERR_MEMORY;
    while (rc == 0 && t->written < n) {
        uint64_t most = size_min(PIECE_BYTES, n - t->written);
        rc = stop_is_set(stop) ? ERR_INTERRUPTED : file_read_at(t->fd, t->path, piece, most, t->written, e);
        if (rc)
            break;
        digest_add(&t->digest, piece, most);
        t->written += most;
        atomic_fetch_add(done, most);
    }
    t->next = t->written;
    free(piece);
    return rc;
}

static int open_part(struct transfer *t, uint64_t *n, struct moeflux_err *e)
{
    struct stat st;
    t->path = repository_blob(t->repository, t->file, ".incomplete", e);
    if (!t->path)
        return ERR_MEMORY;
    t->fd = open(t->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (t->fd < 0 || fstat(t->fd, &st) < 0)
        return err_errno(e, ERR_IO, "%s", t->path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a regular file", t->path);
    /* More bytes than the file has are those of something else. */
    *n = (uint64_t)st.st_size > t->file->bytes ? 0 : (uint64_t)st.st_size;
    if (*n != (uint64_t)st.st_size && ftruncate(t->fd, 0) < 0)
        return err_errno(e, ERR_IO, "%s", t->path);
    return 0;
}

int transfer_begin(struct transfer *t, const struct repository *r, const struct listing_file *f,
                   atomic_uint_fast64_t *done, const struct stop *stop, struct moeflux_err *e)
{
    uint64_t n = 0;
    *t = (struct transfer){.repository = r, .file = f, .fd = -1, .lock_fd = -1};
    pthread_mutex_init(&t->lock, NULL);
    t->lock_fd = repository_lock(r, f, e);
    if (t->lock_fd < 0)
        return t->lock_fd;
    digest_begin(&t->digest, f->kind, f->bytes);
    if (repository_has(r, f)) {
        atomic_fetch_add(done, f->bytes);
        int rc = repository_link(r, f, e);
        return rc ? rc : 1;
    }
    int rc = open_part(t, &n, e);
    return rc ? rc : sum_prefix(t, n, done, stop, e);
}

/* --- parts --- */

/* Called with the lock. */
static bool can_add(const struct transfer *t)
{
    return t->next < t->file->bytes && !(t->no_ranges && t->parts);
}

bool transfer_can_add(struct transfer *t, bool *first)
{
    pthread_mutex_lock(&t->lock);
    bool can = can_add(t);
    *first = !t->parts;
    pthread_mutex_unlock(&t->lock);
    return can;
}

/* Begins a part of a file that can have one. Called with the lock; returns NULL without memory. */
static struct part *append_part(struct transfer *t, uint64_t most)
{
    uint64_t left = t->file->bytes - t->next, n = t->no_ranges ? left : size_min(most, left);
    struct part *p = malloc(sizeof *p), **at = &t->parts;
    char *bytes = malloc(size_min(most, left));
    if (!p || !bytes) {
        free(p);
        free(bytes);
        return NULL;
    }
    *p = (struct part){.file = t,
                       .from = t->next,
                       .to = t->next + n,
                       .got = t->next,
                       .saved = t->next,
                       .bytes = bytes,
                       .capacity = size_min(most, left)};
    while (*at)
        at = &(*at)->next;
    *at = p;
    t->next = p->to;
    return p;
}

int transfer_add_part(struct transfer *t, uint64_t most, struct part **out, struct moeflux_err *e)
{
    pthread_mutex_lock(&t->lock);
    /* Another part may have found out meanwhile that the server sends no ranges. */
    bool can = can_add(t);
    *out = can ? append_part(t, most) : NULL;
    pthread_mutex_unlock(&t->lock);
    return *out || !can ? 0 : err_set(e, ERR_MEMORY, "out of memory for a part of %s", t->file->name);
}

/* Writes and sums what the first part has received. */
static int save(struct transfer *t, struct part *p, struct moeflux_err *e)
{
    uint64_t n = p->got - p->saved;
    int rc = n ? file_write_at(t->fd, t->path, p->bytes, n, p->saved, e) : 0;
    if (rc)
        return rc;
    digest_add(&t->digest, p->bytes, n);
    p->saved = p->got;
    t->written = p->got;
    return 0;
}

int transfer_take(struct part *p, const char *bytes, size_t n, struct moeflux_err *e)
{
    struct transfer *t = p->file;
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    n = size_min(n, p->to - p->got);
    while (rc == 0 && n > 0) {
        uint64_t held = p->got - p->saved, room = size_min(p->capacity - held, n);
        memcpy(p->bytes + held, bytes, room);
        p->got += room;
        bytes += room;
        n -= room;
        /* A part that is not the first has room for all its bytes. */
        if (p == t->parts && (p->got - p->saved >= PIECE_BYTES || n > 0))
            rc = save(t, p, e);
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int transfer_end_part(struct part *p, uint32_t *n_freed, struct moeflux_err *e)
{
    struct transfer *t = p->file;
    int rc = 0;
    *n_freed = 0;
    pthread_mutex_lock(&t->lock);
    p->ended = true;
    /* A whole part whose thread is still busy with it is that thread's. */
    while (rc == 0 && t->parts && t->parts->ended) {
        struct part *first = t->parts;
        rc = save(t, first, e);
        if (rc == 0) {
            t->parts = first->next;
            free(first->bytes);
            free(first);
            ++*n_freed;
        }
    }
    if (rc == 0)
        rc = t->written == t->file->bytes && !t->parts;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* --- the end --- */

int transfer_finish(struct transfer *t, struct moeflux_err *e)
{
    char sum[DIGEST_TEXT];
    digest_end(&t->digest, sum);
    if (strcmp(sum, t->file->digest) != 0) {
        unlink(t->path);
        return err_set(e, ERR_FORMAT, "%s: its %s is %s, expected %s: the file is removed", t->file->name,
                       t->file->kind == DIGEST_SHA256 ? "SHA-256" : "SHA-1", sum, t->file->digest);
    }
    char *blob = repository_blob(t->repository, t->file, "", e);
    int rc = blob ? file_sync(t->fd, t->path, e) : ERR_MEMORY;
    if (rc == 0 && rename(t->path, blob) < 0)
        rc = err_errno(e, ERR_IO, "%s", blob);
    if (rc == 0)
        rc = file_sync_parent(blob, e);
    if (rc == 0)
        rc = repository_link(t->repository, t->file, e);
    free(blob);
    return rc;
}

void transfer_close(struct transfer *t)
{
    struct moeflux_err ignored;
    /* What cannot be written is fetched again. */
    if (t->parts && t->fd >= 0)
        save(t, t->parts, &ignored);
    while (t->parts) {
        struct part *p = t->parts;
        t->parts = p->next;
        free(p->bytes);
        free(p);
    }
    if (t->fd >= 0)
        close(t->fd);
    repository_unlock(t->lock_fd);
    t->fd = t->lock_fd = -1;
    free(t->path);
    t->path = NULL;
    str_free(&t->url);
    pthread_mutex_destroy(&t->lock);
}
