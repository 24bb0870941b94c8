/* transfer.h - a file that is being fetched. Parts of it arrive in any order; its bytes are written and
 * summed in theirs, so that BLOB.incomplete always has the first bytes of the file and another run goes on
 * after them.
 *
 *   transfer_begin -> transfer_add_part, transfer_take, transfer_end_part -> transfer_finish
 *       -> transfer_close
 *
 * Parts may be filled by several threads at the same time. */
#ifndef MOEFLUX_HUB_TRANSFER_H
#define MOEFLUX_HUB_TRANSFER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "hub/digest.h"

struct listing_file;
struct moeflux_err;
struct repository;
struct stop;

/* A range of bytes that one thread fetches. */
struct part {
    struct transfer *file;
    uint64_t from, to; /* offsets in the file */
    uint64_t got;      /* offset of the first byte that has not come */
    uint64_t saved;    /* offset of the first byte that is not in the file */
    char *bytes;       /* [capacity]: those from `saved` to `got` */
    uint64_t capacity;
    bool ended;        /* its thread has done with it */
    struct part *next; /* the file's order */
};

struct transfer {
    const struct repository *repository;
    const struct listing_file *file;
    int fd, lock_fd;      /* -1: none */
    char *path;           /* BLOB.incomplete, owned */
    pthread_mutex_t lock; /* guards everything that follows */
    struct digest digest;
    uint64_t written;   /* bytes in the file */
    uint64_t next;      /* offset of the first byte that no part has */
    struct part *parts; /* that are not whole in the file */
    bool no_ranges;     /* the server sends whole files only */
    struct str url;     /* where the endpoint redirected to; empty: nowhere */
    char etag[160];     /* the tag of that place; "": none */
};

/* Locks the blob, and opens and sums the part of it that is there. done: counts its bytes. Returns 0; 1: the
 * blob is whole. ERR_UNSUPPORTED: another program fetches it; ERR_INTERRUPTED: `stop` is set;
 * ERR_IO, ERR_MEMORY. transfer_close is legal after a failure, too. */
int transfer_begin(struct transfer *t, const struct repository *r, const struct listing_file *f,
                   atomic_uint_fast64_t *done, const struct stop *stop, struct moeflux_err *e);

/* Returns whether a part can begin now: bytes are left that no part has, and the server sends ranges or
 * no other part is there. first: whether that part would be the file's first. */
bool transfer_can_add(struct transfer *t, bool *first);
/* Begins the next part, of `most` bytes; the whole rest if the server sends no ranges. *out: NULL if none can
 * begin any more (transfer_can_add). ERR_MEMORY. */
int transfer_add_part(struct transfer *t, uint64_t most, struct part **out, struct moeflux_err *e);

/* Takes the next bytes of a part; what exceeds its end is ignored. Writes them if the part is the first.
 * ERR_IO names the file. */
int transfer_take(struct part *p, const char *bytes, size_t n, struct moeflux_err *e);
/* Writes the rest of a whole part when its turn has come, and those after it. Returns 1 if the file is
 * whole, else 0. The part is the transfer's from here on; *n_freed: parts that left memory. ERR_IO. */
int transfer_end_part(struct part *p, uint32_t *n_freed, struct moeflux_err *e);

/* Checks the sum of a whole file, and gives it its name and its link. A file with another sum is removed.
 * ERR_FORMAT: the sum; ERR_IO, ERR_MEMORY. */
int transfer_finish(struct transfer *t, struct moeflux_err *e);

/* Writes what the first part has, and closes the file. Nobody else may use it now. */
void transfer_close(struct transfer *t);

#endif
