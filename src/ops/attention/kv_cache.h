/* kv_cache.h - rows of the KV cache, the pair of kernels/lib/kv_cache.glsl: how their numbers are stored, and
 * the host's way to them. The cache comes in blocks of 1 << KV_BLOCK_SHIFT positions that a table of
 * addresses on the device names; a block holds, for each layer at its layer_off bytes, keys
 * [positions][n_kv_heads][dim] and then values, if any. */
#ifndef MOEFLUX_OPS_ATTENTION_KV_CACHE_H
#define MOEFLUX_OPS_ATTENTION_KV_CACHE_H

#include <stdint.h>

#include "base/f16.h"

/* How the numbers are stored. The values stand in files of states. */
enum kv_type { KV_TYPE_F32 = 0, KV_TYPE_F16 = 1 };

/* The constants of kernels that read or write rows: KV_TYPE and FLAT stand behind those of the kernel's own.
 * */
enum { KV_SPEC = 7, KV_FLAT_SPEC = 8, KV_N_SPEC = 9 };

/* Bytes of one number. */
uint32_t kv_type_bytes(enum kv_type t);

/* The cache of one layer on the host. */
struct kv_rows {
    uint64_t blocks; /* u64 table of pointers */
    uint32_t layer_off, n_kv_heads, dim;
    enum kv_type type;
};

/* Where a head's key (value = 0) or value (1) at a position lies. */
void *kv_rows_at(const struct kv_rows *c, uint32_t pos, uint32_t value, uint32_t kv_head);
/* Number i of a row. */
static inline double kv_rows_get(enum kv_type type, const void *row, uint32_t i)
{
    return (double)(type == KV_TYPE_F16 ? f16_to_float(((const uint16_t *)row)[i]) : ((const float *)row)[i]);
}

/* Writes channels [0, dim) of a row. */
void kv_rows_put(const struct kv_rows *c, void *row, const float *from);

#endif
