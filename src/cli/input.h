/* input.h - reads files and stdin as their bytes arrive. Ctrl-C ends a wait for bytes. */
#ifndef MOEFLUX_CLI_INPUT_H
#define MOEFLUX_CLI_INPUT_H

#include <stdbool.h>

struct moeflux_err;
struct str;

struct input {
    const char *name; /* shown in messages; borrowed */
    int fd;           /* -1: none */
};

enum input_event { INPUT_END, INPUT_BYTES, INPUT_NOT_YET };

/* Opens a file; path "-" or NULL: stdin. ERR_IO. */
int input_open(struct input *in, const char *path, struct moeflux_err *e);

/* Appends the available bytes to `out`: INPUT_BYTES. INPUT_NOT_YET: there are none, and `wait` is false.
 * ERR_IO, ERR_MEMORY, ERR_INTERRUPTED (Ctrl-C before or during the wait). */
int input_read(const struct input *in, bool wait, struct str *out, struct moeflux_err *e);

void input_close(struct input *in);

#endif
