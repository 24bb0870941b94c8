/* lanes.h - lines of --batch that are answered side by side: threads with a sequence each, on one model or
 * its copies.
 *
 * What a line gets does not depend on the others, nor on when they come: its prompt is evaluated in the
 * pieces that it would be evaluated in alone. So of a common prefix that a lane has from the line before it
 * keeps whole chunks. */
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
    int rc; /* of batch_answer */
    struct moeflux_err error;
    char *line;     /* the caller's */
    bool was_alone; /* no other sequence had memory while it ran */
};

/* n lanes; `g` was prepared and outlives them. ERR_MEMORY. */
int batch_workers_new(struct batch_workers **out, struct generator *g, uint32_t n, uint64_t base_seed,
                    struct moeflux_err *e);
/* Waits for those that run. NULL is legal. */
void batch_workers_free(struct batch_workers *l);

/* How many may begin, and how many run. */
uint32_t batch_workers_n_free(struct batch_workers *l);
uint32_t batch_workers_n_running(struct batch_workers *l);
/* Begins with an item, whose tokens are given, on a free lane. n_common: so many of the tokens others begin
 * with that have not begun. */
void batch_workers_begin(struct batch_workers *l, struct batch_item *item, const struct token_list *tokens,
                       uint32_t n_common);
/* The next that has finished; waits for at most `ms` milliseconds. False: there was none. */
bool batch_workers_await(struct batch_workers *l, uint32_t ms, struct batch_done *out);

/* After ERR_NO_FIT: frees the sequences that are idle, and from now on no more run than do now. False: the
 * line was alone, and there is no more memory for it to come. */
bool batch_workers_shrink(struct batch_workers *l, const struct batch_done *refused);

struct batch_counts batch_workers_counts(const struct batch_workers *l);

#endif
