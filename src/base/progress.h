/* progress.h - how long-running work reports its progress. The caller decides what is shown. */
#ifndef MOEFLUX_BASE_PROGRESS_H
#define MOEFLUX_BASE_PROGRESS_H

/* The public header includes no other file of the project. This floor uses only its structs
 * moeflux_progress and moeflux_warning. */
#include "moeflux.h"

/* Returns whether to continue. p and p->report may be NULL. */
static inline bool progress_report(const struct moeflux_progress *p, const char *what, const char *unit,
                                   uint64_t done, uint64_t total)
{
    return !p || !p->report || p->report(p->ctx, what, unit, done, total);
}

#endif
