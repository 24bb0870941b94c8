/* kv_cache.h - rows of the KV cache: how their numbers are stored, and how the host reaches them.
 * kernels/lib/kv_cache.glsl is its counterpart for shaders. The cache comes in blocks of 1 << KV_BLOCK_SHIFT
 * positions, found through a table of addresses on the device. A block holds, for each layer at its layer_off
 * bytes, keys [positions][n_kv_heads] and then values, if any. Each of them is a row of numbers. */
#ifndef MOEFLUX_OPS_ATTENTION_KV_CACHE_H
#define MOEFLUX_OPS_ATTENTION_KV_CACHE_H

#include <stdint.h>

#include "base/f16.h"

/* How the numbers of a row are stored. Saved states contain these values.
 *   q8_0   blocks of KV_Q8_BLOCK numbers, of which a row's last one may have fewer. They are quantised as
 *          ggml does it (quantize_row_q8_0_ref), in float32:
 *            scale = max |x| / 127,  code = round(x * (1 / scale)), halves away from 0;  0 if scale is 0
 *          The scale is then rounded to float16. A number's value is code * scale. A block with a number that
 *          is not finite has the scale NaN.
 *          A row has its codes, one signed byte each, then the scales of its blocks, then zeros up to a
 *          multiple of 8 bytes. dim is a multiple of 4. */
enum kv_type { KV_TYPE_F32 = 0, KV_TYPE_F16 = 1, KV_TYPE_Q8_0 = 2 };
enum { KV_Q8_BLOCK = 32 };

/* Specialisation constants of kernels that read or write rows: KV_TYPE and FLAT follow the kernel's own. */
enum { KV_SPEC = 7, KV_FLAT_SPEC = 8, KV_N_SPEC = 9 };

/* Returns the bytes of a row. */
uint32_t kv_row_bytes(enum kv_type type, uint32_t dim);
/* Writes a row. */
void kv_row_put(enum kv_type type, const float *from, uint32_t dim, void *row);
/* Returns the first number of n_rows consecutive rows that is not finite, of q8_0 the first scale; NULL: all
 * are finite. */
const void *kv_row_find_infinite(enum kv_type type, const void *rows, uint64_t n_rows, uint32_t dim);

/* Returns the scale of a block of a q8_0 row. */
static inline float kv_row_scale(const void *row, uint32_t dim, uint32_t block)
{
    return f16_to_float(((const uint16_t *)(const void *)((const uint8_t *)row + dim))[block]);
}

/* Returns number i of a row. */
static inline float kv_row_get(enum kv_type type, const void *row, uint32_t dim, uint32_t i)
{
    if (type == KV_TYPE_Q8_0)
        return (float)((const int8_t *)row)[i] * kv_row_scale(row, dim, i / KV_Q8_BLOCK);
    return type == KV_TYPE_F16 ? f16_to_float(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

/* The cache of one layer on the host. */
struct kv_rows {
    uint64_t blocks; /* u64 table of pointers */
    uint32_t layer_off, n_kv_heads;
    uint32_t dim, value_dim; /* numbers of a key, of a value */
    enum kv_type type;
};

/* Returns the address of a head's key (value = 0) or value (value = 1) at a position. */
void *kv_rows_at(const struct kv_rows *c, uint32_t pos, uint32_t value, uint32_t kv_head);

#endif
