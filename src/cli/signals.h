/* signals.h - Ctrl-C as a question that loops ask. The only state of the program that is not in an object:
 * a signal handler can reach nothing else. */
#ifndef MOEFLUX_CLI_SIGNALS_H
#define MOEFLUX_CLI_SIGNALS_H

#include <stdbool.h>

struct moeflux_err;

/* A closed stdout and a file over the size that `ulimit -f` allows are failed writes from now on (SIGPIPE and
 * SIGXFSZ are ignored). */
void signals_ignore_failed_writes(void);

/* Catches SIGINT; for work that asks signals_interrupted. Without it Ctrl-C ends the program at once. System
 * calls go on after it: what waits for input waits in signals_wait. ERR_IO. */
int signals_catch_interrupt(struct moeflux_err *e);

/* SIGTERM and SIGHUP count as SIGINT, unless they are ignored (nohup). Only a second SIGINT ends the program
 * at once: systems send several of the others. */
void signals_catch_termination(void);

/* The exit status of a run that a signal has ended: 128 and its number. */
int signals_status(void);

/* While on, signals_interrupted stays false: the work at hand is to be finished. The first signal says so on
 * stderr. */
void signals_hold(bool on);

/* As signals_interrupted, held or not. */
bool signals_asked(void);

/* Whether SIGINT (or one that counts as it) arrived since the last signals_clear. */
bool signals_interrupted(void);
void signals_clear(void);

/* For as long as a line is edited: SIGWINCH and SIGCONT, and what asks the program to end (SIGTERM, SIGHUP,
 * SIGQUIT), end a signals_wait too. Off: the program ends if that was asked, now that the terminal is as it
 * was. */
void signals_catch_editing(bool on);

enum signals_wake {
    SIGNALS_READY,     /* fd has bytes, an end or an error */
    SIGNALS_INTERRUPT, /* SIGINT arrived since the last signals_clear, held or not */
    SIGNALS_END,       /* the program is to end */
    SIGNALS_REDRAW,    /* a new window size, or the program was continued: the line is to be drawn again */
};

/* Waits until fd can be read or a signal arrives; one that arrived before the call counts, on whatever
 * thread. */
enum signals_wake signals_wait(int fd);

/* Whether a second SIGINT, before signals_clear, ends the program at once (status 130). On at first; a
 * conversation switches it off. */
void signals_set_impatient(bool on);

#endif
