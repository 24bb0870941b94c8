/* workers.h - threads that answer jobs on one model, each job in a sequence of its own. One thread has the model at a time:
 * after each token it lets the others have their turn, in order. Where the model takes tokens of several sequences together
 * (moeflux_most_together), a worker that has its turn evaluates those of all that wait. */
#ifndef MOEFLUX_SERVER_WORKERS_H
#define MOEFLUX_SERVER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

enum { WORKERS_MAX = 64 };

struct generator;
struct jobs;
struct metrics;
struct moeflux_err;
struct sequences;
struct workers;

/* Lives longer than the model, whose progress it is. n: threads, at most WORKERS_MAX; nothing is started. NULL with `e` filled. */
struct workers *workers_new(uint32_t n, struct jobs *jobs, struct metrics *metrics, struct moeflux_err *e);

/* Whether an evaluation is to go on: not when nobody waits for its answer any more. For moeflux_progress; ctx: the workers. */
bool workers_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);

/* Starts them; `g` was prepared, and both outlive the workers. ERR_MEMORY: none runs. */
int workers_start(struct workers *w, const struct generator *g, struct sequences *sequences,
                  struct moeflux_err *e);

/* Running answers end where they are, as if interrupted. */
void workers_cut(struct workers *w);

/* After jobs_close: waits until each has ended its job. NULL and workers that do not run are legal. */
void workers_join(struct workers *w);

/* NULL is legal. */
void workers_free(struct workers *w);

#endif
