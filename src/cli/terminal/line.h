/* line.h - one edited text from the terminal, of several lines where it was pasted, with a history that
 * outlives the program (libedit). */
#ifndef MOEFLUX_CLI_TERMINAL_LINE_H
#define MOEFLUX_CLI_TERMINAL_LINE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct line;

enum line_event { LINE_TEXT, LINE_END, LINE_INTERRUPTED };

/* Takes stdin for reading and stderr for the prompt, so that stdout carries answers alone. The history lies
 * in $XDG_STATE_HOME/moeflux/history, else in ~/.local/state/moeflux/history; a place that cannot be written
 * is told once on stderr, and the conversation goes on. pastes: the terminal takes escape sequences. NULL
 * with `e` filled on failure. */
struct line *line_open(bool pastes, struct moeflux_err *e);
void line_close(struct line *l);

/* Shows `prompt` and reads a line into *text (without its end; borrowed until the next call). LINE_END:
 * Ctrl-D on an empty line, or the terminal went away. LINE_INTERRUPTED: Ctrl-C; *text is then what had been
 * typed. */
enum line_event line_read(struct line *l, const char *prompt, const char **text);

/* Puts `text` into the history and saves it. */
void line_remember(struct line *l, const char *text);
/* Whether the history could not be saved, which has been told. */
bool line_lost_history(const struct line *l);

#endif
