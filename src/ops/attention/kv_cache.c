#include "ops/attention/kv_cache.h"

#include "args.h"
#include "base/f16.h"

_Static_assert((int)KV_TYPE_F32 == KV_F32 && (int)KV_TYPE_F16 == KV_F16,
               "types of numbers of the operations and of the kernels");

uint32_t kv_type_bytes(enum kv_type t)
{
    return t == KV_TYPE_F16 ? 2 : 4;
}

void *kv_rows_at(const struct kv_rows *c, uint32_t pos, uint32_t value, uint32_t kv_head)
{
    uint64_t block = ((const uint64_t *)(uintptr_t)c->blocks)[pos >> KV_BLOCK_SHIFT];
    uint64_t row = ((uint64_t)value << KV_BLOCK_SHIFT) + (pos & ((1u << KV_BLOCK_SHIFT) - 1));
    uint64_t number = (row * c->n_kv_heads + kv_head) * c->dim;
    return (void *)(uintptr_t)(block + c->layer_off + number * kv_type_bytes(c->type));
}

void kv_rows_put(const struct kv_rows *c, void *row, const float *from)
{
    for (uint32_t i = 0; i < c->dim; i++)
        if (c->type == KV_TYPE_F16)
            ((uint16_t *)row)[i] = f16_from_float(from[i]);
        else
            ((float *)row)[i] = from[i];
}
