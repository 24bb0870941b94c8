/* tensor.h - dtypes and shapes of tensors, lists of named tensors, and the checks that all file formats
 * share. */
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

/* Sets both names to copies, in memory that free(t->name) frees. source: may be NULL. ERR_MEMORY. */
int tensor_set_name(struct tensor *t, const char *name, const char *source, struct moeflux_err *e);
/* Returns the name for messages: the file's. */
const char *tensor_label(const struct tensor *t);

const char *tensor_dtype_name(enum dtype dtype);
/* Returns DTYPE_OTHER for a name that is unknown or not supported. */
enum dtype tensor_find_dtype(const char *name);

/* Returns the bytes of one element; 0 for DTYPE_OTHER and DTYPE_BLOCKS. */
uint32_t tensor_dtype_bytes(enum dtype dtype);

/* Returns whether blocks become F32 numbers when they are loaded: operations take PRODUCT_COLS columns of
 * blocks at once, and the rows are no multiple of that. */
bool tensor_is_widened(const struct tensor *t);
/* Returns the bytes that the tensor takes in memory. */
uint64_t tensor_loaded_bytes(const struct tensor *t);

/* Returns the FORMAT_* of a tensor's numbers, those of scales and biases included (model.h); FORMAT_NONE: no
 * format has them, as 8-bit floats (fp8_format) and integers. */
uint32_t tensor_format(const struct tensor *t);
/* Returns whether unquantised matrices and vectors may have this dtype. */
bool tensor_is_float(enum dtype dtype);
/* Returns ERR_FORMAT with a message: the tensor's dtype is not `expected`. `where` names its file. */
int tensor_fail_dtype(const struct tensor *t, const char *expected, const char *where, struct moeflux_err *e);
/* Applies what reading changes to n numbers. */
void tensor_apply_change(enum tensor_change change, float *x, uint64_t n);

/* Fills t->dtype, n_dims, shape, off and bytes from a file's description: `dtype` as text, `shape` a JSON
 * array, the tensor's bytes [off, off + bytes) of an area of area_bytes. t->name and `where` are for
 * messages. ERR_FORMAT: unknown dtype, bad shape, bytes that are not shape times width, or bytes outside the
 * area. */
int tensor_describe(struct tensor *t, const char *dtype, const struct json_t *shape, uint64_t off,
                    uint64_t bytes, uint64_t area_bytes, const char *where, struct moeflux_err *e);
/* The same for a block format: t becomes DTYPE_BLOCKS. ERR_FORMAT also: a row is not whole blocks. */
int tensor_describe_blocks(struct tensor *t, uint32_t format, const struct json_t *shape, uint64_t off,
                           uint64_t bytes, uint64_t area_bytes, const char *where, struct moeflux_err *e);

/* Finds the FORMAT_* of a quantised weight from its mode, bits, group and the dtype of its scales. `where` is
 * for messages. ERR_UNSUPPORTED: there is no such format. ERR_FORMAT: the scales' dtype does not fit the
 * mode. */
int tensor_find_format(const struct tensor *t, enum dtype scales, const char *where, uint32_t *format,
                       struct moeflux_err *e);

/* Returns the SCALE_* of scales with this dtype, for format_scale; SCALE_NONE: there is none. */
uint32_t tensor_scale_type(enum dtype dtype);
/* Returns the dtype of a format's scales and biases. */
enum dtype tensor_scale_dtype(const struct format *f);

/* Writes the shape as "[2048, 32]". */
enum { TENSOR_SHAPE_TEXT = 8 * 22 + 4 };
void tensor_shape_text(const struct tensor *t, char out[TENSOR_SHAPE_TEXT]);

/* Return the product of all dimensions except the last (vectors: 1), and the last one (scalars: 1). The
 * product cannot overflow in a tensor that tensor_describe accepted and that has elements. */
uint64_t tensor_rows(const struct tensor *t);
uint64_t tensor_cols(const struct tensor *t);

/* Appends a copy of *t; the list owns t->name from here on, also on failure. */
int tensor_list_add(struct tensor_list *l, const struct tensor *t, struct moeflux_err *e);

/* ERR_FORMAT when two tensors [first, n) of the list share bytes. Reorders them (by offset). */
int tensor_list_check_overlap(struct tensor_list *l, size_t first, const char *where, struct moeflux_err *e);

/* Sorts by name. ERR_FORMAT: two tensors have the same canonical name. */
int tensor_list_sort(struct tensor_list *l, const char *where, struct moeflux_err *e);

void tensor_list_free(struct tensor_list *l);

/* Searches an array that is sorted by name. Returns NULL if the name is not in it. */
const struct tensor *tensor_find(const struct tensor *sorted, size_t n, const char *name);

#endif
