/* tensor.h - lists of named tensors: dtypes, shapes, order, and the checks every file format shares. */
#ifndef MOEFLUX_MODEL_TENSOR_H
#define MOEFLUX_MODEL_TENSOR_H

#include "model/model.h"

struct format;
struct json_t;
struct moeflux_err;

struct tensor_list {
    struct tensor *items; /* owned, names too */
    size_t n, cap;
};

const char *tensor_dtype_name(enum dtype dtype);
/* DTYPE_OTHER: there is none of this name that is read. */
enum dtype tensor_find_dtype(const char *name);

/* Bytes of one element; 0 for DTYPE_OTHER. */
uint32_t tensor_dtype_bytes(enum dtype dtype);

/* Whether unquantised matrices and vectors may have it. */
bool tensor_is_float(enum dtype dtype);
/* Returns ERR_FORMAT: the tensor has another dtype than `expected`. `where` names its file. */
int tensor_fail_dtype(const struct tensor *t, const char *expected, const char *where, struct moeflux_err *e);

/* Fills t->dtype, n_dims, shape, off and bytes from a file's description: `dtype` as text, `shape` a JSON
 * array, the tensor's bytes [off, off + bytes) of an area of area_bytes. ERR_FORMAT: unknown dtype, bad
 * shape, bytes that are not shape times width, or outside the area. t->name and `where` are for messages. */
int tensor_describe(struct tensor *t, const char *dtype, const struct json_t *shape, uint64_t off,
                    uint64_t bytes, uint64_t area_bytes, const char *where, struct moeflux_err *e);

/* The format of a quantised weight by its mode, bits, group and what its scales are; `where` is for the
 * message. ERR_UNSUPPORTED: none is it. ERR_FORMAT: scales of another dtype than its mode has. */
int tensor_find_format(const struct tensor *t, enum dtype scales, const char *where, uint32_t *format,
                       struct moeflux_err *e);

/* The dtype of a format's scales and biases. */
enum dtype tensor_scale_dtype(const struct format *f);

/* "[2048, 32]" into out. */
enum { TENSOR_SHAPE_TEXT = 8 * 22 + 4 };
void tensor_shape_text(const struct tensor *t, char out[TENSOR_SHAPE_TEXT]);

/* Product of all dimensions but the last (1 for vectors), and the last (1 for scalars). Cannot overflow in a
 * described tensor with elements. */
uint64_t tensor_rows(const struct tensor *t);
uint64_t tensor_cols(const struct tensor *t);

/* Appends a copy of *t; the list owns t->name from here on, also on failure. */
int tensor_list_add(struct tensor_list *l, const struct tensor *t, struct moeflux_err *e);

/* ERR_FORMAT when two tensors [first, n) of the list share bytes. Reorders them (by offset). */
int tensor_list_check_overlap(struct tensor_list *l, size_t first, const char *where, struct moeflux_err *e);

/* By name; ERR_FORMAT when a name is there twice. */
int tensor_list_sort(struct tensor_list *l, const char *where, struct moeflux_err *e);

void tensor_list_free(struct tensor_list *l);

/* In an array sorted by name. NULL when it is not there. */
const struct tensor *tensor_find(const struct tensor *sorted, size_t n, const char *name);

#endif
