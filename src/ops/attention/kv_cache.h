/* kv_cache.h - rows of the KV cache: how their numbers are stored, and how the host reaches them.
 * kernels/lib/kv_cache.glsl is its counterpart for shaders. The cache comes in blocks of 1 << KV_BLOCK_SHIFT
 * positions, found through a table of addresses on the device. A block holds, for each layer at its layer_off
 * bytes, keys [positions][n_kv_heads][dim] and then values, if any. */
#ifndef MOEFLUX_OPS_ATTENTION_KV_CACHE_H
#define MOEFLUX_OPS_ATTENTION_KV_CACHE_H

#include <stdint.h>

#include "base/f16.h"

/* How the numbers are stored. Saved states contain these values. */
enum kv_type { KV_TYPE_F32 = 0, KV_TYPE_F16 = 1 };

/* Specialisation constants of kernels that read or write rows: KV_TYPE and FLAT follow the kernel's own. */
enum { KV_SPEC = 7, KV_FLAT_SPEC = 8, KV_N_SPEC = 9 };

/* Returns the bytes of one number. */
uint32_t kv_type_bytes(enum kv_type t);

/* The cache of one layer on the host. */
struct kv_rows {
    uint64_t blocks; /* u64 table of pointers */
    uint32_t layer_off, n_kv_heads, dim;
    enum kv_type type;
};

/* Returns the address of a head's key (value = 0) or value (value = 1) at a position. */
void *kv_rows_at(const struct kv_rows *c, uint32_t pos, uint32_t value, uint32_t kv_head);
/* Returns number i of a row. */
static inline double kv_rows_get(enum kv_type type, const void *row, uint32_t i)
{
    return (double)(type == KV_TYPE_F16 ? f16_to_float(((const uint16_t *)row)[i]) : ((const float *)row)[i]);
}

/* Writes channels [0, dim) of a row. */
void kv_rows_put(const struct kv_rows *c, void *row, const float *from);

#endif
