/* bar.h - a progress bar on stderr, only on a terminal and for work that takes over a second. It also tells
 * the work to stop after Ctrl-C. */
#ifndef MOEFLUX_CLI_TERMINAL_BAR_H
#define MOEFLUX_CLI_TERMINAL_BAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "cli/terminal/term.h"

struct bar {
    bool on;       /* stderr is a terminal that takes escape sequences */
    bool shown;    /* the bar is on the screen */
    bool held;     /* no bar is drawn: the line has a part of an answer */
    char what[48]; /* the current step */
    uint64_t start_ns, drawn_ns;
    /* amount done when the step began: work of an earlier run does not count for the speed */
    uint64_t start_done;
};

void bar_init(struct bar *b, const struct term *t);

/* Returns the callback that work reports to; `b` must outlive the work. */
struct moeflux_progress bar_progress(struct bar *b);

/* Wipes the line, before something else is printed; the next report draws it again. */
void bar_hide(struct bar *b);
/* Wipes the line. The next report begins a new step. */
void bar_end(struct bar *b);
/* Does the same, and no bar is drawn until the next bar_end: an answer is printed, whose line a bar would
 * wipe. */
void bar_hold(struct bar *b);

#endif
