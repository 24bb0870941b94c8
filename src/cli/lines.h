/* lines.h - the lines of a file or of stdin as they come. */
#ifndef MOEFLUX_CLI_LINES_H
#define MOEFLUX_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "cli/input.h"

struct moeflux_err;

struct lines {
    struct input input;
    struct str held; /* read, from `at` on not given out yet */
    size_t at;
    uint64_t n; /* lines given out */
    bool ended;
};

enum lines_event { LINES_END, LINES_LINE, LINES_NOT_YET };

/* path "-": stdin. ERR_IO. */
int lines_open(struct lines *l, const char *path, struct moeflux_err *e);

/* The next line, without its end; borrowed until the next call. LINES_NOT_YET: none has come, and `wait` is not set. Else
 * ERR_IO, ERR_MEMORY, ERR_FORMAT (a line over a GiB), ERR_INTERRUPTED (Ctrl-C while it waited). */
int lines_next(struct lines *l, bool wait, const char **text, size_t *len, struct moeflux_err *e);

void lines_close(struct lines *l);

#endif
