/* row_file.h - rows of float32 in a temporary file without a name in $TMPDIR, else in /tmp: it disappears
 * with the program, however that ends. */
#ifndef MOEFLUX_CLI_MEASURE_ROW_FILE_H
#define MOEFLUX_CLI_MEASURE_ROW_FILE_H

#include <stdint.h>

struct moeflux_err;

struct row_file {
    int fd;
    const char *dir; /* shown in messages */
    uint64_t row_bytes;
};

/* Opens a file for n_rows of `width` floats. ERR_NO_FIT: the file system has too little room; `what` names
 * the rows in the message. ERR_IO. After a failure there is nothing to close. */
int row_file_open(struct row_file *f, const char *what, uint64_t n_rows, uint32_t width,
                  struct moeflux_err *e);
int row_file_write(const struct row_file *f, uint64_t idx, const float *row, struct moeflux_err *e);
int row_file_read(const struct row_file *f, uint64_t idx, float *row, struct moeflux_err *e);
void row_file_close(struct row_file *f);

#endif
