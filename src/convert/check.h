/* check.h - compares a converted model with its checksums.json, at any time. Changes nothing. */
#ifndef MOEFLUX_CONVERT_CHECK_H
#define MOEFLUX_CONVERT_CHECK_H

#include <stdint.h>

#include "base/progress.h"

struct moeflux_err;

struct convert_check {
    const char *dir;
    uint32_t n_threads;               /* 0: all cores */
    struct moeflux_progress progress; /* one step, "verifying" */
    uint32_t n_files, n_dirs;         /* results: files and directories that were read */
    uint64_t bytes;
};

/* Checks all files that the checksums name: those of the directory, and of those that share its experts.
 * ERR_IO: files are missing, unreadable or different; the message gives the first with what was expected and
 * found, and the number of others. ERR_FORMAT: checksums.json is invalid. ERR_INTERRUPTED. */
int convert_check(struct convert_check *o, struct moeflux_err *e);

#endif
