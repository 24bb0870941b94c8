/* progress.h - how long work tells its caller how far it is. The caller decides what is shown. */
#ifndef MOEFLUX_BASE_PROGRESS_H
#define MOEFLUX_BASE_PROGRESS_H

/* Of the public header, which includes nothing of ours, this floor uses struct moeflux_progress alone. */
#include "moeflux.h"

/* Whether to go on. p and p->report may be NULL. */
static inline bool progress_report(const struct moeflux_progress *p, const char *what, const char *unit,
                                   uint64_t done, uint64_t total)
{
    return !p || !p->report || p->report(p->ctx, what, unit, done, total);
}

#endif
