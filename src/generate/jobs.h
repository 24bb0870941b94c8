/* jobs.h - the queue of choices to compute, and the pieces of each answer so far. Whoever wants answers makes
 * a job and adds it; a worker (workers.h) takes it and computes it.
 *
 *   jobs_add -> WAITING -> jobs_take -> RUNNING -> jobs_finish -> DONE -> jobs_release
 *                       <-     jobs_put_back   <-
 *
 * Locked: any thread may call. */
#ifndef MOEFLUX_GENERATE_JOBS_H
#define MOEFLUX_GENERATE_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "generate/answer.h"
#include "generate/choice.h"

/* A copy of a struct answer_piece. */
struct job_piece {
    struct job_piece *next;
    struct answer_piece piece;        /* points to the members below */
    struct answer_call call;          /* set in ANSWER_CALL_BEGINS, without arguments */
    struct moeflux_logprob *logprobs; /* [1 + n_top]; NULL: none */
    char text[];
};

static const uint32_t JOBS_NO_COPY = UINT32_MAX;

enum job_state { JOB_NEW, JOB_WAITING, JOB_RUNNING, JOB_DONE };

struct job;

/* What the owner of a job does on the worker's thread. */
struct job_calls {
    /* Discards what an earlier attempt has left; NULL: there is nothing. */
    int (*begin)(struct job *j, struct moeflux_err *e);
    /* Takes a piece of the answer to j->choices[j->at], as a sink does. */
    int (*piece)(struct job *j, const struct answer_piece *p, struct moeflux_err *e);
    /* Takes the answer to that choice, whose result is filled; it may replace a result of 0 by a failure. */
    void (*ended)(struct job *j, const struct moeflux_answer_info *a);
};

struct job { /* freed with jobs_release */
    /* [n], computed by one worker, one after the other up to the first that fails. Borrowed. The owner writes
     * them until the job is added; the worker writes their scores and results while the job is RUNNING. */
    struct choice *choices;
    uint32_t n;
    uint32_t at; /* while RUNNING: the current choice */
    const struct job_calls *calls;
    void *owner; /* the caller's */

    /* The group whose copy of the model holds the state of the prompt's beginning; JOBS_NO_COPY: none. Set
     * before the job is added. */
    uint32_t copy;

    /* Waiting jobs with the lowest number are taken first. Set before the job is added. */
    int32_t priority;

    atomic_bool cancelled; /* nobody waits for it any more */
    uint64_t added_ns;

    /* Private to the queue. */
    pthread_cond_t changed;
    enum job_state state;
    bool was_alone;   /* no other job ran while it did */
    uint32_t group;   /* while RUNNING: the group of its worker */
    struct job *next; /* the next one that waits, or that runs */
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
    struct job *first, *last; /* those that wait */
    struct job *running;
    uint32_t n_waiting, n_running, most_waiting;
    uint32_t most_running; /* more did not fit in memory (jobs_put_back) */
    uint32_t n_fitted;     /* jobs that have ended since most_running changed */
    uint64_t n_ended;      /* jobs that were finished so far */
    bool is_paused;        /* no job is taken */
    const char *closed;    /* why no job is taken any more; NULL: some are */
};

/* Makes an empty queue. most_waiting: limit of jobs that wait for a worker. ERR_MEMORY. */
int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e);
/* Frees the queue. A zeroed one is legal. */
void jobs_free(struct jobs *q);

/* Creates a job for n choices; calls: static. NULL with `e` filled. */
struct job *jobs_new(struct choice *choices, uint32_t n, const struct job_calls *calls, void *owner,
                     struct moeflux_err *e);

/* Adds n jobs, all or none. ERR_NO_FIT: too many are waiting. ERR_INTERRUPTED: the queue is closed. */
int jobs_add(struct jobs *q, struct job *const *list, size_t n, struct moeflux_err *e);

/* Returns the length of the longest common prefix that the prompt of a running job has with another one that
 * waits or runs, of those that differ before its end. */
uint32_t jobs_common(struct jobs *q, const struct job *j);

/* Registers a worker of a group (< MOEFLUX_MAX_DEVICES), before any job is added. */
void jobs_add_worker(struct jobs *q, uint32_t group);
/* Waits for the next job of a worker of this group (< MOEFLUX_MAX_DEVICES). NULL: the queue is closed or
 * paused. */
struct job *jobs_take(struct jobs *q, uint32_t group);
/* Keeps a piece for jobs_read: the end of job_calls.piece. ERR_MEMORY. */
int jobs_give(struct jobs *q, struct job *j, const struct answer_piece *p, struct moeflux_err *e);
/* Ends a job whose results are filled. */
void jobs_finish(struct jobs *q, struct job *j);
/* Puts a running job that found too little memory in front of those that wait, and lowers the number of jobs
 * that may run to those that do now, at least one. One more may run each time as many jobs have ended as
 * may run. freed: the caller has freed some. False: none was, and no
 * other job ran at any time. It would find no more the next time, and is still running. */
bool jobs_put_back(struct jobs *q, struct job *j, bool freed);

/* Returns the choice that failed, or else the last one. The job is DONE. */
const struct choice *jobs_result(const struct job *j);
/* Waits up to `ms` until q->n_ended is not `seen` any more; returns it. */
uint64_t jobs_await(struct jobs *q, uint64_t seen, uint32_t ms);
bool jobs_is_done(struct jobs *q, const struct job *j);

/* Takes the pieces since the last call; waits up to `ms` for one. The caller frees them (jobs_free_pieces).
 * *done: these are the last. */
struct job_piece *jobs_read(struct jobs *q, struct job *j, uint32_t ms, bool *done);
void jobs_free_pieces(struct job_piece *p);

/* Cancels a job, waits until no worker has it, and frees it. NULL is legal. */
void jobs_release(struct jobs *q, struct job *j);

/* Closes the queue: waiting jobs fail with ERR_INTERRUPTED and the text `why` (static), workers get NULL. */
void jobs_close(struct jobs *q, const char *why);
/* Pauses the queue: workers get NULL, jobs wait. Resuming lets workers take jobs again. */
void jobs_pause(struct jobs *q);
void jobs_resume(struct jobs *q);
/* Waits up to `ms` until no job runs; returns whether that is so. */
bool jobs_drained(struct jobs *q, uint32_t ms);

void jobs_count(struct jobs *q, uint32_t *n_waiting, uint32_t *n_running);

#endif
