/* results.h - writes the results of --batch, a line of JSON each, to stdout or to the end of a file that may
 * have the results of an earlier run. */
#ifndef MOEFLUX_CLI_BATCH_RESULTS_H
#define MOEFLUX_CLI_BATCH_RESULTS_H

#include <stdbool.h>

struct moeflux_err;
struct json_t;
struct options;
struct output;

struct results {
    const char *path;         /* NULL: stdout */
    int fd;                   /* the file; -1: none */
    struct output *out;       /* stdout */
    bool failed;              /* a write failed: nothing more is written */
    bool retry;               /* failed results are removed and computed again */
    unsigned long n_unwanted; /* failed results that the file had */
    struct json_t *answered;  /* keys (json_id_key) of the answers that the file had */
    struct json_t *errors; /* key -> number of the errors that it had and that results_take has not given */
    const struct json_t *settings; /* what every result gets and those of the file must have; NULL: nothing */
    bool mix;                      /* those of the file may have others */
    char difference[256];          /* what is different in the last line that was read; empty: nothing */
    struct json_t *model;          /* the fingerprint in results of the file; NULL: none has one */
    unsigned long long model_line; /* the first line that has it */
};

/* Opens o->output (NULL: takes `out`) and reads which results it has, in either form. o->retry_failed: failed
 * results are removed from the file, which is replaced whole or not at all, and count as missing. A last line
 * that an interruption cut is removed, with a warning. ERR_FORMAT: a line is no result, so the file is not
 * ours and stays as it is. ERR_USAGE: another run writes to it, or its results have other settings and o->mix
 * is not set. ERR_IO, ERR_MEMORY. */
int results_open(struct results *r, const struct options *o, const struct json_t *settings,
                 struct output *out, struct moeflux_err *e);

/* Checks that the results of the file come from the model that `settings` now names. ERR_USAGE, unless o->mix
 * was set. */
int results_check_model(const struct results *r, struct moeflux_err *e);

/* Whether the file has a result of the request with this key. A request that cannot be answered has an error
 * only: each error is the result of one request. *failed: it is an error. */
bool results_take(struct results *r, const char *key, bool answerable, bool *failed);

/* Writes one line immediately. A line that cannot be written whole is removed again. ERR_IO, also for every
 * line after a failed one; ERR_MEMORY. */
int results_add(struct results *r, const char *line, struct moeflux_err *e);

/* Waits until the results are on the disk, and closes. ERR_IO. */
int results_close(struct results *r, struct moeflux_err *e);

#endif
