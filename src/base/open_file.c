#include "base/open_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

int open_file_add(struct open_file **files, uint32_t *n, const char *path, struct moeflux_err *e)
{
    struct open_file f = {0};
    struct open_file *grown = realloc(*files, (*n + 1) * sizeof **files);
    if (!grown)
        return err_set(e, ERR_MEMORY, "out of memory for %u open files", *n + 1);
    *files = grown;
    f.fd = file_open_read(path, &f.bytes, e);
    if (f.fd < 0)
        return f.fd;
    struct stat st;
    int rc = fstat(f.fd, &st) < 0 ? err_errno(e, ERR_IO, "%s", path) : 0;
    if (!rc && !(f.path = mem_text(path, e)))
        rc = ERR_MEMORY;
    if (rc) {
        close(f.fd);
        return rc;
    }
    f.written = st.st_mtim;
    grown[(*n)++] = f;
    return 0;
}

int open_file_check(const struct open_file *f, struct moeflux_err *e)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0)
        return err_errno(e, ERR_IO, "%s", f->path);
    if ((uint64_t)st.st_size != f->bytes)
        return err_set(e, ERR_IO, "%s has %" PRIu64 " bytes, it had %" PRIu64 " when it was opened", f->path,
                       (uint64_t)st.st_size, f->bytes);
    if (st.st_mtim.tv_sec != f->written.tv_sec || st.st_mtim.tv_nsec != f->written.tv_nsec)
        return err_set(e, ERR_IO, "%s was written in place since it was opened", f->path);
    return 0;
}

void open_file_close_all(struct open_file *files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        close(files[i].fd);
        free(files[i].path);
    }
    free(files);
}
