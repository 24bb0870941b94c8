/* exit.h - turns a failure into one line on stderr and the program's exit status. */
#ifndef MOEFLUX_CLI_EXIT_H
#define MOEFLUX_CLI_EXIT_H

#include "base/err.h"

enum exit_status { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_FIT = 3, EXIT_INTERRUPTED = 130 };

/* Messages on stderr. Each level includes those before it. */
enum exit_level {
    EXIT_ERROR, /* failures */
    EXIT_WARN,  /* what the user should know */
    EXIT_INFO,  /* progress of the work */
};

/* Returns the exit status for a return code, 0 or ERR_*. That of ERR_INTERRUPTED depends on the signal. */
int exit_status(int rc);

/* Puts flags in place of the fields that a message of the library names: "`chunk` 9" becomes "--chunk 9". The
 * functions below do it themselves. */
void exit_name_flags(struct moeflux_err *e);

/* Prints "moeflux: TEXT" on stderr: something that the user should know and that stops nothing. */
void exit_warn(const char *text);
/* Prints it if `most`, the user's exit_level, includes `level`. */
void exit_tell(int most, enum exit_level level, const char *text);

/* Prints "moeflux: TEXT" for a failure and returns its status. Says nothing about success, an interruption or
 * an empty text (a reader that closed stdout has asked for quiet). */
int exit_report(int rc, const struct moeflux_err *e);

#endif
