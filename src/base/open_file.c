#include "base/open_file.h"

#include <stdlib.h>
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
    f.path = mem_text(path, e);
    if (!f.path) {
        close(f.fd);
        return ERR_MEMORY;
    }
    grown[(*n)++] = f;
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
