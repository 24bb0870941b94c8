/* results.h - where the results of --batch go: a line of JSON each, to stdout or to the end of a file that
 * may have the results of an earlier run. */
#ifndef MOEFLUX_CLI_BATCH_RESULTS_H
#define MOEFLUX_CLI_BATCH_RESULTS_H

#include <stdbool.h>

struct moeflux_err;
struct json_t;
struct output;

struct results {
    const char *path;   /* NULL: stdout */
    int fd;             /* of the file; -1: none */
    struct output *out; /* stdout */
    bool failed;        /* a write has: nothing more is written */
    bool retry;         /* results that failed are not wanted */
    unsigned long n_unwanted;
    struct json_t *there; /* keys (request_key) of what the file had at the start */
};

/* Opens `path` (NULL: takes `out`) and reads which results it has, in either form. retry: those that failed
 * are taken out of the file, which appears whole or not at all, and count as not there. A last line that an
 * interruption cut is taken away, with a warning. ERR_FORMAT: a line that is no result, so that the file is
 * somebody else's: it stays as it is. ERR_USAGE: another run writes to it. ERR_IO, ERR_MEMORY. */
int results_open(struct results *r, const char *path, bool retry, struct output *out, struct moeflux_err *e);

/* Whether an earlier run has answered this one. */
bool results_has(const struct results *r, const char *key);

/* Writes one line, at once. Of one that cannot be written nothing stays in the file. ERR_IO, also after an
 * earlier one; ERR_MEMORY. */
int results_add(struct results *r, const char *line, struct moeflux_err *e);

/* Waits until the results are on the disk, and closes. ERR_IO. */
int results_close(struct results *r, struct moeflux_err *e);

#endif
