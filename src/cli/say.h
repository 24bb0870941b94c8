/* say.h - all that the program prints on stderr, except what the line editor draws. Text goes through the
 * filter of text/printable.h where stderr is a terminal; a file or a pipe gets the bytes. */
#ifndef MOEFLUX_CLI_SAY_H
#define MOEFLUX_CLI_SAY_H

#include <stddef.h>

struct str;

void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_text(const struct str *text);
/* One of the program's own escape sequences (term.h): it is not filtered. */
void say_escape(const char *sequence);

#endif
