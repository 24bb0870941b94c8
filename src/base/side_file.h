/* side_file.h - a file that appears whole or not at all: written beside its place, then renamed over it.
 *
 *   side_file_create -> write to fd -> side_file_commit -> side_file_free
 * A link's target is replaced, not the link; what is not a regular file is refused. */
#ifndef MOEFLUX_BASE_SIDE_FILE_H
#define MOEFLUX_BASE_SIDE_FILE_H

struct err;

struct side_file {
    int fd;          /* to write to; -1: none */
    char *path;      /* where it will be */
    char *temporary; /* where it is until then; NULL: it is there */
};

/* ERR_IO, ERR_MEMORY; f is then as after side_file_free. */
int side_file_create(struct side_file *f, const char *path, struct err *e);
/* Closes it and gives it its name. ERR_IO. */
int side_file_commit(struct side_file *f, struct err *e);
/* Removes the temporary file unless it was committed. Legal after a failed create, and twice. */
void side_file_free(struct side_file *f);

#endif
