/* team.h - threads that compute one thing together, many thousand times a second.
 *
 * Work comes in blocks. A thread begins with its own share of them (the same one every time, so that it finds
 * in its cache and in its memory what it used before) and then takes what others have left, so that a slow or
 * interrupted one holds nobody. The caller is thread 0 and takes part.
 *
 * Between two calls a thread looks for new work for some ten microseconds and then sleeps; the caller waits
 * for the last blocks in the same way. So a call costs a few microseconds, and another program gets the
 * processor time that it wants. The threads may run wherever the process may: bound to one processor each
 * they could not make way.
 *
 * On a machine with several memory nodes (cpu/nodes.h) threads are numbered node by node, as many on each as
 * it has processors in proportion, and each may run anywhere on its node. Who has done its own share helps
 * its own node first, and then the others. The caller counts as one of the first node; it is not bound, but
 * the others leave it room there alone.
 *
 * Several owners, each with a thread of its own, may have one team: their calls come one after the other, so
 * that no more threads compute than the team has. */
#ifndef MOEFLUX_CPU_TEAM_H
#define MOEFLUX_CPU_TEAM_H

#include <stdint.h>

struct moeflux_err;
struct nodes;
struct node_shares;
struct team;

/* block: 0 .. n_blocks - 1. thread: 0 .. n_threads - 1, for memory of its own. */
typedef void team_fn(void *ctx, uint32_t block, uint32_t thread);

/* n_threads >= 1, the caller's included. NULL with `e` filled on failure. */
struct team *team_new(uint32_t n_threads, struct moeflux_err *e);
/* The same on nodes of the caller's, which are borrowed for the call. */
struct team *team_new_on(uint32_t n_threads, const struct nodes *nodes, struct moeflux_err *e);

/* Another owner of the same team: each calls team_free. Returns t. */
struct team *team_share(struct team *t);

/* Calls fn once for each block and returns when all are done. Not from within fn. */
void team_for(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx);

/* Matrices one behind the other, n of them, and all of them n_times; a block is some rows of one. */
struct team_matrices {
    const uint32_t *first_block; /* [n + 1] from 0 on, of each matrix and after the last */
    uint32_t n, n_times;
};
/* team_for over all blocks in their order. With several nodes the threads of each begin with the same rows of
 * every matrix, whichever matrices are there and however many: those of team_shares. */
void team_for_rows(struct team *t, const struct team_matrices *m, team_fn *fn, void *ctx);

/* Which rows are whose: shares of n_threads, one for each node with threads. Good until team_free. */
const struct node_shares *team_shares(const struct team *t);

/* A call follows within about a millisecond: threads that sleep wake up for it and look for it that long,
 * making way for others. Waking them costs tens of microseconds. */
void team_wake(struct team *t);

uint32_t team_n_threads(const struct team *t);

/* The last owner's ends the threads. NULL is legal. */
void team_free(struct team *t);

#endif
