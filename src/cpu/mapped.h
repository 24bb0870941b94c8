/* mapped.h - the bytes of a regular file, mapped read-only and shared with all programs that read it.
 *
 * Past the end of its file a mapping has no bytes: touching a page there raises SIGBUS. A file that others
 * truncate is noticed by a check before its bytes are used (open_file_check). For one that is truncated
 * while they are used, the program's handler of SIGBUS calls mapped_repair; then the check is made again
 * afterwards. */
#ifndef MOEFLUX_CPU_MAPPED_H
#define MOEFLUX_CPU_MAPPED_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct node_shares;

struct mapped {
    uint8_t *at;          /* page-aligned; NULL: not open */
    uint64_t bytes, page; /* page: bytes of the system's memory page */
    int fd;               /* borrowed */
    const char *path;     /* borrowed */
};

/* Maps the first `bytes` of the file, at least 1. Descriptor and path must stay valid until mapped_close.
 * ERR_UNSUPPORTED: the file cannot be mapped, or the system is older than Linux 5.14, which mapped_fetch
 * needs. */
int mapped_open(struct mapped *m, int fd, const char *path, uint64_t bytes, struct moeflux_err *e);
/* Unmaps the file; m may not be open. */
void mapped_close(struct mapped *m);

/* Returns how many of the n bytes at `off` the file has now, counted from the first, or -errno. */
int64_t mapped_there(const struct mapped *m, uint64_t off, uint64_t n);
/* Brings bytes [off, off + n) into memory, from the disk if necessary. Returns the same as mapped_there. */
int64_t mapped_fetch(const struct mapped *m, uint64_t off, uint64_t n);
/* Brings bytes [off, off + n) into memory. If they were not in the page cache, each node's share of them
 * (cpu/nodes.h) goes to the node's own memory. Errors are left to mapped_fetch. NULL: does nothing. */
void mapped_fetch_by_node(const struct mapped *m, uint64_t off, uint64_t n, const struct node_shares *s);
/* Unmaps [off, off + n) from the process until it is touched again. The page cache keeps it. */
void mapped_drop(const struct mapped *m, uint64_t off, uint64_t n);

/* Puts a page of zeros where a fault was, if the address is in a mapping. False: it is not. May be called
 * by a signal handler. */
bool mapped_repair(const void *address);
/* Returns how many pages were repaired since the program began. */
uint64_t mapped_n_repaired(void);

#endif
