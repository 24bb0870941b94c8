/* lines.h - the lines of a file or of stdin as they come. */
#ifndef MOEFLUX_CLI_BATCH_LINES_H
#define MOEFLUX_CLI_BATCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "cli/input.h"

struct moeflux_err;

/* A line has at most so many bytes. */
#define LINES_MAX_BYTES ((size_t)64 << 20)

struct lines {
    struct input input;
    struct str held; /* read, from `at` on not given out yet */
    size_t at;
    uint64_t n;    /* lines given out */
    bool too_long; /* the line at hand: its bytes are dropped as they come */
    bool ended;
};

enum lines_event { LINES_END, LINES_LINE, LINES_TOO_LONG, LINES_NOT_YET };

/* path "-": stdin. ERR_IO. */
int lines_open(struct lines *l, const char *path, struct moeflux_err *e);

/* The next line, without its end; borrowed until the next call. LINES_TOO_LONG: it had more than
 * LINES_MAX_BYTES, and is gone. LINES_NOT_YET: none has come, and `wait` is not set. Else ERR_IO, ERR_MEMORY,
 * ERR_INTERRUPTED (Ctrl-C while it waited). */
int lines_next(struct lines *l, bool wait, const char **text, size_t *len, struct moeflux_err *e);

void lines_close(struct lines *l);

#endif
