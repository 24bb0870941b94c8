/* jobs.h - answers that are wanted, in the order in which they came, and what is there of each. A connection
 * makes a job, adds it and reads it; a worker takes it and fills it.
 *
 *   jobs_add -> WAITING -> jobs_take -> RUNNING -> jobs_finish -> DONE -> jobs_release
 * Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_JOBS_H
#define MOEFLUX_SERVER_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/ask.h"
#include "base/err.h"
#include "generate/answer.h"
#include "text/chat/chat.h"

/* A copy of a struct answer_piece. */
struct job_piece {
    struct job_piece *next;
    struct answer_piece piece; /* of the text, the probabilities and the call's name below */
    struct answer_call call;   /* of ANSWER_CALL_BEGINS, without arguments */
    struct logprob *logprobs;  /* [1 + n_top]; NULL: none */
    char text[];
};

static const uint32_t JOBS_ANYWHERE = UINT32_MAX;

enum job_state { JOB_NEW, JOB_WAITING, JOB_RUNNING, JOB_DONE };

struct job { /* zeroed at first; freed with jobs_release */
    /* Borrowed; the connection's, until the job is added, and the worker's while it is RUNNING: its scores
     * and result. Then nobody writes it. */
    struct ask *ask;

    /* The group whose copy has its prompt's beginning; JOBS_ANYWHERE: none. The connection's, until the job
     * is added. */
    uint32_t home;

    atomic_bool cancelled; /* nobody waits for it any more */
    uint64_t added_ns;

    /* The jobs' own. */
    pthread_cond_t changed;
    enum job_state state;
    uint32_t group;   /* RUNNING: of the worker that has it */
    struct job *next; /* WAITING */
    struct job_piece *first, *last;
};

/* Workers of one copy of the model. A job goes home where a worker is free, or about to be, and not much more
 * is under way than elsewhere; else to the copy with the fewest. */
struct jobs_group {
    uint32_t n_workers, n_idle, n_running;
};

struct jobs {
    pthread_mutex_t lock;
    struct jobs_group groups[MOEFLUX_MAX_DEVICES];
    pthread_cond_t more;
    struct job *first, *last;
    uint32_t n_waiting, n_running, most_waiting;
    bool closed;
};

int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e);
void jobs_free(struct jobs *q);

/* A new job of the caller's, for an ask that outlives it. ERR_MEMORY. */
struct job *jobs_new(struct ask *ask, struct moeflux_err *e);

/* Adds n of them, all or none. ERR_NO_FIT: too many wait; ERR_INTERRUPTED: nothing is taken any more. */
int jobs_add(struct jobs *q, struct job *const *list, size_t n, struct moeflux_err *e);

/* Before any job: a group (< MOEFLUX_MAX_DEVICES) has one worker more. */
void jobs_add_worker(struct jobs *q, uint32_t group);
/* The next one, for a worker of a group (< MOEFLUX_MAX_DEVICES); waits for it. NULL: there will be none. */
struct job *jobs_take(struct jobs *q, uint32_t group);
/* Appends a piece. ERR_MEMORY. */
int jobs_give(struct jobs *q, struct job *j, const struct answer_piece *p, struct moeflux_err *e);
/* j->ask->result is filled. */
void jobs_finish(struct jobs *q, struct job *j);

/* The pieces that have come since, the caller's now (jobs_free_pieces); waits for up to `ms` for one. *done:
 * these are the last. */
struct job_piece *jobs_read(struct jobs *q, struct job *j, uint32_t ms, bool *done);
void jobs_free_pieces(struct job_piece *p);

/* Cancels it, waits until no worker has it, and frees it. NULL is legal. */
void jobs_release(struct jobs *q, struct job *j);

/* No more are taken: those that wait fail with ERR_INTERRUPTED, workers get NULL. */
void jobs_close(struct jobs *q);
/* Waits for up to `ms` until none runs. */
bool jobs_drained(struct jobs *q, uint32_t ms);

void jobs_count(struct jobs *q, uint32_t *n_waiting, uint32_t *n_running);

#endif
