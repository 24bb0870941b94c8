/* open_file.h - arrays of files that are open for reading. */
#ifndef MOEFLUX_BASE_OPEN_FILE_H
#define MOEFLUX_BASE_OPEN_FILE_H

#include <stdint.h>
#include <time.h>

struct moeflux_err;

struct open_file {
    char *path;
    int fd;
    uint64_t bytes;
    struct timespec written; /* time of the last change before it was opened */
};

/* Opens `path` for reading and appends it to (*files)[*n]. Returns 0; ERR_IO, ERR_MEMORY. */
int open_file_add(struct open_file **files, uint32_t *n, const char *path, struct moeflux_err *e);

/* Checks that nobody has written the file in place since it was opened. ERR_IO names it. */
int open_file_check(const struct open_file *f, struct moeflux_err *e);

/* Closes and frees all n. */
void open_file_close_all(struct open_file *files, uint32_t n);

#endif
