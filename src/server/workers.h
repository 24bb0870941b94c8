/* workers.h - threads that answer jobs on one model or several copies of it, each job in a sequence of its
 * own. Their tokens are evaluated together (generate/batcher.h). */
#ifndef MOEFLUX_SERVER_WORKERS_H
#define MOEFLUX_SERVER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

enum { WORKERS_MAX = 64 };

struct ask;
struct generator;
struct jobs;
struct metrics;
struct moeflux_err;
struct sequences;
struct workers;

/* Lives longer than the model, whose progress it is. n: threads, at most WORKERS_MAX; nothing is started.
 * NULL with `e` filled. */
struct workers *workers_new(uint32_t n, struct jobs *jobs, struct metrics *metrics, struct moeflux_err *e);

/* Whether an evaluation is to go on: not when nobody waits for its answer any more. For moeflux_progress;
 * ctx: the workers. */
bool workers_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);

/* Starts them; `g` was prepared, sequences [1 + g->n_copies] are those of each copy, and all outlive the
 * workers. There are at least as many workers as copies. ERR_MEMORY: none runs. */
int workers_start(struct workers *w, const struct generator *g, struct sequences *const *sequences,
                  struct moeflux_err *e);

/* Of an ask that is to be a job: job.home. */
uint32_t workers_home(struct workers *w, const struct ask *ask);

/* Running answers end where they are, as if interrupted. */
void workers_cut(struct workers *w);

/* After jobs_close: waits until each has ended its job. NULL and workers that do not run are legal. */
void workers_join(struct workers *w);

/* NULL is legal. No connection is left that may ask for a home. */
void workers_free(struct workers *w);

#endif
