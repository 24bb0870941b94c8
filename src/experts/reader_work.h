/* reader_work.h - the queue of reads, which threads (reader_pool) or a ring (reader_ring) carry out.
 *
 *   reader_work_take -> a part -> { reader_work_next_read -> the system reads -> reader_work_finish_read }
 *   until the last returns false
 *
 * Each part is checked when it is complete. The last part to end finishes its request. */
#ifndef MOEFLUX_EXPERTS_READER_WORK_H
#define MOEFLUX_EXPERTS_READER_WORK_H

#include <pthread.h>

#include "experts/reader.h"
#include "experts/reader_files.h"
#include "experts/staging.h"

struct read_list {
    struct read_request *first, *last;
};

struct reader_work {
    const struct model_dir *model;
    const struct reader_hook *hook;
    struct moeflux_warning warning;
    struct reader_files files;
    uint32_t depth;         /* parts in flight at once */
    uint64_t piece_bytes;   /* size of a part, except for the last of an extent */
    struct staging staging; /* buffers of parts that are not read to their places */
    pthread_mutex_t lock;   /* guards all below and the private members of requests */
    pthread_cond_t more, finished;
    struct read_list demanded, speculative;
    uint32_t n_in_flight, n_in_flight_speculative;
    bool stopping;
    int wake_fd;    /* an eventfd that is written when there is new work; -1: only `more` is signalled */
    bool is_asleep; /* the reader of wake_fd waits for it */
    struct reader_stats stats;
    bool has_warned;     /* the warning was given */
    uint64_t counted_ns; /* time up to which busy_ns and in_flight_ns are summed */
};

void reader_work_init(struct reader_work *w, const struct model_dir *m, const struct reader_hook *hook);
/* Nothing may be queued or in flight. */
void reader_work_free(struct reader_work *w);

void reader_work_add(struct reader_work *w, struct read_request *q);
/* Implement reader_split and reader_copy for files that are read through the page cache. */
uint32_t reader_work_split(struct reader_work *w, struct read_request *q);
void reader_work_copy(struct reader_work *w, struct read_request *q, uint32_t i);
enum reader_cancelled reader_work_cancel(struct reader_work *w, struct read_request *q);
void reader_work_demand(struct reader_work *w, struct read_request *q);
/* Makes the request demanded and waits until it is finished. */
void reader_work_wait(struct reader_work *w, struct read_request *q);
/* Makes reader_work_take end when nothing is queued. */
void reader_work_stop(struct reader_work *w);

/* Waits for a part that may be read now. NULL: reader_work_stop was called and nothing is queued. */
struct read_part *reader_work_take(struct reader_work *w);
/* Takes a part without waiting. NULL: none may be read now; reader_work_add and reader_work_stop will write
 * to wake_fd. *over: none will come, and none is in flight. */
struct read_part *reader_work_take_or_sleep(struct reader_work *w, bool *over);

/* Counts a system call that submitted parts. */
void reader_work_count_submit(struct reader_work *w);

/* Returns the read of the part's missing bytes, n > 0. */
struct file_read reader_work_next_read(const struct reader_work *w, const struct read_part *p);

/* Returns whether the part is first read without waiting (RWF_NOWAIT): reads through the page cache, where
 * threads copy pieces in parallel. */
bool reader_work_tries_cached(const struct reader_work *w, const struct read_part *p);
/* Makes a part whose bytes the page cache lacks wait for the disk. It takes over the pieces that follow it
 * and have not begun. */
void reader_work_take_over(struct reader_work *w, struct read_part *p);

/* Takes the result of a read: bytes, or -errno. Returns true if the part continues with
 * reader_work_next_read, false if it has ended, successfully or not. */
bool reader_work_finish_read(struct reader_work *w, struct read_part *p, int64_t result);
/* Ends a part whose read failed with an errno. */
void reader_work_fail(struct reader_work *w, struct read_part *p, int number);

#endif
