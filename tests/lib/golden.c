#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/open_file.h"
#include "check.h"
#include "model/safetensors.h"

enum { TENSOR_ALIGN = 16 };

void golden_open(struct golden *g, const char *path)
{
    struct moeflux_err e = {0};
    struct open_file *file = NULL;
    struct tensor_list list = {0};
    uint32_t n_files = 0;
    *g = (struct golden){0};
    check_ok(open_file_add(&file, &n_files, path, &e), &e);
    check_ok(safetensors_read_header(file, 0, &list, &e), &e);
    /* Tensors may begin at any byte of the file. */
    uint64_t at = 0;
    for (size_t i = 0; i < list.n; i++)
        at += size_round_up(list.items[i].bytes, TENSOR_ALIGN);
    g->bytes = malloc(at);
    assert_non_null(g->bytes);
    at = 0;
    for (size_t i = 0; i < list.n; i++) {
        const struct tensor *t = &list.items[i];
        struct golden_tensor *to = &g->tensors[g->n++];
        assert_true(g->n <= 64 && t->n_dims <= 4);
        snprintf(to->name, sizeof to->name, "%s", t->name);
        memcpy(to->shape, t->shape, sizeof to->shape);
        check_ok(file_read_at(file->fd, path, g->bytes + at, t->bytes, t->off, &e), &e);
        to->data = g->bytes + at;
        at += size_round_up(t->bytes, TENSOR_ALIGN);
    }
    tensor_list_free(&list);
    open_file_close_all(file, n_files);
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
