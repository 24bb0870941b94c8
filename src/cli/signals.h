/* signals.h - turns Ctrl-C into a flag that loops test. This is the program's only state that is not in an
 * object: a signal handler can reach nothing else. */
#ifndef MOEFLUX_CLI_SIGNALS_H
#define MOEFLUX_CLI_SIGNALS_H

#include <stdbool.h>

struct moeflux_err;

/* Ignores SIGPIPE and SIGXFSZ, so that a closed stdout and a file over the limit of `ulimit -f` become failed
 * writes. */
void signals_ignore_failed_writes(void);

/* Makes reading a mapped model file past its end, which someone has cut, a failure of the evaluation
 * instead of the program's end. */
void signals_catch_bus_errors(void);

/* Catches SIGINT for work that tests signals_interrupted. Until then Ctrl-C ends the program at once. System
 * calls are restarted after it, so code that waits for input uses signals_wait. ERR_IO. */
int signals_catch_interrupt(struct moeflux_err *e);

/* Treats SIGTERM and SIGHUP like SIGINT, unless they are ignored (nohup). Only a second SIGINT ends the
 * program at once: systems send several of the others. */
void signals_catch_termination(void);

/* Returns the exit status of a run that a signal has ended: 128 plus its number. */
int signals_status(void);

/* Keeps signals_interrupted false while on, so that the current request is finished. The first signal says so
 * on stderr. */
void signals_hold(bool on);

/* Like signals_interrupted, but also true while held. */
bool signals_asked(void);

/* Whether SIGINT, or a signal treated like it, arrived since the last signals_clear. False while held. */
bool signals_interrupted(void);
void signals_clear(void);

/* Lets further signals end a signals_wait while a line is edited: SIGWINCH, SIGCONT, and those that ask the
 * program to end (SIGTERM, SIGHUP, SIGQUIT). Switching it off, when the terminal is restored, raises the
 * signal that asked for the end. */
void signals_catch_editing(bool on);

enum signals_event {
    SIGNALS_READY,     /* fd has bytes, an end or an error */
    SIGNALS_WOKEN,     /* signals_wake was called since the last SIGNALS_WOKEN */
    SIGNALS_INTERRUPT, /* SIGINT arrived since the last signals_clear, held or not */
    SIGNALS_END,       /* a signal asks the program to end */
    SIGNALS_REDRAW,    /* the line must be drawn again: a new window size, or the program was continued */
};

/* Waits until fd can be read or a signal arrives on any thread. One that arrived before the call counts. */
enum signals_event signals_wait(int fd);
/* Makes signals_wait return SIGNALS_WOKEN. Any thread may call it. */
void signals_wake(void);

/* Sets whether a second SIGINT, before signals_clear, ends the program at once (status 130). It does at
 * first; a conversation switches that off. */
void signals_set_impatient(bool on);

#endif
