#include "ops/attention/kv_cache.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"

_Static_assert((int)KV_TYPE_F32 == KV_F32 && (int)KV_TYPE_F16 == KV_F16 && (int)KV_TYPE_Q8_0 == KV_Q8_0,
               "types of numbers of the operations and of the kernels");

enum { Q8_ALIGN = 8 };

uint32_t kv_row_bytes(enum kv_type type, uint32_t dim)
{
    if (type == KV_TYPE_Q8_0)
        return (uint32_t)size_round_up(dim + sizeof(uint16_t) * div_up(dim, KV_Q8_BLOCK), Q8_ALIGN);
    return dim * (type == KV_TYPE_F16 ? 2 : 4);
}

/* Rounds |x| <= 127 to the nearest integer, halves away from 0. The difference is exact. */
static int8_t q8_code(float x)
{
    float size = fabsf(x) < 127 ? fabsf(x) : 127, whole = (float)(int)size;
    int code = (int)whole + (size - whole >= 0.5f);
    return (int8_t)(x < 0 ? -code : code);
}

/* Writes the codes of one block. Returns its scale. */
static float put_q8_block(const float *from, uint32_t n, int8_t *codes)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++) /* a NaN stays */
        most = fabsf(from[i]) > most || isnan(from[i]) ? fabsf(from[i]) : most;
    float scale = most / 127, by = scale > 0 ? 1 / scale : 0;
    if (!isfinite(scale)) {
        memset(codes, 0, n);
        return NAN;
    }
    for (uint32_t i = 0; i < n; i++)
        codes[i] = q8_code(from[i] * by);
    return scale;
}

static void put_q8(const float *from, uint32_t dim, uint8_t *row)
{
    uint8_t *to = row + dim;
    for (uint32_t i = 0; i < dim; i += KV_Q8_BLOCK, to += sizeof(uint16_t)) {
        uint32_t n = (uint32_t)size_min(dim - i, KV_Q8_BLOCK);
        uint16_t scale = f16_from_float(put_q8_block(from + i, n, (int8_t *)row + i));
        memcpy(to, &scale, sizeof scale);
    }
    memset(to, 0, (size_t)(row + kv_row_bytes(KV_TYPE_Q8_0, dim) - to));
}

void kv_row_put(enum kv_type type, const float *from, uint32_t dim, void *row)
{
    if (type == KV_TYPE_F32)
        memcpy(row, from, dim * sizeof *from);
    else if (type == KV_TYPE_Q8_0)
        put_q8(from, dim, row);
    for (uint32_t i = 0; type == KV_TYPE_F16 && i < dim; i++)
        ((uint16_t *)row)[i] = f16_from_float(from[i]);
}

const void *kv_row_find_infinite(enum kv_type type, const void *rows, uint64_t n_rows, uint32_t dim)
{
    const uint8_t *row = rows;
    uint32_t bytes = kv_row_bytes(type, dim), number = type == KV_TYPE_F32 ? 4 : 2, skipped = 0;
    if ((type == KV_TYPE_F32 && float_all_finite(rows, n_rows * dim)) ||
        (type == KV_TYPE_F16 && f16_all_finite(rows, n_rows * dim)))
        return NULL;
    if (type == KV_TYPE_Q8_0)
        skipped = dim;
    for (; n_rows > 0; n_rows--, row += bytes)
        for (uint32_t at = skipped; at < bytes; at += number)
            if (number == 4 ? !float_all_finite(row + at, 1) : !f16_all_finite(row + at, 1))
                return row + at;
    return NULL;
}

void *kv_rows_at(const struct kv_rows *c, uint32_t pos, uint32_t value, uint32_t kv_head)
{
    uint64_t block = ((const uint64_t *)(uintptr_t)c->blocks)[pos >> KV_BLOCK_SHIFT];
    uint64_t row = (uint64_t)(pos & ((1u << KV_BLOCK_SHIFT) - 1)) * c->n_kv_heads + kv_head;
    uint64_t key_bytes = kv_row_bytes(c->type, c->dim), keys = c->n_kv_heads * key_bytes << KV_BLOCK_SHIFT;
    return (void *)(uintptr_t)(block + c->layer_off +
                               (value ? keys + row * kv_row_bytes(c->type, c->value_dim) : row * key_bytes));
}
