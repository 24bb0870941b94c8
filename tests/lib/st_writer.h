/* st_writer.h - builds safetensors files for tests, from nothing or from another checkpoint. */
#ifndef MOEFLUX_TESTS_ST_WRITER_H
#define MOEFLUX_TESTS_ST_WRITER_H

#include "base/str.h"
#include "model/safetensors.h"

struct st_writer {
    struct str header, data;
};

/* Appends a tensor. `shape` is JSON text ("[2, 3]"). */
void st_writer_add(struct st_writer *w, const char *name, const char *dtype, const char *shape,
                   const void *bytes, size_t n);
/* Appends a tensor of another checkpoint under `name`, with `bytes` as its content. */
void st_writer_add_like(struct st_writer *w, const char *name, const struct tensor *like, const void *bytes);
/* Writes dir/name and empties the writer. */
void st_writer_finish(struct st_writer *w, const char *dir, const char *name);

/* Copies the checkpoint in `from` into the new directory `to` as one model.safetensors, with its config.json.
 * `map` adds what it wants for each tensor (and once for t = NULL at the end). */
void st_writer_rewrite(const char *from, const char *to,
                       void (*map)(struct st_writer *w, const struct tensor *t, const uint8_t *bytes));

#endif
