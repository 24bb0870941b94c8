#include "base/side_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

/* A device or a pipe must not be replaced. */
static char *resolve(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        if (errno != ENOENT)
            err_errno(e, ERR_IO, "%s", path);
        return errno == ENOENT ? mem_text(path, e) : NULL;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: expected a regular file or a new name", path);
        return NULL;
    }
    char *real = realpath(path, NULL);
    if (!real)
        err_errno(e, ERR_IO, "%s", path);
    return real;
}

/* Opens a file of a name that nothing has, beside `path`; *name gets it. */
static int open_temporary(const char *path, char **name, struct err *e)
{
    enum { MOST_TRIES = 100 };
    for (int i = 0; i < MOST_TRIES; i++) {
        struct str text = {0};
        str_addf(&text, "%s.part-%ld-%d", path, (long)getpid(), i);
        if (!str_ok(&text))
            return err_set(e, ERR_MEMORY, "%s: out of memory", path);
        int fd = open(text.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *name = text.data;
            return fd;
        }
        str_free(&text);
        if (errno != EEXIST)
            break;
    }
    return err_errno(e, ERR_IO, "%s", path);
}

int side_file_create(struct side_file *f, const char *path, struct err *e)
{
    *f = (struct side_file){.fd = -1};
    if (!(f->path = resolve(path, e)))
        return ERR_IO;
    f->fd = open_temporary(f->path, &f->temporary, e);
    if (f->fd >= 0)
        return 0;
    int rc = f->fd;
    side_file_free(f);
    return rc;
}

int side_file_commit(struct side_file *f, struct err *e)
{
    int rc = 0;
    if (close(f->fd) < 0)
        rc = err_errno(e, ERR_IO, "%s: close", f->path);
    f->fd = -1;
    if (!rc && rename(f->temporary, f->path) < 0)
        rc = err_errno(e, ERR_IO, "%s: rename", f->path);
    if (!rc) {
        free(f->temporary);
        f->temporary = NULL;
    }
    return rc;
}

void side_file_free(struct side_file *f)
{
    if (!f->path)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->temporary)
        unlink(f->temporary);
    free(f->temporary);
    free(f->path);
    *f = (struct side_file){.fd = -1};
}
