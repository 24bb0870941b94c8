/* jobs.h - the queue of a pool's jobs, and the pieces of each answer so far. Whoever wants answers makes a
 * job and adds it; a worker (workers.h) takes it and computes it.
 *
 *   jobs_add -> WAITING -> jobs_take -> RUNNING -> jobs_finish -> DONE -> jobs_release
 *                       <-     jobs_put_back   <-
 *
 * Locked: any thread may call. A wait of UINT32_MAX ms has no end. */
#ifndef MOEFLUX_GENERATE_JOBS_H
#define MOEFLUX_GENERATE_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "generate/choice.h"
#include "moeflux_chat.h"

struct job_piece;

static const uint32_t JOBS_NO_COPY = UINT32_MAX;

enum job_state { JOB_NEW, JOB_WAITING, JOB_RUNNING, JOB_DONE };

struct moeflux_job { /* made by jobs_new, freed with jobs_release */
    /* [n], computed by one worker, one after the other up to the first that fails. The choices are those of
     * the requests. The owner writes them until the job is added; the worker writes their scores and results
     * while the job is RUNNING. */
    struct choice **choices;
    uint32_t n;
    uint32_t at; /* while RUNNING: the current choice */
    struct moeflux_job_options options;
    struct moeflux_pool *pool;       /* NULL: none */
    bool is_added;                   /* the pool has it */
    bool is_held;                    /* queue.h; the pool's lock protects it */
    struct moeflux_answer **answers; /* [n], for moeflux_job_take; NULL: they are not kept */

    /* The group whose copy of the model holds the state of the prompt's beginning; JOBS_NO_COPY: none. Set
     * before the job is added. */
    uint32_t copy;

    atomic_bool cancelled; /* nobody waits for it any more */

    /* Private to the queues. */
    pthread_cond_t changed;
    enum job_state state;     /* protected by the lock of `jobs` */
    bool was_alone;           /* no other job ran while it did */
    bool lacked_memory;       /* an attempt found too little; the worker writes it while the job is RUNNING */
    uint32_t group;           /* while RUNNING: the group of its worker */
    uint64_t since;           /* queue.n_chosen when it was held */
    uint64_t call;            /* number of the jobs_add that added it */
    struct moeflux_job *next; /* the next one that is held, that waits or that runs */
    struct job_piece *first, *last;
};

/* The workers of one copy of the model. A job goes to the copy that has its prompt if a worker there is not
 * busy and at most one more job runs there than elsewhere; otherwise to the group with the fewest running
 * jobs. */
struct jobs_group {
    uint32_t n_workers, n_idle, n_running;
};

struct jobs {
    pthread_mutex_t lock;
    struct jobs_group groups[MOEFLUX_MAX_DEVICES];
    pthread_cond_t more;
    struct moeflux_job *first, *last; /* those that wait */
    struct moeflux_job *running;
    uint32_t n_waiting, n_running, most_waiting;
    uint32_t most_running; /* more did not fit in memory (jobs_put_back) */
    uint32_t n_fitted;     /* jobs that have ended since most_running changed */
    uint64_t n_ended;      /* jobs that were finished so far */
    uint64_t n_calls;      /* calls of jobs_add that have added jobs */
    bool is_paused;        /* no job is taken */
    const char *closed;    /* why no job is taken any more; NULL: some are */
};

/* Makes an empty queue. most_waiting: limit of requests that wait; the jobs that one jobs_add adds, which
 * have one priority, are a request. UINT32_MAX: none. ERR_MEMORY. */
int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e);
/* Frees the queue. A zeroed one is legal. */
void jobs_free(struct jobs *q);

/* Creates a job for n choices, which the caller sets. NULL with `e` filled. */
struct moeflux_job *jobs_new(uint32_t n, struct moeflux_err *e);

/* Adds n jobs, all or none. ERR_NO_FIT: too many requests wait. ERR_INTERRUPTED: the queue is closed. */
int jobs_add(struct jobs *q, struct moeflux_job *const *list, size_t n, struct moeflux_err *e);

/* Returns the length of the longest common prefix that the prompt of a running job has with another one that
 * waits or runs, of those that differ before its end. */
uint32_t jobs_common(struct jobs *q, const struct moeflux_job *j);

/* Registers a worker of a group (< MOEFLUX_MAX_DEVICES), before any job is added. */
void jobs_add_worker(struct jobs *q, uint32_t group);
/* Waits for the next job of a worker of this group (< MOEFLUX_MAX_DEVICES). NULL: the queue is closed or
 * paused. */
struct moeflux_job *jobs_take(struct jobs *q, uint32_t group);
/* Keeps a piece for jobs_read. ERR_MEMORY. */
int jobs_give(struct jobs *q, struct moeflux_job *j, const struct moeflux_piece *p, struct moeflux_err *e);
/* Ends a job whose results are filled. */
void jobs_finish(struct jobs *q, struct moeflux_job *j);
/* Puts a running job that found too little memory in front of those that wait, drops its pieces, and lowers
 * the number of jobs that may run to those that do now, at least one. One more may run each time as many jobs
 * have ended as may run. freed: the caller has freed some. False: none was, and no other job ran at any time.
 * It would find no more the next time, and is still running. A job with lacked_memory leaves nothing that can
 * be freed, so one that never fits is not put back without end. */
bool jobs_put_back(struct jobs *q, struct moeflux_job *j, bool freed);

/* Returns the result of the choice that failed, or else of the last one. The job is DONE. */
const struct choice_result *jobs_result(const struct moeflux_job *j);
/* Waits up to `ms` until q->n_ended is not `seen` any more; returns it. */
uint64_t jobs_await(struct jobs *q, uint64_t seen, uint32_t ms);

/* Waits up to `ms` until the job is done; returns whether it is. */
bool jobs_wait(struct jobs *q, struct moeflux_job *j, uint32_t ms);
/* Does the work of moeflux_job_read. */
bool jobs_read(struct jobs *q, struct moeflux_job *j, uint32_t ms,
               void (*take)(void *ctx, uint32_t idx, const struct moeflux_piece *p), void *ctx);

/* Cancels a job, waits until no worker has it, and frees it. NULL is legal. */
void jobs_release(struct jobs *q, struct moeflux_job *j);

/* Closes the queue: waiting jobs fail with ERR_INTERRUPTED and the text `why` (static), workers get NULL. */
void jobs_close(struct jobs *q, const char *why);
/* Ends a job that does not wait and does not run in this way. */
void jobs_fail(struct jobs *q, struct moeflux_job *j, const char *why);
/* Pauses the queue: workers get NULL, jobs wait. Resuming lets workers take jobs again. */
void jobs_pause(struct jobs *q);
void jobs_resume(struct jobs *q);
/* Waits up to `ms` until no job runs; returns whether that is so. */
bool jobs_drained(struct jobs *q, uint32_t ms);

void jobs_count(struct jobs *q, uint32_t *n_waiting, uint32_t *n_running);

#endif
