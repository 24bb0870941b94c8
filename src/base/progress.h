/* progress.h - how long work tells its caller where it stands. The caller decides what is shown. */
#ifndef MOEFLUX_BASE_PROGRESS_H
#define MOEFLUX_BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_progress {
    /* `what` names the step ("reading weights"), done and total are in `unit` ("B" or "tok").
     * total 0: there is nothing to tell, only the question whether to go on.
     * Called from one thread at a time, often; returns false to stop the work (ERR_INTERRUPTED). */
    bool (*report)(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);
    void *ctx;
};

/* p and p->report may be NULL. */
static inline bool progress_report(const struct moeflux_progress *p, const char *what, const char *unit,
                                   uint64_t done, uint64_t total)
{
    return !p || !p->report || p->report(p->ctx, what, unit, done, total);
}

#endif
