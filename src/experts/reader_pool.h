/* reader_pool.h - carries reads out by threads, each one read at a time: pread, or a copy from mapped
 * files. */
#ifndef MOEFLUX_EXPERTS_READER_POOL_H
#define MOEFLUX_EXPERTS_READER_POOL_H

#include "experts/reader_work.h"

struct reader_pool;

/* Starts n_threads >= 1 threads and sets work->depth. NULL with `e` filled on failure. */
struct reader_pool *reader_pool_new(struct reader_work *w, uint32_t n_threads, struct moeflux_err *e);
/* Carries out what is queued and ends the threads. NULL is legal. */
void reader_pool_free(struct reader_pool *p);

#endif
