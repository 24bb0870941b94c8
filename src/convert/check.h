/* check.h - reads a converted model at any time and compares it with its checksums.json. Changes nothing. */
#ifndef MOEFLUX_CONVERT_CHECK_H
#define MOEFLUX_CONVERT_CHECK_H

#include <stdint.h>

#include "base/progress.h"

struct moeflux_err;

struct convert_check {
    const char *dir;
    uint32_t n_threads;               /* 0: all cores */
    struct moeflux_progress progress; /* one step, "verifying" */
    uint32_t n_files, n_dirs;         /* results: that were read */
    uint64_t bytes;
};

/* All files that the checksums of the directory, and of those that share its experts, name. ERR_IO: some are
 * missing, cannot be read or differ; the first is named with what was expected and found, and how many more
 * there are. ERR_FORMAT: checksums.json is none. ERR_INTERRUPTED. */
int convert_check(struct convert_check *o, struct moeflux_err *e);

#endif
