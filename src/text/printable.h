/* printable.h - makes text safe for a terminal: no byte can move the cursor, set colours or send commands.
 *
 * Line feeds and tabs stay, and CR LF becomes LF. Every other control character (U+0000 to U+001F, U+007F to
 * U+009F) and every invalid UTF-8 sequence, the lone bytes 80 to 9F among them, becomes U+FFFD. */
#ifndef MOEFLUX_TEXT_PRINTABLE_H
#define MOEFLUX_TEXT_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "text/utf8.h"

struct str;

struct printable {           /* zeroed at first */
    struct utf8_stream utf8; /* an incomplete character */
    bool after_cr;           /* a CR that may belong to a CR LF */
};

/* Appends the bytes in their safe form. */
void printable_push(struct printable *p, const char *bytes, size_t n, struct str *out);
/* Ends the text: what was held back becomes U+FFFD. */
void printable_end(struct printable *p, struct str *out);

/* Appends a whole text that must stay on its line: line feeds and tabs become U+FFFD too. */
void printable_line(const char *text, struct str *out);

#endif
