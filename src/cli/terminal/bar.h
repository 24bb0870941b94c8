/* bar.h - a progress bar on stderr: only on a terminal, only for work that has taken over a second.
 * It also answers the work's question whether to go on: Ctrl-C stops it. */
#ifndef MOEFLUX_CLI_TERMINAL_BAR_H
#define MOEFLUX_CLI_TERMINAL_BAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "cli/terminal/term.h"

struct bar {
    bool on;       /* stderr is a terminal that takes escape sequences */
    bool shown;    /* a line stands there */
    char what[48]; /* the step being told */
    uint64_t start_ns, drawn_ns;
    uint64_t start_done; /* done when the step began: kept work of an earlier run has no speed */
};

void bar_init(struct bar *b, const struct term *t);

/* For the options of work that reports; `b` must outlive it. */
struct moeflux_progress bar_progress(struct bar *b);

/* Wipes the line; before anything else is printed. The next report begins a new step. */
void bar_end(struct bar *b);

#endif
