/* quote.h - a short printable form of text from a file, for error lines. */
#ifndef MOEFLUX_BASE_QUOTE_H
#define MOEFLUX_BASE_QUOTE_H

#include <stddef.h>

struct quote {
    char text[48];
};

/* The first bytes of `text` in double quotes, with "..." where it was cut; what is not printable ASCII
 * becomes \xNN. Returned by value, so that it can stand in the argument list of err_set: quote_bytes(s,
 * n).text. */
struct quote quote_bytes(const char *text, size_t len);

#endif
