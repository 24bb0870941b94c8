/* say.h - prints everything on stderr, except what the line editor draws. If stderr is a terminal, text goes
 * through the filter of text/printable.h; a file or a pipe gets all bytes. */
#ifndef MOEFLUX_CLI_SAY_H
#define MOEFLUX_CLI_SAY_H

#include <stddef.h>

struct str;

void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_text(const struct str *text);
/* Prints one of the program's own escape sequences (term.h), which is not filtered. */
void say_escape(const char *sequence);

#endif
