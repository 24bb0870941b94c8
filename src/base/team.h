/* team.h - threads that compute one thing together, many thousand times a second.
 *
 * Work comes in blocks. A thread begins with its own share of them (the same one every time, so that it finds in its cache
 * and in its memory what it used before) and then takes what others have left, so that a slow or interrupted one holds
 * nobody. The caller is thread 0 and takes part.
 *
 * Between two calls a thread looks for new work for some ten microseconds and then sleeps; the caller waits for the last
 * blocks in the same way. So a call costs a few microseconds, and another program gets the processor time that it wants.
 * The threads may run wherever the process may: bound to one processor each they could not make way. */
#ifndef MOEFLUX_BASE_TEAM_H
#define MOEFLUX_BASE_TEAM_H

#include <stdint.h>

struct moeflux_err;
struct team;

/* block: 0 .. n_blocks - 1. thread: 0 .. n_threads - 1, for memory of its own. */
typedef void team_fn(void *ctx, uint32_t block, uint32_t thread);

/* n_threads >= 1, the caller's included. NULL with `e` filled on failure. */
struct team *team_new(uint32_t n_threads, struct moeflux_err *e);

/* Calls fn once for each block and returns when all are done. One caller at a time; not from within fn. */
void team_for(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx);

/* A call follows within about a millisecond: threads that sleep wake up for it and look for it that long, making way for
 * others. Waking them costs tens of microseconds. */
void team_alert(struct team *t);

uint32_t team_n_threads(const struct team *t);

/* Ends the threads. NULL is legal. */
void team_free(struct team *t);

#endif
