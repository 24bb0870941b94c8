/* editor.h - a text in the user's editor. */
#ifndef MOEFLUX_CLI_TERMINAL_EDITOR_H
#define MOEFLUX_CLI_TERMINAL_EDITOR_H

struct moeflux_err;
struct str;

/* Puts *text into a temporary file, runs $VISUAL, else $EDITOR, else vi on it, and reads it again, less white
 * space at its end. ERR_IO: the file, or an editor that failed; *text is then as it was. */
int editor_run(struct str *text, struct moeflux_err *e);

#endif
