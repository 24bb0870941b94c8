/* reader_ring.h - io_uring carries reads out: one ring, one thread that submits in batches and takes
 * completions. */
#ifndef MOEFLUX_EXPERTS_READER_RING_H
#define MOEFLUX_EXPERTS_READER_RING_H

#include "experts/reader_work.h"

struct reader_ring;

/* reader_ring_new -> reader_ring_register -> reader_ring_start -> reads of what is queued -> reader_ring_free
 *
 * Sets work->depth. ERR_UNSUPPORTED tells why io_uring cannot be had; ERR_MEMORY. */
int reader_ring_new(struct reader_ring **out, struct reader_work *w, uint32_t depth, struct moeflux_err *e);
/* Has the system keep the pages that reads go to at hand, so that no read has to look them up. Before the
 * start: Linux before 5.13 waits until nothing is in flight, and from its start the ring waits for work.
 * Negative tells why not; reads go on without. */
int reader_ring_register(struct reader_ring *r, const struct reader_region *regions, uint32_t n,
                         struct moeflux_err *e);
/* Starts the thread. ERR_MEMORY. */
int reader_ring_start(struct reader_ring *r, struct moeflux_err *e);
/* Reads what is queued, ends the thread. NULL is legal. */
void reader_ring_free(struct reader_ring *r);

#endif
