/* side_file.h - atomic replacement of a file: written to a temporary file in the same directory, then
 * renamed.
 *
 *   side_file_create -> write to fd -> side_file_commit -> side_file_free
 *
 * The target of a link is replaced, not the link; only a regular file may be replaced. The new file has the
 * mode of the old one, and its owner and group if the user may set them.
 *
 * After a power failure too there is the old file or the new one: commit waits until the bytes are on the
 * disk before the rename, and then until the name is. On an SSD that takes about a millisecond for a small
 * file; a large one takes the disk's time instead of the page cache's (200 MB: 0.6 s instead of 0.2 s).
 *
 * Several programs may write one file at the same time: each has its own temporary file, and the last commit
 * wins. A temporary file is locked (flock) while its writer lives. The next writer of the same path removes
 * the files that killed writers left, and never that of a living one. */
#ifndef MOEFLUX_BASE_SIDE_FILE_H
#define MOEFLUX_BASE_SIDE_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

/* The name of a temporary file is PATH, this mark and a number. */
#define SIDE_FILE_MARK ".moeflux-part"

struct side_file {
    int fd;          /* descriptor to write to; -1: none */
    char *path;      /* final path */
    char *temporary; /* path until the commit; NULL: committed */
};

/* Creates the temporary file. mode: permissions of a file that replaces none, less the umask; 0: 0666.
 * ERR_IO, ERR_MEMORY; f is then as after side_file_free. */
int side_file_create(struct side_file *f, const char *path, unsigned mode, struct moeflux_err *e);
/* Writes the bytes to the disk, closes fd and renames the file. ERR_IO. */
int side_file_commit(struct side_file *f, struct moeflux_err *e);
/* Removes the temporary file unless it was committed. Legal after a failed create, and twice. */
void side_file_free(struct side_file *f);

/* Writes a whole file of n bytes. mode: its permissions; 0: those of the file that it replaces, else by the
 * umask. ERR_IO, ERR_MEMORY. */
int side_file_put(const char *path, unsigned mode, const void *bytes, uint64_t n, struct moeflux_err *e);

/* Removes what killed writers of `path` left, when the file itself is deleted. `path` must not be a link. */
void side_file_clear(const char *path);
/* Removes a temporary file by its own name, unless its writer lives. */
void side_file_remove_dead(const char *name);
/* Returns whether a file has the name of a temporary one. */
bool side_file_is_temporary(const char *name);

#endif
