/* input.h - files and stdin, read as their bytes come. Ctrl-C is heard while none do. */
#ifndef MOEFLUX_CLI_INPUT_H
#define MOEFLUX_CLI_INPUT_H

#include <stdbool.h>

struct moeflux_err;
struct str;

struct input {
    const char *name; /* for messages; borrowed */
    int fd;           /* -1: none */
};

enum input_event { INPUT_END, INPUT_BYTES, INPUT_NOT_YET };

/* path "-" or NULL: stdin. ERR_IO. */
int input_open(struct input *in, const char *path, struct moeflux_err *e);

/* Adds what there is to `out`: INPUT_BYTES. INPUT_NOT_YET: nothing is, and `wait` is not set. Else ERR_IO,
 * ERR_MEMORY, ERR_INTERRUPTED (Ctrl-C before or while it waited). */
int input_read(const struct input *in, bool wait, struct str *out, struct moeflux_err *e);

void input_close(struct input *in);

#endif
