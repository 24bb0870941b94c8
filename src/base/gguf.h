/* gguf.h - reads the metadata and the list of tensors of a GGUF file, or of a split set
 * (NAME-00001-of-0000N.gguf).
 *
 * A file is "GGUF", u32 version, u64 number of tensors, u64 number of values; the values: key, u32 kind,
 * content; the tensors: name, u32 number of dimensions, their sizes (innermost first), u32 type, u64 offset;
 * then the tensors' bytes, aligned. All is little endian.
 *
 * Opening reads the headers once, piece by piece. Contents of lists and tensors are read on request.
 * Everything is checked against the file's length. */
#ifndef MOEFLUX_BASE_GGUF_H
#define MOEFLUX_BASE_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/open_file.h"
#include "base/str.h"

struct moeflux_err;

enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_TEXT,
    GGUF_LIST,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KINDS
};

struct gguf_value {
    char *key;
    enum gguf_kind kind; /* kind of the value, or of a list's items */
    bool is_list;
    uint64_t n;          /* items of a list */
    uint64_t off, bytes; /* place in the first file of a text (without its length) or of a list's content */
    union {
        uint64_t whole; /* unsigned numbers and bool */
        int64_t signed_whole;
        double real;
    } of;
};

enum { GGUF_MAX_DIMS = 4 };

struct gguf_tensor {
    char *name;
    uint32_t type; /* number; ggml_type.h */
    uint32_t n_dims;
    uint64_t shape[GGUF_MAX_DIMS]; /* innermost first; 1 after the last */
    uint32_t file;
    uint64_t off, bytes; /* place in the file */
};

struct gguf {
    struct open_file *files; /* open for reading */
    uint32_t n_files;
    struct gguf_value *values; /* those of the first file, sorted by key */
    size_t n_values, cap_values;
    struct gguf_tensor *tensors; /* those of all files, sorted by name */
    size_t n_tensors, cap_tensors;
};

/* Returns whether a regular file begins as a GGUF file does, or has the name of one. */
bool gguf_is_file(const char *path);
/* Opens `path` and, if it is the first of a split set, the other files of the set in its directory.
 * ERR_FORMAT, ERR_UNSUPPORTED (another version, an unsupported tensor type) name the file, what was expected
 * and what was found. On failure nothing stays open. */
int gguf_open(struct gguf *g, const char *path, struct moeflux_err *e);
/* Zeroed ones are legal. */
void gguf_close(struct gguf *g);

/* Moves the tensors of another file, and the file, to g. more: keeps its values; the caller closes it.
 * ERR_FORMAT: a tensor that both have; ERR_MEMORY. */
int gguf_join(struct gguf *g, struct gguf *more, struct moeflux_err *e);

/* Return the value or tensor of this name, or NULL. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Gives the value if it is a bool or a whole number that is not negative. Returns whether it is. `v` may be
 * NULL. */
bool gguf_whole(const struct gguf_value *v, uint64_t *out);
/* Gives the value if it is a number. Returns whether it is. */
bool gguf_real(const struct gguf_value *v, double *out);
/* Reads a text of at most `max` bytes into fresh memory. ERR_FORMAT: it is longer, or has a byte of 0. */
int gguf_text(const struct gguf *g, const struct gguf_value *v, uint64_t max, char **out,
              struct moeflux_err *e);
/* Read a list of whole numbers, of at most 32 bits in u32_list, into fresh memory. ERR_FORMAT: one is
 * negative. */
int gguf_u32_list(const struct gguf *g, const struct gguf_value *v, uint32_t **out, struct moeflux_err *e);
int gguf_u64_list(const struct gguf *g, const struct gguf_value *v, uint64_t **out, struct moeflux_err *e);
/* Reads a list of float32 numbers into fresh memory. ERR_FORMAT: one is not finite. */
int gguf_real_list(const struct gguf *g, const struct gguf_value *v, double **out, struct moeflux_err *e);

/* An iterator over a list of texts. It reads the file in large pieces. */
struct gguf_texts {
    const struct gguf *g;
    const struct gguf_value *v;
    uint64_t next, off; /* the next item, and its place in the file */
    uint64_t from, n;   /* the part of the file in `bytes`: first byte, length */
    uint8_t *bytes;
};
int gguf_texts_open(struct gguf_texts *t, const struct gguf *g, const struct gguf_value *v,
                    struct moeflux_err *e);
/* Puts the next text into `text`. Returns 1, or 0 after the last. A text may have any bytes. ERR_FORMAT: it
 * has more than 64 KiB. */
int gguf_texts_next(struct gguf_texts *t, struct str *text, struct moeflux_err *e);
void gguf_texts_close(struct gguf_texts *t);

#endif
