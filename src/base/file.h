/* file.h - whole reads and writes on descriptors, and small files as text. */
#ifndef MOEFLUX_BASE_FILE_H
#define MOEFLUX_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Opens a regular file for reading. Returns the descriptor (>= 0) or ERR_IO, at once for a FIFO or a device;
 * *size (may be NULL) gets its bytes. */
int file_open_read(const char *path, uint64_t *size, struct moeflux_err *e);

/* The check of a descriptor that was opened with O_NONBLOCK, so that the open does not wait at a FIFO or a
 * device: ERR_IO for what is no regular file. The flag is taken away. *size as above. */
int file_need_regular(int fd, const char *path, uint64_t *size, struct moeflux_err *e);

/* Reads exactly n bytes at `off`; EINTR and short reads are continued. ERR_IO names `path`, the offset and
 * how much came (end of file included). */
int file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off, struct moeflux_err *e);

/* Writes exactly n bytes at the descriptor's position. */
int file_write(int fd, const char *path, const void *src, uint64_t n, struct moeflux_err *e);

/* Writes exactly n bytes at `off`. */
int file_write_at(int fd, const char *path, const void *src, uint64_t n, uint64_t off, struct moeflux_err *e);

/* The whole file, NUL-terminated, in *data (caller frees) and its length in *len.
 * ERR_FORMAT when it is larger than `max` bytes. */
int file_read_text(const char *path, uint64_t max, char **data, size_t *len, struct moeflux_err *e);

/* Waits until the file's bytes are on the disk. What knows no such thing (EINVAL: a pipe, some file systems)
 * counts as done. ERR_IO. */
int file_sync(int fd, const char *path, struct moeflux_err *e);
/* The same for the names in a directory. One that may be written to but not read cannot be waited for. */
int file_sync_dir(const char *dir, struct moeflux_err *e);
/* That of the directory which `path` lies in. */
int file_sync_parent(const char *path, struct moeflux_err *e);

/* The directory that `path` lies in, in fresh memory, or NULL with `e` filled. */
char *file_parent(const char *path, struct moeflux_err *e);

/* dir + "/" + name in fresh memory, or NULL with `e` filled. */
char *file_join(const char *dir, const char *name, struct moeflux_err *e);

bool file_exists(const char *path);
bool file_is_dir(const char *path);
bool file_is_regular(const char *path);

#endif
