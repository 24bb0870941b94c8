/* team.h - threads that compute one thing together, many thousand times a second.
 *
 * Work comes in blocks. A thread begins with its own share of them. The share is the same every time, so that
 * the thread finds in its cache and in its memory what it used before. Then it takes what others have left,
 * so that a slow or interrupted thread delays nobody. The caller is thread 0 and takes part.
 *
 * Between two calls a thread looks for new work for some ten microseconds and then sleeps; the caller waits
 * for the last blocks in the same way. So a call costs a few microseconds, and other programs get the
 * processor time that they want. The threads may run wherever the process may: bound to one processor each,
 * they could not make way.
 *
 * On a machine with several memory nodes (cpu/nodes.h) threads are numbered node by node, in proportion to
 * each node's processors, and each may run anywhere on its node. A thread that has done its own share helps
 * its own node first, then the others. The caller counts as one of the first node. It is not bound, but only
 * there do the others leave it room.
 *
 * Several owners, each with a thread of its own, may share one team. Their calls run one after the other, so
 * that no more threads compute than the team has. */
#ifndef MOEFLUX_CPU_TEAM_H
#define MOEFLUX_CPU_TEAM_H

#include <stdint.h>

struct moeflux_err;
struct nodes;
struct node_shares;
struct team;

/* block: 0 .. n_blocks - 1. thread: 0 .. n_threads - 1, which may index memory of its own. */
typedef void team_fn(void *ctx, uint32_t block, uint32_t thread);

/* Starts a team of n_threads >= 1, including the caller. Returns NULL with `e` filled on failure. */
struct team *team_new(uint32_t n_threads, struct moeflux_err *e);
/* Does the same on the caller's nodes, which are borrowed during the call only. */
struct team *team_new_on(uint32_t n_threads, const struct nodes *nodes, struct moeflux_err *e);

/* Adds another owner to the team and returns t. Each owner calls team_free. */
struct team *team_share(struct team *t);

/* Calls fn once for each block and returns when all are done. Not allowed from within fn. */
void team_for(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx);

/* n contiguous matrices, all of them n_times; a block is some rows of one. */
struct team_matrices {
    /* [n + 1], from 0 on: the first block of each matrix, and the end of the last */
    const uint32_t *first_block;
    uint32_t n, n_times;
};
/* Does team_for over all blocks in their order. With several nodes each node's threads begin with the same
 * rows of every matrix, however many matrices there are: the rows of team_shares. */
void team_for_rows(struct team *t, const struct team_matrices *m, team_fn *fn, void *ctx);

/* Returns which rows are whose: shares of n_threads, one for each node with threads. Valid until
 * team_free. */
const struct node_shares *team_shares(const struct team *t);

/* Announces that a call follows within about a millisecond. Sleeping threads wake up and look for it that
 * long, making way for others. Waking them costs tens of microseconds. */
void team_wake(struct team *t);

uint32_t team_n_threads(const struct team *t);

/* The last owner's call ends the threads. NULL is allowed. */
void team_free(struct team *t);

#endif
