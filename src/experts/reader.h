/* reader.h - brings whole experts from disk into memory of the caller's.
 * Of experts that are spread over several disks (model/spread.h) all disks are read at once, in turn.
 *
 *   reader_start -> the bytes arrive in request->dst from another thread -> reader_wait A request is the
 * caller's memory and stays untouched until reader_wait returned for it or reader_cancel dropped it. Large
 * extents are read in pieces, so that several threads, or several commands of a disk, share one expert, and a
 * more urgent request does not wait long. But what the page cache lacks it gets by one large read, which is
 * faster than several. Every extent is read in full or the request fails; scales and biases are checked to be
 * finite, so bad bytes never reach a kernel. A failed request leaves garbage in its own dst; the reader goes
 * on.
 *
 * The reader does not know what dst is: a device slot, a host slot, or staging memory.
 *
 * Demanded requests go before speculative ones. A speculative part starts only if no demanded one waits or is
 * in flight, and few are in flight at once, so that the disk is soon free for a demanded one. reader_demand
 * and reader_wait make a request demanded.
 *
 * Locked inside: any thread may call, one at a time for a request. */
#ifndef MOEFLUX_EXPERTS_READER_H
#define MOEFLUX_EXPERTS_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"

struct node_shares;
struct reader;

enum reader_mode {
    /* Where all experts fit in 3/4 of host_bytes mmap for those that are used in place, pread for those that
     * are copied (from the page cache it takes a third of the time that mapping and copying takes). Else
     * direct, uring, pread: the first that works. */
    READER_AUTO,
    /* Files are mapped, threads copy. A file that shrinks or cannot be read fails the request; only one that
     * is cut in the microseconds of a copy, after its pages were found good, ends the program by SIGBUS. */
    READER_MMAP,
    READER_PREAD,  /* threads read through the page cache */
    READER_URING,  /* io_uring reads through the page cache */
    READER_DIRECT, /* O_DIRECT, by io_uring, or by threads where that is forbidden */
};
/* Direct reads need dst at a multiple of READER_TARGET_ALIGN, with room up to the next one after the expert.
 * They are possible where every extent begins, in file and slot, at a block of the file system (512 or 4096
 * bytes), and ends at one too unless it is the expert's last. */
enum { READER_TARGET_ALIGN = 4096, READER_DEFAULT_DEPTH = 32 };
/* Pieces of at least so many bytes, but for the last of an extent: of direct reads, and of those through the
 * page cache, where a piece is one thread's copy. */
enum { READER_PIECE_BYTES = 512 << 10, READER_CACHED_PIECE_BYTES = 1 << 20, READER_MAX_PARTS = 24 };

/* "auto", "mmap", "pread", "uring" or "direct". */
const char *reader_mode_name(enum reader_mode mode);

struct read_request;

/* One piece of an extent on its way. */
struct read_part {
    struct read_request *request;
    struct extent extent;
    uint64_t n_done;
    uint32_t n_stalls; /* EINTR and EAGAIN in a row */
    bool speculative;
    bool waits; /* for the disk: not only for what the page cache holds */
};

struct read_request {
    uint32_t layer, expert;
    uint8_t *dst;     /* [model_dir.experts[layer].bytes] */
    bool speculative; /* nobody waits for it yet; the reader clears it when somebody does */
    /* private */
    struct read_request *next, *prev;
    struct read_part parts[READER_MAX_PARTS];
    uint32_t n_parts, n_taken, n_open, n_copied;
    bool queued, done;
    int code;
    struct moeflux_err err;
};

/* For tests: stands between the system and the reader. Gets the bytes that a read of `part` brought to `dst`,
 * or -errno, and returns what the reader is to see instead. Called from the reader's threads. */
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
    uint32_t n_threads;   /* of mmap, pread and of direct without io_uring, for each disk; at least 1 */
    uint32_t depth;       /* parts in flight at once with io_uring; 0: READER_DEFAULT_DEPTH for each disk */
    uint32_t piece_bytes; /* multiples of READER_TARGET_ALIGN; 0: the mode's own */
    uint64_t host_bytes;  /* host memory there is for mapped files; for auto */
    bool in_place;        /* the mapped files are to be used where they lie; for auto */
    /* Of files used in place: whose threads read which rows of each matrix (exec_caps). Outlives the reader.
     * NULL: no matter */
    const struct node_shares *shares;
    /* The memory that requests' dst will lie in; it must stay until reader_close, the array need not. Open
     * may overwrite the first page, to try whether direct reads work there. io_uring registers all of it
     * where the system allows so much locked memory. None: not tried, not registered. */
    const struct reader_region *regions;
    uint32_t n_regions;
    const struct reader_hook *hook; /* NULL; outlives the reader */
};

/* The model directory must outlive the reader. ERR_UNSUPPORTED: the mode that was asked for cannot be had,
 * and why (auto always finds one); ERR_IO; ERR_MEMORY. */
int reader_open(struct reader **out, const struct model_dir *m, const struct reader_options *o,
                struct moeflux_err *e);
/* Waits for what is under way. NULL is legal. */
void reader_close(struct reader *r);

/* The mode in use; never READER_AUTO. */
enum reader_mode reader_get_mode(const struct reader *r);
/* One line: the mode in use and why, as "direct (io_uring, depth 32): 17.0 GiB of experts do not fit in 3/4
 * of 23.4 GiB". Good until reader_close. */
const char *reader_describe(const struct reader *r);

/* For READER_MMAP: the mapping of model.files[file], *bytes long; NULL in other modes, or of a file without
 * experts. A request whose dst is the expert's place in the mapping only brings the pages in and checks them.
 * */
uint8_t *reader_mapping(const struct reader *r, uint32_t file, uint64_t *bytes);
/* Whether the page cache is expected to hold what is read: mode pread, and all experts fit as for auto. */
bool reader_expects_cached(const struct reader *r);
/* Says in reader_describe that experts are used where they are mapped, or (not NULL) why they are copied
 * instead. */
void reader_note_use(struct reader *r, const char *why_copied);
/* Whether the mapped files are as long as they were at open: beyond its end a mapped file has no bytes.
 * ERR_IO. */
int reader_check_mappings(const struct reader *r, struct moeflux_err *e);

/* Queues a request whose first four members are filled in. */
void reader_start(struct reader *r, struct read_request *q);
/* What the page cache holds is read at the cost of a processor, without a disk. A caller whose threads would
 * only leave their processors to the reader's reads that itself, instead of reader_start:
 *     n = reader_split -> reader_copy of each i < n, in any threads, as far as it is cached ->
 * reader_is_done, or reader_start reader_split: of a request whose first four members are filled in; 0 in
 * modes other than pread. */
uint32_t reader_split(struct reader *r, struct read_request *q);
void reader_copy(struct reader *r, struct read_request *q, uint32_t i);
/* Whether reader_wait would return at once. */
bool reader_is_done(struct reader *r, struct read_request *q);
/* Returns when the request is finished: 0, ERR_IO or ERR_FORMAT naming layer, expert, file and offset. */
int reader_wait(struct reader *r, struct read_request *q, struct moeflux_err *e);
/* Somebody waits for it now. */
void reader_demand(struct reader *r, struct read_request *q);
/* Takes back what was not started yet of a request. */
enum reader_cancelled {
    READER_CANCELLED,     /* it is dropped and not to be waited for */
    READER_CUT_SHORT,     /* its pieces in flight are to be waited for; reader_wait says ERR_INTERRUPTED */
    READER_NOT_CANCELLED, /* all of it is in flight or over */
};
enum reader_cancelled reader_cancel(struct reader *r, struct read_request *q);

struct reader_stats {
    uint64_t bytes, n_reads; /* experts that arrived */
    uint64_t n_failed, n_dropped;
    uint64_t n_promoted;         /* speculative requests that were waited for while they were queued */
    uint64_t n_continued;        /* reads that came short or were interrupted, and went on */
    uint64_t busy_ns;            /* time with a read in flight */
    uint64_t in_flight_ns;       /* summed over reads: in_flight_ns / busy_ns is the average queue depth */
    uint64_t n_parts, n_submits; /* pieces read; system calls that io_uring took for them */
};
struct reader_stats reader_get_stats(struct reader *r);
void reader_reset_stats(struct reader *r);

#endif
