/* reader_pool.h - threads that carry reads out, one at a time each: pread, or a copy from mapped files. */
#ifndef MOEFLUX_EXPERTS_READER_POOL_H
#define MOEFLUX_EXPERTS_READER_POOL_H

#include "experts/reader_work.h"

struct reader_pool;

/* Sets work->depth. n_threads >= 1. NULL with `e` filled on failure. */
struct reader_pool *reader_pool_new(struct reader_work *w, uint32_t n_threads, struct moeflux_err *e);
/* Reads what is queued, ends the threads. NULL is legal. */
void reader_pool_free(struct reader_pool *p);

#endif
