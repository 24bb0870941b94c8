#include "model_dirs.h"

#include <string.h>

#include "check.h"
#include "tmp_tree.h"

struct model_dir model_dirs_open(const char *dir)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, dir, &e), &e);
    return m;
}

void model_dirs_refuse(const char *dir, int code, const char *text)
{
    struct model_dir m;
    struct moeflux_err e = {0};
    int rc = model_dir_open(&m, dir, &e);
    if (rc == 0)
        model_dir_close(&m);
    if (rc != code || !strstr(e.text, text) || strchr(e.text, '\n'))
        fail_msg("%d \"%s\", expected %d with \"%s\"", rc, e.text, code, text);
}

void model_dirs_refuse_copy(const char *from, const char *file, const char *old, const char *with, int code,
                            const char *text)
{
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "model");
    tmp_tree_copy(from, dir);
    tmp_tree_replace(dir, file, old, with);
    model_dirs_refuse(dir, code, text);
    tmp_tree_remove(tmp);
}
