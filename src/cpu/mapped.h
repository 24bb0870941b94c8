/* mapped.h - the bytes of a regular file, mapped read-only and shared with all programs that read it.
 *
 * Beyond the end of its file a mapping has no bytes: who touches a page there is ended by SIGBUS. So a file
 * that others may cut is looked at again before its bytes are used (mapped_check). */
#ifndef MOEFLUX_CPU_MAPPED_H
#define MOEFLUX_CPU_MAPPED_H

#include <stdint.h>

struct moeflux_err;
struct node_shares;

struct mapped {
    uint8_t *at;          /* page-aligned; NULL: not open */
    uint64_t bytes, page; /* page: of the system's memory */
    int fd;               /* borrowed */
    const char *path;     /* borrowed */
};

/* Maps the first `bytes` of the file, at least 1. Descriptor and path must stay until mapped_close.
 * ERR_UNSUPPORTED: it cannot be mapped, or the system is older than Linux 5.14, where mapped_fetch is not
 * possible. */
int mapped_open(struct mapped *m, int fd, const char *path, uint64_t bytes, struct moeflux_err *e);
/* One that is not open is legal. */
void mapped_close(struct mapped *m);

/* How many of the n bytes at `off` the file has now, from the first on, or -errno. */
int64_t mapped_there(const struct mapped *m, uint64_t off, uint64_t n);
/* Brings bytes [off, off + n) into memory, from the disk if they are not there yet. Returns as mapped_there.
 * */
int64_t mapped_fetch(const struct mapped *m, uint64_t off, uint64_t n);
/* Brings bytes [off, off + n) into memory, each node's share of them (cpu/nodes.h) into its own as far as
 * they were not in the page cache. What fails is mapped_fetch's to say. NULL: brings nothing. */
void mapped_fetch_by_node(const struct mapped *m, uint64_t off, uint64_t n, const struct node_shares *s);
/* The process maps [off, off + n) no more until somebody touches it again. The page cache keeps it. */
void mapped_drop(const struct mapped *m, uint64_t off, uint64_t n);

/* Whether the file is as long as it was at open. ERR_IO names it. */
int mapped_check(const struct mapped *m, struct moeflux_err *e);

#endif
