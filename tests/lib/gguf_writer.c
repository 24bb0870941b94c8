#include "gguf_writer.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "base/ggml_type.h"
#include "base/gguf.h"
#include "tmp_tree.h"

enum { ALIGN = 32 };

void gguf_writer_put(struct str *s, uint64_t word, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        str_add(s, (const char[]){(char)(word >> (8 * i))}, 1);
}

void gguf_writer_put_text(struct str *s, const char *text)
{
    gguf_writer_put(s, strlen(text), 8);
    str_add_text(s, text);
}

static void add_key(struct gguf_writer *w, const char *key, enum gguf_kind kind)
{
    gguf_writer_put_text(&w->values, key);
    gguf_writer_put(&w->values, kind, 4);
    w->n_values++;
}

void gguf_writer_whole(struct gguf_writer *w, const char *key, uint32_t n)
{
    add_key(w, key, GGUF_U32);
    gguf_writer_put(&w->values, n, 4);
}

void gguf_writer_real(struct gguf_writer *w, const char *key, float x)
{
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    add_key(w, key, GGUF_F32);
    gguf_writer_put(&w->values, word, 4);
}

void gguf_writer_text(struct gguf_writer *w, const char *key, const char *text)
{
    add_key(w, key, GGUF_TEXT);
    gguf_writer_put_text(&w->values, text);
}

void gguf_writer_texts(struct gguf_writer *w, const char *key, const char *const *texts, uint64_t n)
{
    add_key(w, key, GGUF_LIST);
    gguf_writer_put(&w->values, GGUF_TEXT, 4);
    gguf_writer_put(&w->values, n, 8);
    for (uint64_t i = 0; i < n; i++)
        gguf_writer_put_text(&w->values, texts[i]);
}

static void put_words(struct gguf_writer *w, const char *key, enum gguf_kind kind, const void *words,
                      uint64_t n)
{
    add_key(w, key, GGUF_LIST);
    gguf_writer_put(&w->values, kind, 4);
    gguf_writer_put(&w->values, n, 8);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)words + i * sizeof word, sizeof word);
        gguf_writer_put(&w->values, word, 4);
    }
}

void gguf_writer_floats(struct gguf_writer *w, const char *key, const float *numbers, uint64_t n)
{
    put_words(w, key, GGUF_F32, numbers, n);
}

void gguf_writer_wholes(struct gguf_writer *w, const char *key, const uint32_t *numbers, uint64_t n)
{
    put_words(w, key, GGUF_I32, numbers, n);
}

/* Q2_K: sixteen numbers of scale 15, all but one of them 0, followed by sixteen of scale 1. A 4-bit format
 * with one scale for both loses much of the latter. */
static uint8_t byte_of_q2_k(uint32_t i, uint8_t drawn)
{
    if (i >= 80)
        return (const uint8_t[]){0, 0x3c, 0, 0x38}[i - 80];
    if (i < 16)
        return i % 2 ? 0x11 : 0x0f;
    return i % 32 == 16 ? 0xff : i % 32 > 16 ? 0 : drawn;
}

/* Byte i of a block, which makes numbers that are finite. */
static uint8_t byte_of(uint32_t type, uint32_t i, uint8_t drawn)
{
    if (type == GGML_TYPE_F32)
        return (uint8_t)(i == 3 ? 0x3f : i == 2 ? drawn & 127 : drawn);
    if (type == 10)
        return byte_of_q2_k(i, drawn);
    /* The types in use have one or two float16 scales, or a byte of exponent, at their beginning. */
    return i == 1 || i == 3 ? 0x1c : drawn;
}

/* Adds a tensor's description and begins its data. Returns the bytes of its data. */
static uint64_t begin_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint64_t cols,
                             uint64_t rows, uint64_t depth)
{
    const struct ggml_type *t = ggml_type_find(type);
    const uint64_t shape[] = {cols, rows, depth};
    uint32_t n_dims = depth > 1 ? 3 : rows > 1 ? 2 : 1;
    assert_non_null(t);
    while (w->data.len % ALIGN)
        gguf_writer_put(&w->data, 0, 1);
    gguf_writer_put_text(&w->tensors, name);
    gguf_writer_put(&w->tensors, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++)
        gguf_writer_put(&w->tensors, shape[i], 8);
    gguf_writer_put(&w->tensors, type, 4);
    gguf_writer_put(&w->tensors, w->data.len, 8);
    w->n_tensors++;
    return cols / t->block * t->bytes * rows * depth;
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                        uint64_t depth)
{
    uint32_t seed = (uint32_t)w->data.len + 1;
    uint64_t n = begin_tensor(w, name, type, cols, rows, depth);
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        gguf_writer_put(&w->data,
                        byte_of(type, (uint32_t)(i % ggml_type_find(type)->bytes), (uint8_t)(seed >> 24)), 1);
    }
}

void gguf_writer_bytes(struct gguf_writer *w, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                       uint64_t depth, const void *bytes)
{
    uint64_t n = begin_tensor(w, name, type, cols, rows, depth);
    str_add(&w->data, bytes, n);
}

void gguf_writer_values(struct gguf_writer *w, uint32_t hidden, uint32_t inner)
{
    const struct {
        const char *key;
        uint32_t n;
    } values[] = {{"block_count", 1},           {"context_length", 64},
                  {"embedding_length", hidden}, {"expert_count", 2},
                  {"expert_used_count", 1},     {"expert_feed_forward_length", inner},
                  {"attention.head_count", 1},  {"attention.head_count_kv", 1},
                  {"attention.key_length", 64}, {"rope.freq_base", 10000}};
    gguf_writer_text(w, "general.architecture", "qwen3moe");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char key[64];
        snprintf(key, sizeof key, "qwen3moe.%s", values[i].key);
        gguf_writer_whole(w, key, values[i].n);
    }
    add_key(w, "qwen3moe.attention.layer_norm_rms_epsilon", GGUF_F32);
    gguf_writer_put(&w->values, 0x358637bd, 4); /* 1e-6 */
}

void gguf_writer_model(struct gguf_writer *w, uint32_t hidden, uint32_t inner, uint32_t type)
{
    /* The type of everything except the experts. */
    enum { Q8_0 = 8 };
    gguf_writer_values(w, hidden, inner);
    gguf_writer_tensor(w, "token_embd.weight", Q8_0, hidden, 8, 1);
    gguf_writer_tensor(w, "output_norm.weight", 0, hidden, 1, 1);
    gguf_writer_tensor(w, "blk.0.attn_norm.weight", 0, hidden, 1, 1);
    gguf_writer_tensor(w, "blk.0.ffn_norm.weight", 0, hidden, 1, 1);
    gguf_writer_tensor(w, "blk.0.attn_q.weight", Q8_0, hidden, 64, 1);
    gguf_writer_tensor(w, "blk.0.attn_k.weight", Q8_0, hidden, 64, 1);
    gguf_writer_tensor(w, "blk.0.attn_v.weight", Q8_0, hidden, 64, 1);
    gguf_writer_tensor(w, "blk.0.attn_output.weight", Q8_0, 64, hidden, 1);
    gguf_writer_tensor(w, "blk.0.attn_q_norm.weight", 0, 64, 1, 1);
    gguf_writer_tensor(w, "blk.0.attn_k_norm.weight", 0, 64, 1, 1);
    gguf_writer_tensor(w, "blk.0.ffn_gate_inp.weight", 0, hidden, 2, 1);
    gguf_writer_tensor(w, "blk.0.ffn_gate_exps.weight", type, hidden, inner, 2);
    gguf_writer_tensor(w, "blk.0.ffn_up_exps.weight", type, hidden, inner, 2);
    gguf_writer_tensor(w, "blk.0.ffn_down_exps.weight", type, inner, hidden, 2);
}

struct str gguf_writer_take(struct gguf_writer *w)
{
    struct str s = {0};
    if (w->align)
        gguf_writer_whole(w, "general.alignment", w->align);
    str_add_text(&s, "GGUF");
    gguf_writer_put(&s, 3, 4);
    gguf_writer_put(&s, w->n_tensors, 8);
    gguf_writer_put(&s, w->n_values, 8);
    str_add(&s, str_text(&w->values), w->values.len);
    str_add(&s, str_text(&w->tensors), w->tensors.len);
    while (s.len % (w->align ? w->align : ALIGN))
        gguf_writer_put(&s, 0, 1);
    str_add(&s, str_text(&w->data), w->data.len);
    assert_true(str_ok(&s) && str_ok(&w->data));
    str_free(&w->values);
    str_free(&w->tensors);
    str_free(&w->data);
    *w = (struct gguf_writer){0};
    return s;
}

void gguf_writer_finish(struct gguf_writer *w, const char *dir, const char *name)
{
    struct str s = gguf_writer_take(w);
    tmp_tree_write(dir, name, s.data, s.len);
    str_free(&s);
}
