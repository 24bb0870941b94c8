/* file.h - whole reads and writes on descriptors, and small files as text. */
#ifndef MOEFLUX_BASE_FILE_H
#define MOEFLUX_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Opens a regular file for reading. Returns the descriptor (>= 0). *size (may be NULL): bytes of the file.
 * ERR_IO, without waiting where the path is a FIFO or a device. */
int file_open_read(const char *path, uint64_t *size, struct moeflux_err *e);

/* Checks a descriptor that was opened with O_NONBLOCK (so that the open does not wait for a FIFO or a device)
 * and clears that flag. *size as above. ERR_IO: not a regular file. */
int file_need_regular(int fd, const char *path, uint64_t *size, struct moeflux_err *e);

/* Reads exactly n bytes at `off`; continues after EINTR and short reads. ERR_IO, also at the end of the file,
 * names `path`, the offset and how many bytes were read. */
int file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off, struct moeflux_err *e);

/* Writes exactly n bytes at the descriptor's position. */
int file_write(int fd, const char *path, const void *src, uint64_t n, struct moeflux_err *e);

/* Writes exactly n bytes at `off`. */
int file_write_at(int fd, const char *path, const void *src, uint64_t n, uint64_t off, struct moeflux_err *e);

/* Reads a whole file into *data, NUL-terminated; the caller frees it. *len: its length. ERR_FORMAT: it is
 * larger than `max` bytes. ERR_IO, ERR_MEMORY. */
int file_read_text(const char *path, uint64_t max, char **data, size_t *len, struct moeflux_err *e);

/* Waits until the file's bytes are on the disk. Where that is not supported (EINVAL: a pipe, some file
 * systems) it counts as done. ERR_IO. */
int file_sync(int fd, const char *path, struct moeflux_err *e);
/* Does the same for the names in a directory. Does not wait for a directory that can be written but not
 * read. */
int file_sync_dir(const char *dir, struct moeflux_err *e);
/* Does the same for the directory of `path`. */
int file_sync_parent(const char *path, struct moeflux_err *e);

/* Returns the directory of `path`; the caller frees it. NULL with `e` filled. */
char *file_parent(const char *path, struct moeflux_err *e);

/* Returns dir + "/" + name; the caller frees it. NULL with `e` filled. */
char *file_join(const char *dir, const char *name, struct moeflux_err *e);

bool file_exists(const char *path);
bool file_is_dir(const char *path);
bool file_is_regular(const char *path);

#endif
