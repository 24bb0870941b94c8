/* workers.h - answers lines of --batch concurrently: threads with a sequence each, on one model or its
 * copies.
 *
 * Results are batch-invariant: a prompt is evaluated in the same chunks whatever the other lines are and
 * whenever they come. So a worker reuses only whole chunks of the prefix that its last prompt shares with the
 * next. */
#ifndef MOEFLUX_CLI_BATCH_WORKERS_H
#define MOEFLUX_CLI_BATCH_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/batch/answer.h"

struct batch_item;
struct batch_workers;
struct generator;
struct token_list;

struct batch_done {
    struct batch_item *item;
    int rc; /* result of batch_answer */
    struct moeflux_err error;
    char *line;     /* owned by the caller */
    bool was_alone; /* no other sequence had memory while it ran */
};

/* Starts n workers. `g` was prepared (generator_prepare) and outlives them. ERR_MEMORY. */
int batch_workers_new(struct batch_workers **out, struct generator *g, uint32_t n, uint64_t base_seed,
                      struct moeflux_err *e);
/* Waits for running answers. NULL is legal. */
void batch_workers_free(struct batch_workers *all);

/* How many items may begin now, and how many run. */
uint32_t batch_workers_n_free(struct batch_workers *all);
uint32_t batch_workers_n_running(struct batch_workers *all);
/* Gives the item with these prompt tokens to a free worker. n_common: length of the longest prefix that it
 * shares with an item that has not begun. */
void batch_workers_begin(struct batch_workers *all, struct batch_item *item, const struct token_list *tokens,
                         uint32_t n_common);
/* Returns the next finished item in *out; waits for at most `ms` milliseconds. False: none has finished. */
bool batch_workers_await(struct batch_workers *all, uint32_t ms, struct batch_done *out);

/* Makes room after ERR_NO_FIT: frees idle sequences and lowers the limit of running items to the current
 * number. False: the refused item was alone, so more room cannot be made. */
bool batch_workers_shrink(struct batch_workers *all, const struct batch_done *refused);

/* Returns the sums over all workers. */
struct batch_counts batch_workers_counts(const struct batch_workers *all);

#endif
