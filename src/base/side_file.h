/* side_file.h - a file that appears whole or not at all: written beside its place, then renamed over it.
 *
 *   side_file_create -> write to fd -> side_file_commit -> side_file_free A link's target is replaced, not
 * the link; what is not a regular file is refused. The new file has the mode of the one that it replaces, and
 * its owner and group where the user may set them.
 *
 * After a power failure too there is the old file or the new one: commit waits until the bytes are on the
 * disk before the rename, and then until the name is. On an SSD that is about a millisecond for a small file;
 * a large one takes the disk's time instead of the page cache's (200 MB: 0.6 s instead of 0.2 s).
 *
 * Several programs may write one file at once: each has a temporary file of its own, and the last one
 * committed stays. A temporary file is locked (flock) as long as its writer lives, so that the next writer of
 * the same place removes what killed ones left, and never that of a living one. */
#ifndef MOEFLUX_BASE_SIDE_FILE_H
#define MOEFLUX_BASE_SIDE_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

/* Temporary files are named PATH, this, and a number. */
#define SIDE_FILE_MARK ".moeflux-part"

struct side_file {
    int fd;          /* to write to; -1: none */
    char *path;      /* where it will be */
    char *temporary; /* where it is until then; NULL: it is there */
};

/* ERR_IO, ERR_MEMORY; f is then as after side_file_free. */
int side_file_create(struct side_file *f, const char *path, struct moeflux_err *e);
/* Brings it to the disk and gives it its name; fd is closed then. ERR_IO. */
int side_file_commit(struct side_file *f, struct moeflux_err *e);
/* Removes the temporary file unless it was committed. Legal after a failed create, and twice. */
void side_file_free(struct side_file *f);

/* A whole file at once, with these permissions (0: those of the file that it replaces, else as the umask has
 * it). ERR_IO, ERR_MEMORY. */
int side_file_put(const char *path, unsigned mode, const void *bytes, uint64_t n, struct moeflux_err *e);

/* Removes what killed writers of `path` left; for files that are deleted. `path` is not a link. */
void side_file_clear(const char *path);
/* Whether a file is named as a temporary one. */
bool side_file_is_temporary(const char *name);

#endif
