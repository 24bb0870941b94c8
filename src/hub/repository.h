/* repository.h - a repository in the cache of Hugging Face's tools:
 *
 *   CACHE/models--ORG--NAME/blobs/DIGEST             a file's bytes; DIGEST.incomplete: the first of them
 *   CACHE/models--ORG--NAME/snapshots/COMMIT/FILE    a relative link to a blob
 *   CACHE/models--ORG--NAME/refs/REVISION            the commit that a name stood for last
 *   CACHE/.locks/models--ORG--NAME/DIGEST.lock       locked (flock) while a blob is written
 *
 * Those tools take the same locks, and every file appears by a rename. */
#ifndef MOEFLUX_HUB_REPOSITORY_H
#define MOEFLUX_HUB_REPOSITORY_H

#include <stdbool.h>
#include <stdint.h>

struct listing_file;
struct moeflux_err;

struct repository {
    char *cache, *dir, *blobs, *locks; /* owned */
    char *snapshot;                    /* owned; NULL before repository_set_commit */
    char commit[64];
};

/* Names the directories; makes none. folder: "models--ORG--NAME". ERR_MEMORY. repository_free is legal after
 * a failure, too. */
int repository_open(struct repository *r, const char *cache, const char *folder, struct moeflux_err *e);
int repository_set_commit(struct repository *r, const char *commit, struct moeflux_err *e);
void repository_free(struct repository *r);

/* Makes the directories. ERR_IO. */
int repository_make(const struct repository *r, struct moeflux_err *e);

/* Returns the path of a file's blob, with an ending; the caller frees it. NULL with `e` filled. */
char *repository_blob(const struct repository *r, const struct listing_file *f, const char *ending,
                      struct moeflux_err *e);
/* Whether the blob is there in its whole size. */
bool repository_has(const struct repository *r, const struct listing_file *f);
/* Returns the bytes of the file that are there, whole or in part. */
uint64_t repository_count(const struct repository *r, const struct listing_file *f);

/* Locks a blob. Returns the descriptor, which repository_unlock closes. ERR_UNSUPPORTED: another program
 * has the lock; ERR_IO, ERR_MEMORY. */
int repository_lock(const struct repository *r, const struct listing_file *f, struct moeflux_err *e);
void repository_unlock(int fd);

/* Links a file of the snapshot to its blob. ERR_IO, ERR_MEMORY. */
int repository_link(const struct repository *r, const struct listing_file *f, struct moeflux_err *e);

/* Notes that the revision is the commit. ERR_IO, ERR_MEMORY. */
int repository_set_ref(const struct repository *r, const char *revision, struct moeflux_err *e);

/* Returns the bytes that the user may write to the cache's disk; UINT64_MAX: unknown. */
uint64_t repository_room(const struct repository *r);

#endif
