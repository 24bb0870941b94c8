/* turns.h - a fair lock: threads get it in the order in which they ask for it. */
#ifndef MOEFLUX_BASE_TURNS_H
#define MOEFLUX_BASE_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next, now; /* ticket that is given out next; ticket that holds the lock */
};

/* Initialises an unlocked lock. ERR_MEMORY. */
int turns_init(struct turns *t, struct moeflux_err *e);
void turns_free(struct turns *t);

void turns_begin(struct turns *t);
void turns_end(struct turns *t);
/* Returns whether a thread waits for the lock. */
bool turns_are_wanted(struct turns *t);

#endif
