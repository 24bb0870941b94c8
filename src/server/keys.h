/* keys.h - the API keys that clients may use, from a file with one key a line, or from a text. */
#ifndef MOEFLUX_SERVER_KEYS_H
#define MOEFLUX_SERVER_KEYS_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;

struct keys { /* zeroed: no key is needed; freed with keys_free */
    char *text;
    size_t len;
};

/* Reads a file. Blank lines and lines that begin with # do not count, nor does white space around a key.
 * ERR_IO, ERR_MEMORY, ERR_FORMAT (too large), ERR_USAGE (it contains no key, a byte order mark or a NUL). */
int keys_read(struct keys *k, const char *path, struct moeflux_err *e);

/* Adds the keys of a text with commas between them. ERR_MEMORY, ERR_USAGE (it contains no key; the
 * text is not shown). */
int keys_add(struct keys *k, const char *text, struct moeflux_err *e);

/* Returns whether `key` is one of them. The time depends only on the lengths, not on how many bytes
 * match. */
bool keys_have(const struct keys *k, const char *key);

void keys_free(struct keys *k);

#endif
