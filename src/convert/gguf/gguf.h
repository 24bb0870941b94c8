/* gguf.h - GGUF files: the metadata and the list of tensors of one file, or of a split set
 * (NAME-00001-of-0000N.gguf).
 *
 * A file is "GGUF", u32 version, u64 tensors, u64 values; the values: key, u32 kind, content; the tensors:
 * name, u32 dimensions, their sizes (innermost first), u32 type, u64 offset; then the tensors' bytes,
 * aligned. Little endian. The headers are read once, piece by piece; contents of lists and tensors on
 * request. Everything is checked against the file's length. */
#ifndef MOEFLUX_CONVERT_GGUF_GGUF_H
#define MOEFLUX_CONVERT_GGUF_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "model/model.h"

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
    enum gguf_kind kind; /* of the value, or of a list's items */
    bool is_list;
    uint64_t n;          /* of a list: items */
    uint64_t off, bytes; /* in the first file: the content of a text (without its length) or of a list */
    union {
        uint64_t whole; /* unsigned numbers and bool */
        int64_t signed_whole;
        double real;
    } of;
};

enum { GGUF_MAX_DIMS = 4 };

struct gguf_tensor {
    char *name;
    uint32_t type; /* blocks.h */
    uint32_t n_dims;
    uint64_t shape[GGUF_MAX_DIMS]; /* innermost first; 1 behind the last */
    uint32_t file;
    uint64_t off, bytes; /* in the file */
};

struct gguf {
    struct model_file *files; /* open for reading */
    uint32_t n_files;
    struct gguf_value *values; /* of the first file, sorted by key */
    size_t n_values, cap_values;
    struct gguf_tensor *tensors; /* of all files, sorted by name */
    size_t n_tensors, cap_tensors;
};

/* Opens `path` and, where it is the first of a split set, the others beside it. ERR_FORMAT, ERR_UNSUPPORTED
 * (another version, a tensor type that is not read): the file, what was expected and what was found. On
 * failure nothing stays open. */
int gguf_open(struct gguf *g, const char *path, struct moeflux_err *e);
/* Zeroed ones are legal. */
void gguf_close(struct gguf *g);

/* NULL: it is not there. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Of a whole number or bool that is not negative; false: it is something else. */
bool gguf_whole(const struct gguf_value *v, uint64_t *out);
/* Of any number. */
bool gguf_real(const struct gguf_value *v, double *out);
/* A text in fresh memory, at most `max` bytes; bytes of 0 are ERR_FORMAT. */
int gguf_text(const struct gguf *g, const struct gguf_value *v, uint64_t max, char **out,
              struct moeflux_err *e);
/* A list of whole numbers of at most 32 bits, in fresh memory; negative ones are ERR_FORMAT. */
int gguf_u32_list(const struct gguf *g, const struct gguf_value *v, uint32_t **out, struct moeflux_err *e);

/* Walks through a list of texts: gguf_texts_next puts one after another into `text`. Reads of the file are
 * large. */
struct gguf_texts {
    const struct gguf *g;
    const struct gguf_value *v;
    uint64_t next, off; /* item, and where it begins */
    uint64_t from, n;   /* what of the file is in `bytes` */
    uint8_t *bytes;
};
int gguf_texts_open(struct gguf_texts *t, const struct gguf *g, const struct gguf_value *v,
                    struct moeflux_err *e);
/* 1, or 0 behind the last. The text may hold any bytes; ERR_FORMAT: more than 64 KiB. */
int gguf_texts_next(struct gguf_texts *t, struct str *text, struct moeflux_err *e);
void gguf_texts_close(struct gguf_texts *t);

#endif
