/* lines.h - reads the lines of a file or of stdin as they arrive. */
#ifndef MOEFLUX_CLI_BATCH_LINES_H
#define MOEFLUX_CLI_BATCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "cli/input.h"

struct moeflux_err;

/* The longest line, in bytes without its end. */
#define LINES_MAX_BYTES ((size_t)64 << 20)

struct lines {
    struct input input;
    struct str held; /* bytes that were read; those from `at` on were not returned yet */
    size_t at;
    uint64_t n;    /* lines that were returned */
    bool too_long; /* the current line is too long: its bytes are dropped as they come */
    bool ended;    /* the input has no more bytes */
};

enum lines_event { LINES_END, LINES_LINE, LINES_TOO_LONG, LINES_NOT_YET };

/* path "-": stdin. ERR_IO. */
int lines_open(struct lines *l, const char *path, struct moeflux_err *e);

/* Returns the next line without its end, borrowed until the next call. LINES_TOO_LONG: it had more than
 * LINES_MAX_BYTES and is dropped. LINES_NOT_YET: no line is there, and `wait` is false. ERR_IO, ERR_MEMORY,
 * ERR_INTERRUPTED (Ctrl-C during the wait). */
int lines_next(struct lines *l, bool wait, const char **text, size_t *len, struct moeflux_err *e);

void lines_close(struct lines *l);

#endif
