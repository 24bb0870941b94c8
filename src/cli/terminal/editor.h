/* editor.h - lets the user edit a text in an editor. */
#ifndef MOEFLUX_CLI_TERMINAL_EDITOR_H
#define MOEFLUX_CLI_TERMINAL_EDITOR_H

struct moeflux_err;
struct str;

/* Writes *text to a temporary file, runs $VISUAL, else $EDITOR, else vi on it, and reads it back without
 * white space at its end. ERR_IO: the file, or the editor failed; ERR_FORMAT: a NUL byte. *text is then
 * unchanged. */
int editor_run(struct str *text, struct moeflux_err *e);

#endif
