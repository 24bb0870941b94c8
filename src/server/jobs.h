/* jobs.h - the queue of choices to compute, and the pieces of each answer so far. A connection makes a job,
 * adds it and reads its pieces; a worker takes it and produces them.
 *
 *   jobs_add -> WAITING -> jobs_take -> RUNNING -> jobs_finish -> DONE -> jobs_release
 *
 * Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_JOBS_H
#define MOEFLUX_SERVER_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/choice.h"
#include "base/err.h"
#include "generate/answer.h"
#include "text/chat/chat.h"

/* A copy of a struct answer_piece. */
struct job_piece {
    struct job_piece *next;
    struct answer_piece piece; /* points to the members below */
    struct answer_call call;   /* set in ANSWER_CALL_BEGINS, without arguments */
    struct logprob *logprobs;  /* [1 + n_top]; NULL: none */
    char text[];
};

static const uint32_t JOBS_NO_HOLDER = UINT32_MAX;

enum job_state { JOB_NEW, JOB_WAITING, JOB_RUNNING, JOB_DONE };

struct job { /* zeroed at first; freed with jobs_release */
    /* Borrowed. The connection writes it until the job is added; the worker writes its scores and result
     * while the job is RUNNING. */
    struct choice *choice;

    /* The group whose copy of the model holds the state of the prompt's beginning; JOBS_NO_HOLDER: none. Set
     * by the connection before the job is added. */
    uint32_t holder;

    atomic_bool cancelled; /* nobody waits for it any more */
    uint64_t added_ns;

    /* Private to the queue. */
    pthread_cond_t changed;
    enum job_state state;
    uint32_t group;   /* while RUNNING: the group of its worker */
    struct job *next; /* the next one that waits, or that runs */
    struct job_piece *first, *last;
};

/* The workers of one copy of the model. A job goes to its holder if a worker there is not busy and at most
 * one more job runs there than elsewhere; otherwise to the group with the fewest running jobs. */
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
    bool closed;
};

/* Makes an empty queue. most_waiting: limit of waiting jobs. ERR_MEMORY. */
int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e);
void jobs_free(struct jobs *q);

/* Creates a job for a choice, which must outlive it; freed with jobs_release. NULL with `e` filled. */
struct job *jobs_new(struct choice *choice, struct moeflux_err *e);

/* Adds n jobs, all or none. ERR_NO_FIT: too many are waiting. ERR_INTERRUPTED: the queue is closed. */
int jobs_add(struct jobs *q, struct job *const *list, size_t n, struct moeflux_err *e);

/* Returns the length of the longest common prefix that the prompt of a running job has with another one that
 * waits or runs, of those that differ before its end. */
uint32_t jobs_common(struct jobs *q, const struct job *j);

/* Registers a worker of a group (< MOEFLUX_MAX_DEVICES), before any job is added. */
void jobs_add_worker(struct jobs *q, uint32_t group);
/* Waits for the next job of a worker of this group (< MOEFLUX_MAX_DEVICES). NULL: the queue is closed. */
struct job *jobs_take(struct jobs *q, uint32_t group);
/* Appends a piece. ERR_MEMORY. */
int jobs_give(struct jobs *q, struct job *j, const struct answer_piece *p, struct moeflux_err *e);
/* Ends a job whose result is filled. */
void jobs_finish(struct jobs *q, struct job *j);

/* Takes the pieces since the last call; waits up to `ms` for one. The caller frees them (jobs_free_pieces).
 * *done: these are the last. */
struct job_piece *jobs_read(struct jobs *q, struct job *j, uint32_t ms, bool *done);
void jobs_free_pieces(struct job_piece *p);

/* Cancels a job, waits until no worker has it, and frees it. NULL is legal. */
void jobs_release(struct jobs *q, struct job *j);

/* Closes the queue: waiting jobs fail with ERR_INTERRUPTED, workers get NULL. */
void jobs_close(struct jobs *q);
/* Waits up to `ms` until no job runs; returns whether that is so. */
bool jobs_drained(struct jobs *q, uint32_t ms);

void jobs_count(struct jobs *q, uint32_t *n_waiting, uint32_t *n_running);

#endif
