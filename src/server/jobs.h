/* jobs.h - answers that are wanted, in the order in which they came, and what is there of each. A connection makes a job,
 * adds it and reads it; a worker takes it and fills it.
 *
 *   jobs_add -> WAITING -> jobs_take -> RUNNING -> jobs_finish -> DONE -> jobs_release
 * Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_JOBS_H
#define MOEFLUX_SERVER_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/logprobs.h"
#include "generate/prefix.h"
#include "generate/request.h"
#include "text/chat.h"

/* A copy of a struct answer_piece. */
struct job_piece {
    struct job_piece *next;
    int32_t id; /* -1: no token of its own */
    enum chat_part part;
    struct logprob *logprobs; /* [1 + n_top]; NULL: none */
    uint32_t n_top;
    uint32_t call_idx; /* of CHAT_TOOL, and the next two */
    enum answer_call_event event;
    struct str call_id, call_name; /* of ANSWER_CALL_BEGINS */
    size_t len;
    char text[]; /* [len] */
};

struct job_result {
    int rc; /* 0, or the failure in `error` */
    struct moeflux_err error;
    uint32_t n_reused;   /* tokens of the prompt that were not computed */
    uint32_t n_answered; /* sampled tokens */
    enum answer_stop stop;
};

enum job_state { JOB_NEW, JOB_WAITING, JOB_RUNNING, JOB_DONE };

struct job { /* zeroed at first; freed with jobs_release */
    /* The connection's, until the job is added; then nobody writes it. */
    struct request request;
    struct prefix_stops stops; /* where a later prompt may part from this one */
    uint64_t seed;
    bool score; /* the prompt's tokens are scored */

    atomic_bool cancelled; /* nobody waits for it any more */
    uint64_t added_ns;

    /* The jobs' own. */
    pthread_cond_t changed;
    enum job_state state;
    struct job *next; /* WAITING */
    struct job_piece *first, *last;

    /* The worker's while it is RUNNING; then nobody writes them. */
    struct logprobs scores; /* of each token of the prompt but the first */
    struct job_result result;
};

struct jobs {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *first, *last;
    uint32_t n_waiting, n_running, most_waiting;
    bool closed;
};

int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e);
void jobs_free(struct jobs *q);

/* A new job of the caller's. ERR_MEMORY. */
struct job *jobs_new(struct moeflux_err *e);

/* Adds n of them, all or none. ERR_NO_FIT: too many wait; ERR_INTERRUPTED: nothing is taken any more. */
int jobs_add(struct jobs *q, struct job *const *list, size_t n, struct moeflux_err *e);

/* The next one; waits for it. NULL: there will be none. */
struct job *jobs_take(struct jobs *q);
/* Appends a piece. ERR_MEMORY. */
int jobs_give(struct jobs *q, struct job *j, const struct answer_piece *p, struct moeflux_err *e);
/* j->result is filled. */
void jobs_finish(struct jobs *q, struct job *j);

/* The pieces that have come since, the caller's now (jobs_free_pieces); waits for up to `ms` for one. *done: these are the last. */
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
