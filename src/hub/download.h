/* download.h - fetches a list of files with several connections, into the cache. */
#ifndef MOEFLUX_HUB_DOWNLOAD_H
#define MOEFLUX_HUB_DOWNLOAD_H

#include <stdint.h>

#include "base/progress.h"
#include "hub/remote.h"

struct listing_file;
struct moeflux_err;
struct repository;

enum { DOWNLOAD_MAX_PARALLEL = 64 };

struct download_options {
    struct remote_host host;
    const char *name; /* the repository's, "ORG/NAME" */
    const struct repository *repository;
    const struct listing_file *const *files; /* [n_files] */
    uint32_t n_files;
    uint32_t parallel; /* connections */
    uint32_t tries;    /* without a new byte, before a file fails */
    struct moeflux_progress progress;
    void (*tell)(void *ctx, const char *text); /* what the user waits for; on the caller's thread */
    void *ctx;
};

/* Fetches the files that are not in the cache, and links all of them. done_bytes: those that are there at the
 * end, earlier ones included; bytes with several names count once. ERR_INTERRUPTED: the progress function
 * said so. After a failure too, what has come is kept, and another call goes on after it. ERR_IO,
 * ERR_FORMAT, ERR_MEMORY name the file. */
int download_run(const struct download_options *o, uint64_t *done_bytes, struct moeflux_err *e);

/* Reads a whole reply of the endpoint into `out`, with at most five tries. path: "/api/...". The status of
 * HTTP is in `reply`, which the caller frees. ERR_IO: no connection, or no tries are left. */
int download_text(const struct download_options *o, const char *path, struct str *out,
                  struct remote_reply *reply, struct moeflux_err *e);

#endif
