#include "st_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "tmp_tree.h"

void st_writer_add(struct st_writer *w, const char *name, const char *dtype, const char *shape,
                   const void *bytes, size_t n)
{
    str_addf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
             w->header.len ? "," : "{", name, dtype, shape, w->data.len, w->data.len + n);
    str_add(&w->data, bytes, n);
}

void st_writer_add_like(struct st_writer *w, const char *name, const struct tensor *like, const void *bytes)
{
    char shape[TENSOR_SHAPE_TEXT];
    tensor_shape_text(like, shape);
    st_writer_add(w, name, tensor_dtype_name(like->dtype), shape, bytes, like->bytes);
}

void st_writer_finish(struct st_writer *w, const char *dir, const char *name)
{
    struct str all = {0};
    str_add_text(&w->header, "}");
    uint8_t n[8];
    for (int i = 0; i < 8; i++)
        n[i] = (uint8_t)(w->header.len >> (8 * i));
    str_add(&all, (char *)n, 8);
    str_add(&all, w->header.data, w->header.len);
    str_add(&all, w->data.data, w->data.len);
    assert_true(str_ok(&w->header) && str_ok(&w->data) && str_ok(&all));
    tmp_tree_write(dir, name, all.data, all.len);
    str_free(&all);
    str_free(&w->header);
    str_free(&w->data);
}

void st_writer_rewrite(const char *from, const char *to,
                       void (*map)(struct st_writer *w, const struct tensor *t, const uint8_t *bytes))
{
    struct safetensors s;
    struct st_writer w = {0};
    struct moeflux_err e;
    assert_int_equal(mkdir(to, 0777), 0);
    assert_int_equal(safetensors_open(&s, from, &e), 0);
    for (size_t i = 0; i < s.tensors.n; i++) {
        const struct tensor *t = &s.tensors.items[i];
        uint8_t *bytes = malloc(t->bytes + 1);
        assert_non_null(bytes);
        assert_int_equal(file_read_at(s.files[t->file].fd, "tensor", bytes, t->bytes, t->off, &e), 0);
        map(&w, t, bytes);
        free(bytes);
    }
    map(&w, NULL, NULL);
    safetensors_close(&s);
    st_writer_finish(&w, to, "model.safetensors");
    size_t n;
    uint8_t *config = tmp_tree_read(tmp_tree_path(from, "config.json"), &n);
    tmp_tree_write(to, "config.json", config, n);
    free(config);
}
