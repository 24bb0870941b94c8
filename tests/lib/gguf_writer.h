/* gguf_writer.h - builds GGUF files for tests. Everything asserts. */
#ifndef MOEFLUX_TESTS_GGUF_WRITER_H
#define MOEFLUX_TESTS_GGUF_WRITER_H

#include <stdint.h>

#include "base/str.h"

/* Little-endian words of 1 to 8 bytes, and texts with their length before them. */
void gguf_writer_put(struct str *s, uint64_t word, size_t bytes);
void gguf_writer_put_text(struct str *s, const char *text);

struct gguf_writer {
    struct str values, tensors, data;
    uint64_t n_values, n_tensors;
    uint32_t align; /* general.alignment; 0: 32, without a key */
};

void gguf_writer_whole(struct gguf_writer *w, const char *key, uint32_t n);
void gguf_writer_real(struct gguf_writer *w, const char *key, float x);
void gguf_writer_text(struct gguf_writer *w, const char *key, const char *text);
void gguf_writer_texts(struct gguf_writer *w, const char *key, const char *const *texts, uint64_t n);

void gguf_writer_floats(struct gguf_writer *w, const char *key, const float *numbers, uint64_t n);
/* A list of whole numbers of 32 bits. */
void gguf_writer_wholes(struct gguf_writer *w, const char *key, const uint32_t *numbers, uint64_t n);

/* A tensor of drawn bytes; of type 0 they are numbers around 1. Sizes of 1 at the end are left out. */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                        uint64_t depth);

/* A tensor of these bytes. */
void gguf_writer_bytes(struct gguf_writer *w, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                       uint64_t depth, const void *bytes);

/* Values and tensors of a Qwen3-MoE of one layer with 2 experts: hidden and inner
 * columns, experts of `type`. */
void gguf_writer_values(struct gguf_writer *w, uint32_t hidden, uint32_t inner);
void gguf_writer_model(struct gguf_writer *w, uint32_t hidden, uint32_t inner, uint32_t type);

/* The file's bytes, the caller's; empties the writer. */
struct str gguf_writer_take(struct gguf_writer *w);
/* The same as dir/name. */
void gguf_writer_finish(struct gguf_writer *w, const char *dir, const char *name);

#endif
