/* workers.h - the pool that computes jobs (jobs.h): threads on one model or several copies of it, each job in
 * a sequence of its own, with batched decode (batcher.h). */
#ifndef MOEFLUX_GENERATE_WORKERS_H
#define MOEFLUX_GENERATE_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "generate/saved_sequences.h"
#include "generate/sequences.h"
#include "moeflux.h"

enum { WORKERS_MAX = MOEFLUX_MAX_PARALLEL };

struct choice;
struct generator;
struct jobs;
struct workers;

struct workers_options {
    struct sequences_options keep; /* limits of all copies together; max_context and saved are not used */
    struct saved_options files;    /* the directory that all copies share */
    /* Prompts are turns of conversations: each gets a checkpoint where it parts from another one, too, and
     * the last stop cuts no evaluation (prefill.passes_above). */
    bool converse;
    /* A job that finds too little memory waits until fewer run (jobs_put_back). */
    bool waits;
    /* Called once on a worker's thread when an answer fails because a device is lost (ERR_LOST). No further
     * job is taken then, until workers_restart. NULL: the queue goes on. */
    void (*lost)(void *ctx, const struct moeflux_err *why);
    void *lost_ctx;
    /* Called on a worker's thread after each job, which may be gone. */
    void (*ended)(void *ctx);
    void *ended_ctx;
};

/* Creates n workers, at most WORKERS_MAX; starts no thread. NULL with `e` filled. */
struct workers *workers_new(uint32_t n, struct jobs *jobs, struct moeflux_err *e);

/* Checks that the generator's models have no workers: each needs its model's progress callback. ERR_USAGE. */
int workers_check_models(const struct generator *g, struct moeflux_err *e);

/* Starts the threads. g: prepared; must outlive the workers. There must be at least one worker for each copy.
 * Until workers_join the models' progress callbacks also end an evaluation that nobody waits for any more.
 * Errors: those of workers_check_models; ERR_IO: the directory of sequences; ERR_MEMORY. After a failure no
 * thread runs. */
int workers_start(struct workers *w, struct generator *g, const struct workers_options *o,
                  struct moeflux_err *e);

/* Starts the threads again, after a loss and workers_join, when the generator has new models. Errors: those
 * of workers_start. */
int workers_restart(struct workers *w, struct moeflux_err *e);

/* Returns job.copy of a choice: the copy that holds the state of its prompt's beginning. */
uint32_t workers_find_copy(struct workers *w, const struct choice *choice);

/* Returns the counts of the sequences. */
struct moeflux_sequence_counts workers_count(struct workers *w);

/* Returns the idle sequence that was used last; NULL: there is none. For one worker; borrowed until the next
 * job is added. */
const struct moeflux_session *workers_latest(const struct workers *w);

/* Ends running answers where they are, as if interrupted. */
void workers_interrupt(struct workers *w);

/* Waits until all workers have ended their jobs, then saves and frees the sequences; those on a lost device
 * are not saved. Call jobs_close first, except after a loss. NULL and workers that do not run are legal. */
void workers_join(struct workers *w);

/* Frees the workers, which were joined. No one may call workers_find_copy any more. NULL is legal. */
void workers_free(struct workers *w);

#endif
