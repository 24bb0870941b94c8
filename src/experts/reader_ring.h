/* reader_ring.h - carries reads out by io_uring: one ring, one thread that submits batches and takes
 * completions. */
#ifndef MOEFLUX_EXPERTS_READER_RING_H
#define MOEFLUX_EXPERTS_READER_RING_H

#include "experts/reader_work.h"

struct reader_ring;

/* Order of calls: reader_ring_new, reader_ring_register, reader_ring_start, reader_ring_free.
 *
 * Creates the ring and sets work->depth. ERR_UNSUPPORTED says why io_uring is not available; ERR_MEMORY. */
int reader_ring_new(struct reader_ring **out, struct reader_work *w, uint32_t depth, struct moeflux_err *e);
/* Registers the memory that reads fill with the system, so that no read has to look up its pages. Must
 * precede reader_ring_start: Linux before 5.13 waits until nothing is in flight, and a started ring always
 * waits for work. A negative result says why it failed; reads work without it. */
int reader_ring_register(struct reader_ring *r, const struct reader_region *regions, uint32_t n,
                         struct moeflux_err *e);
/* Starts the thread. ERR_MEMORY. */
int reader_ring_start(struct reader_ring *r, struct moeflux_err *e);
/* Carries out what is queued and ends the thread. NULL is legal. */
void reader_ring_free(struct reader_ring *r);

#endif
