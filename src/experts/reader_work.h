/* reader_work.h - the reads that wait, what to ask the system for, and what its answer means: shared by the
 * threads (reader_pool) and the ring (reader_ring) that carry reads out.
 *
 *   reader_work_take -> a part -> { reader_work_next_read -> the system reads -> reader_work_finish_read }
 * until it returns false Each part is checked when it has come; the last one to end publishes the request. */
#ifndef MOEFLUX_EXPERTS_READER_WORK_H
#define MOEFLUX_EXPERTS_READER_WORK_H

#include <pthread.h>

#include "experts/reader.h"
#include "experts/reader_files.h"

struct read_list {
    struct read_request *first, *last;
};

struct reader_work {
    const struct model_dir *model;
    const struct reader_hook *hook;
    struct reader_files files;
    uint32_t depth;       /* parts in flight at once */
    uint64_t piece_bytes; /* of a part, but for the last of an extent */
    pthread_mutex_t lock; /* all below, and the private members of requests */
    pthread_cond_t more, finished;
    struct read_list demanded, speculative;
    uint32_t n_in_flight, n_in_flight_speculative;
    bool stopping;
    int wake_fd;    /* an eventfd that is told of new work; -1: `more` alone is */
    bool is_asleep; /* whoever reads wake_fd waits for it */
    struct reader_stats stats;
    uint64_t counted_ns; /* until when busy_ns and in_flight_ns are summed */
};

void reader_work_init(struct reader_work *w, const struct model_dir *m, const struct reader_hook *hook);
/* Nothing may be queued or flying. */
void reader_work_free(struct reader_work *w);

void reader_work_add(struct reader_work *w, struct read_request *q);
/* reader_split and reader_copy, of files that are read through the page cache. */
uint32_t reader_work_split(struct reader_work *w, struct read_request *q);
void reader_work_copy(struct reader_work *w, struct read_request *q, uint32_t i);
enum reader_cancelled reader_work_cancel(struct reader_work *w, struct read_request *q);
void reader_work_demand(struct reader_work *w, struct read_request *q);
/* Blocks until the request is done; makes it demanded. */
void reader_work_wait(struct reader_work *w, struct read_request *q);
/* From now on reader_work_take ends when nothing is queued. */
void reader_work_stop(struct reader_work *w);

/* Waits for a part that may be read now. NULL: reader_work_stop was called and nothing is queued. */
struct read_part *reader_work_take(struct reader_work *w);
/* Never waits. NULL: none may be read now; reader_work_add and reader_work_stop will write to wake_fd. *over:
 * there will be none, and none flies. */
struct read_part *reader_work_take_or_sleep(struct reader_work *w, bool *over);

/* A system call brought parts on their way. */
void reader_work_count_submit(struct reader_work *w);

/* What is missing of the part: n > 0 bytes. */
struct file_read reader_work_next_read(const struct reader_work *w, const struct read_part *p);

/* Whether the part is tried without waiting first (RWF_NOWAIT): through the page cache, from which pieces
 * come side by side. */
bool reader_work_tries_cached(const struct reader_work *w, const struct read_part *p);
/* The page cache lacks bytes of the part: from now on it waits, and it takes over the pieces behind it that
 * nobody has begun. */
void reader_work_take_over(struct reader_work *w, struct read_part *p);

/* `result`: bytes read, or -errno. True: the part goes on with reader_work_next_read. False: it has ended,
 * well or not. */
bool reader_work_finish_read(struct reader_work *w, struct read_part *p, int64_t result);
/* Ends a part that cannot be read, because of an errno. */
void reader_work_fail(struct reader_work *w, struct read_part *p, int number);

#endif
