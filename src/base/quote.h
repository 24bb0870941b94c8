/* quote.h - a short printable form of text from a file, for error lines. */
#ifndef MOEFLUX_BASE_QUOTE_H
#define MOEFLUX_BASE_QUOTE_H

#include <stddef.h>

struct quote {
    char text[48];
};

/* Returns the first bytes of `text` in double quotes, with "..." if it was cut; bytes that are not printable
 * ASCII become \xNN. By value, so that a call of err_set can use it as argument: quote_bytes(s, n).text. */
struct quote quote_bytes(const char *text, size_t len);

#endif
