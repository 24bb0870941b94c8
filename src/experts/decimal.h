/* decimal.h - numbers in the text files of this folder: decimal, without sign or leading zeros. */
#ifndef MOEFLUX_EXPERTS_DECIMAL_H
#define MOEFLUX_EXPERTS_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

/* Takes the digits from *at on, at most up to `end`. False: there is no such number, or it is above `most`;
 * nothing changes. */
bool decimal_take(const char **at, const char *end, uint64_t most, uint64_t *out);
/* Takes one byte, if it is `c`. */
bool decimal_skip(const char **at, const char *end, char c);

#endif
