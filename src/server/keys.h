/* keys.h - the keys that clients may show, from a file with one a line. */
#ifndef MOEFLUX_SERVER_KEYS_H
#define MOEFLUX_SERVER_KEYS_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;

struct keys { /* zeroed: no key is needed; freed with keys_free */
    char *text;
    size_t len;
};

/* Blank lines and those that begin with # do not count. ERR_IO; ERR_USAGE: no key is in it. */
int keys_read(struct keys *k, const char *path, struct moeflux_err *e);

/* Whether `key` is one of them. The time depends on the lengths alone, not on how much of a key is right. */
bool keys_have(const struct keys *k, const char *key);

void keys_free(struct keys *k);

#endif
