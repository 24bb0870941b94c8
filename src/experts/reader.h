/* reader.h - reads whole experts from disk into memory of the caller.
 *
 *   reader_start -> another thread fills request->dst -> reader_wait
 *
 * A request is the caller's memory. It must stay untouched until reader_wait returned for it or reader_cancel
 * dropped it. The reader does not care what dst is: a device slot, a host slot or staging memory.
 *
 * Large extents are read in pieces, so that several threads, or several commands of a disk, share one expert,
 * and a more urgent request does not wait long. What the page cache lacks is read by one large read instead,
 * which is faster. Disks that experts are spread over (model/spread.h) read at the same time.
 *
 * Every extent is read in full or the request fails. A read that fails is tried again, READER_RETRIES times.
 * Scales and biases are checked to be finite, so that bad bytes never reach a kernel. A failed request leaves
 * garbage in its own dst; the reader goes on. A direct read of an extent that is not at whole blocks of the
 * file system, in the file or in the slot, takes the blocks around it to memory of the reader's own, unless
 * it has them to itself in the slot (expert_places.h).
 *
 * Demanded requests precede speculative ones. A speculative part starts only if no demanded one waits or is
 * in flight. Only a few are in flight at once, so that the disk is soon free for a demanded one.
 * reader_demand and reader_wait make a request demanded.
 *
 * Locked inside: any thread may call, but only one at a time for a request. */
#ifndef MOEFLUX_EXPERTS_READER_H
#define MOEFLUX_EXPERTS_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "model/model.h"

struct node_shares;
struct reader;

enum reader_mode {
    /* If all experts fit in 3/4 of host_bytes: mmap if they are used in place, pread if they are copied (a
     * third of the time of mapping and copying). Else the first of direct, uring and pread that works. */
    READER_AUTO,
    /* Files are mapped, threads copy. A file that shrinks or cannot be read fails the request. Only a file
     * that is cut during a copy, in the microseconds after its pages were found good, ends the program by
     * SIGBUS. */
    READER_MMAP,
    READER_PREAD,  /* threads read through the page cache */
    READER_URING,  /* io_uring reads through the page cache */
    READER_DIRECT, /* O_DIRECT by io_uring, or by threads if io_uring is not available */
};
/* Direct reads need dst at a multiple of READER_TARGET_ALIGN, with room up to the next one after the
 * expert. */
enum { READER_TARGET_ALIGN = 4096, READER_DEFAULT_DEPTH = 32 };
/* Times that a read is tried again after an error. */
enum { READER_RETRIES = 2 };
/* The least bytes of a piece, except for the last of an extent: of direct reads; of reads through the page
 * cache, where a piece is one thread's copy. */
enum { READER_PIECE_BYTES = 512 << 10, READER_CACHED_PIECE_BYTES = 1 << 20, READER_MAX_PARTS = 32 };

/* "auto", "mmap", "pread", "uring" or "direct". */
const char *reader_mode_name(enum reader_mode mode);

struct read_request;

/* One piece of an extent that is queued or in flight. */
struct read_part {
    struct read_request *request;
    struct extent extent;
    uint8_t *staged; /* where it is read to, unless that is its place in the slot */
    uint32_t lead;   /* bytes of the file before the extent that are read, too: up to the start of a block */
    uint64_t n_done; /* bytes, with the lead */
    uint32_t n_stalls; /* consecutive EINTR and EAGAIN */
    uint32_t n_errors; /* other errors; after READER_RETRIES of them the next one fails the request */
    bool speculative;
    bool waits; /* it may wait for the disk, not only take what the page cache holds */
};

struct read_request {
    uint32_t layer, expert;
    uint8_t *dst;     /* [model_dir.experts[layer].bytes] */
    bool speculative; /* no caller waits for it yet; the reader clears it when one does */
    /* private */
    struct read_request *next, *prev;
    struct read_part parts[READER_MAX_PARTS];
    uint32_t n_parts, n_taken, n_open, n_copied;
    bool queued, done;
    int code;
    struct moeflux_err err;
};

/* A test's filter of what the system answers. Gets the result of a read of `part` to `dst`, bytes or -errno,
 * and returns the one that the reader shall see instead. Called from the reader's threads. */
struct reader_hook {
    int64_t (*result)(void *ctx, const struct read_part *part, uint8_t *dst, int64_t result);
    void *ctx;
};

struct reader_region { /* page-aligned */
    uint8_t *base;
    uint64_t bytes;
};

struct reader_options {
    enum reader_mode mode;
    /* threads of a disk, at least 1; used by mmap, pread, and direct without io_uring */
    uint32_t n_threads;
    uint32_t depth;       /* parts in flight with io_uring; 0: READER_DEFAULT_DEPTH per disk */
    uint32_t piece_bytes; /* a multiple of READER_TARGET_ALIGN; 0: the mode's own */
    uint64_t host_bytes;  /* auto: host memory available for mapped files */
    bool in_place;        /* auto: the mapped files will serve as slots */
    /* Files used in place: which NUMA node's threads read which rows of each matrix (exec_caps). NULL: all
     * the same. Must outlive the reader. */
    const struct node_shares *shares;
    /* The memory that contains every dst. It must stay until reader_close; the array need not. Opening may
     * overwrite the first page, to try a direct read. io_uring registers all of it if the system allows that
     * much locked memory. None: no try, no registration. */
    const struct reader_region *regions;
    uint32_t n_regions;
    const struct reader_hook *hook; /* NULL; outlives the reader */
    /* Called once, from a thread of the reader: a read failed and is tried again. */
    struct moeflux_warning warning;
};

/* The model directory must outlive the reader. ERR_UNSUPPORTED says why the requested mode is not available
 * (auto always finds one); ERR_IO; ERR_MEMORY. */
int reader_open(struct reader **out, const struct model_dir *m, const struct reader_options *o,
                struct moeflux_err *e);
/* Waits for reads in flight. NULL is legal. */
void reader_close(struct reader *r);

/* Returns the mode in use; never READER_AUTO. */
enum reader_mode reader_get_mode(const struct reader *r);
/* Returns one line: the mode in use and why, as "direct (io_uring, depth 32): 17.0 GiB of experts do not fit
 * in 3/4 of 23.4 GiB". Valid until reader_close. */
const char *reader_describe(const struct reader *r);

/* Returns the mapping of model.files[file], *bytes long; NULL in other modes than READER_MMAP, or for a file
 * without experts. A request whose dst is the expert's place in the mapping only loads the pages and checks
 * them. */
uint8_t *reader_mapping(const struct reader *r, uint32_t file, uint64_t *bytes);
/* Returns whether the page cache is expected to hold what is read: mode pread, and all experts fit as for
 * auto. */
bool reader_expects_cached(const struct reader *r);
/* Adds to reader_describe that experts are used in place, or (not NULL) why they are copied instead. */
void reader_note_use(struct reader *r, const char *why_copied);
/* Checks that nobody has written the experts' files since they were opened. ERR_IO. */
int reader_check_files(const struct reader *r, struct moeflux_err *e);

/* Queues a request whose first four members are filled in. */
void reader_start(struct reader *r, struct read_request *q);
/* Reads from the page cache take a processor, not a disk. A caller whose threads would only yield their
 * processors to the reader copies itself, instead of reader_start:
 *
 *   n = reader_split -> reader_copy of each i < n, in any threads -> reader_is_done, or reader_start
 *
 * reader_copy skips pieces that are not cached. reader_split takes a request whose first four members are
 * filled in; it returns 0 in modes other than pread, and for models whose bytes are rearranged. */
uint32_t reader_split(struct reader *r, struct read_request *q);
void reader_copy(struct reader *r, struct read_request *q, uint32_t i);
/* Returns whether reader_wait would return at once. */
bool reader_is_done(struct reader *r, struct read_request *q);
/* Waits until the request is finished. Returns 0, or ERR_IO or ERR_FORMAT naming layer, expert, file and
 * offset. */
int reader_wait(struct reader *r, struct read_request *q, struct moeflux_err *e);
/* Makes the request demanded, because a caller waits for it now. */
void reader_demand(struct reader *r, struct read_request *q);
enum reader_cancelled {
    READER_CANCELLED, /* nothing was started: the request is dropped, the caller must not wait for it */
    /* pieces are in flight: the caller must wait; reader_wait returns ERR_INTERRUPTED */
    READER_CUT_SHORT,
    READER_NOT_CANCELLED, /* all of it is in flight or finished */
};
/* Cancels the pieces of a request that were not started. */
enum reader_cancelled reader_cancel(struct reader *r, struct read_request *q);

struct reader_stats {
    uint64_t bytes, n_reads; /* complete experts */
    uint64_t n_failed, n_dropped;
    uint64_t n_promoted;         /* queued speculative requests that became demanded */
    uint64_t n_continued;        /* reads that were short or interrupted, and continued */
    uint64_t n_retried;          /* reads that failed and were tried again */
    uint64_t busy_ns;            /* time with at least one read in flight */
    uint64_t in_flight_ns;       /* sum over reads; in_flight_ns / busy_ns is the average queue depth */
    uint64_t n_parts, n_submits; /* pieces read; system calls that io_uring took for them */
};
struct reader_stats reader_get_stats(struct reader *r);
void reader_reset_stats(struct reader *r);

#endif
