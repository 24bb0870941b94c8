#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "check.h"
#include "model/safetensors.h"
#include "model/model_file.h"

void golden_open(struct golden *g, const char *path)
{
    struct moeflux_err e = {0};
    struct model_file *file = NULL;
    struct tensor_list list = {0};
    uint32_t n_files = 0;
    *g = (struct golden){0};
    check_ok(model_file_add(&file, &n_files, path, &e), &e);
    check_ok(safetensors_read_header(file, 0, &list, &e), &e);
    g->bytes = malloc(file->bytes);
    assert_non_null(g->bytes);
    check_ok(file_read_at(file->fd, path, g->bytes, file->bytes, 0, &e), &e);
    for (size_t i = 0; i < list.n; i++) {
        const struct tensor *t = &list.items[i];
        struct golden_tensor *to = &g->tensors[g->n++];
        assert_true(g->n <= 64 && t->n_dims <= 4);
        snprintf(to->name, sizeof to->name, "%s", t->name);
        memcpy(to->shape, t->shape, sizeof to->shape);
        to->data = g->bytes + t->off;
    }
    tensor_list_free(&list);
    model_file_close_all(file, n_files);
}

void golden_close(struct golden *g)
{
    free(g->bytes);
}

const struct golden_tensor *golden_find(const struct golden *g, uint32_t n, const char *what)
{
    char name[48];
    snprintf(name, sizeof name, "case%u.%s", n, what);
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}
