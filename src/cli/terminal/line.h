/* line.h - reads one edited text from the terminal (libedit). A pasted text may have several lines. The
 * history is kept in a file. */
#ifndef MOEFLUX_CLI_TERMINAL_LINE_H
#define MOEFLUX_CLI_TERMINAL_LINE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct line;

enum line_event { LINE_TEXT, LINE_END, LINE_INTERRUPTED };

/* Opens the editor on stdin, with the prompt on stderr, so that stdout has answers only. The history is in
 * $XDG_STATE_HOME/moeflux/history, else in ~/.local/state/moeflux/history. If it cannot be written, that is
 * reported once on stderr, and the conversation goes on. pastes: the terminal can mark pasted text. NULL with
 * `e` filled. */
struct line *line_open(bool pastes, struct moeflux_err *e);
void line_close(struct line *l);

/* Shows `prompt` and reads a line into *text, without its end, borrowed until the next call. LINE_END: Ctrl-D
 * on an empty line, or the terminal has gone. LINE_INTERRUPTED: Ctrl-C; *text is what had been typed. */
enum line_event line_read(struct line *l, const char *prompt, const char **text);

/* Until the next line_read, keys are not echoed and not lost at Ctrl-C; the line begins with them. A
 * signal that ends or stops the program gives the terminal back as it was. */
void line_hold(struct line *l);

/* Adds `text` to the history and saves it. */
void line_remember(struct line *l, const char *text);
/* Whether the history could not be saved, which has been reported. */
bool line_lost_history(const struct line *l);

#endif
