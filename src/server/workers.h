/* workers.h - threads that compute jobs on one model or several copies of it, each job in its own sequence,
 * with batched decode (generate/batcher.h). */
#ifndef MOEFLUX_SERVER_WORKERS_H
#define MOEFLUX_SERVER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

enum { WORKERS_MAX = 64 };

struct choice;
struct generator;
struct jobs;
struct metrics;
struct moeflux_err;
struct sequences;
struct workers;

/* Creates n workers, at most WORKERS_MAX; starts no thread. Must outlive the model, whose progress callback
 * uses it. NULL with `e` filled. */
struct workers *workers_new(uint32_t n, struct jobs *jobs, struct metrics *metrics, struct moeflux_err *e);

/* Returns whether an evaluation should continue: false if no client waits for its answers any more. A
 * function for moeflux_progress; ctx: the workers. */
bool workers_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);

/* Starts the threads. g: prepared. sequences: [1 + g->n_copies], one for each copy. Both must outlive the
 * workers. There must be at least one worker for each copy. ERR_MEMORY: no thread runs. */
int workers_start(struct workers *w, const struct generator *g, struct sequences *const *sequences,
                  struct moeflux_err *e);

/* Returns job.holder of a choice: the copy that holds the state of its prompt's beginning. */
uint32_t workers_find_holder(struct workers *w, const struct choice *choice);

/* Ends running answers where they are, as if interrupted. */
void workers_interrupt(struct workers *w);

/* Waits until all workers have ended their jobs. Call jobs_close first. NULL and workers that do not run are
 * legal. */
void workers_join(struct workers *w);

/* Lets the sequences be freed while connections still call workers_find_holder. The workers were joined. */
void workers_forget_sequences(struct workers *w);

/* Frees the workers. No connection may call workers_find_holder any more. NULL is legal. */
void workers_free(struct workers *w);

#endif
