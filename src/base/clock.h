/* clock.h - monotonic time in nanoseconds, and waiting until a time. */
#ifndef MOEFLUX_BASE_CLOCK_H
#define MOEFLUX_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns a time of clock_ns for pthread_cond_timedwait. */
static inline struct timespec clock_timespec(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

/* Initialises a condition whose deadlines use this clock, which nobody sets. Returns 0 or an error number. */
static inline int clock_init_cond(pthread_cond_t *c)
{
    pthread_condattr_t a;
    int rc = pthread_condattr_init(&a);
    if (rc)
        return rc;
    rc = pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    if (!rc)
        rc = pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
    return rc;
}

/* Waits up to `ns` for a condition of clock_init_cond. The caller holds the lock. */
static inline void clock_wait(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns)
{
    const struct timespec until = clock_timespec(clock_ns() + ns);
    pthread_cond_timedwait(c, lock, &until);
}

/* Returns the processor time that the process's threads have taken. */
static inline uint64_t clock_busy_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
