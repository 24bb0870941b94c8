#include "model/extent_rule.h"

#include <math.h>
#include <string.h>

#include "base/format.h"
#include "base/mem.h"
#include "model/nvfp4.h"
#include "model/packed.h"
#include "model/tensor.h"

struct extent_rule extent_rule_blocks(const struct fp8_blocks *b, const struct tensor *scales, uint32_t rows,
                                      uint32_t cols, uint32_t group, uint64_t at)
{
    return (struct extent_rule){.change = EXTENT_BLOCKS,
                                .at = at,
                                .end = at + (uint64_t)rows * (cols / group) * sizeof(float),
                                .scale = tensor_scale_type(scales->dtype),
                                .scale_bytes = tensor_dtype_bytes(scales->dtype),
                                .block_rows = b->rows,
                                .block_cols = b->cols,
                                .group = group,
                                .rows = rows,
                                .cols = cols};
}

/* Writes the scale of block number `i` to its rows and groups. */
static void put_block(const struct extent_rule *r, uint64_t i, float scale, uint8_t *slot)
{
    uint64_t wide = div_up(r->cols, r->block_cols), groups = r->cols / r->group;
    uint64_t row = i / wide * r->block_rows, last_row = size_min(row + r->block_rows, r->rows);
    uint64_t first = i % wide * r->block_cols / r->group,
             last = size_min(first + r->block_cols / r->group, groups);
    for (; row < last_row; row++)
        for (uint64_t g = first; g < last; g++)
            memcpy(slot + r->at + (row * groups + g) * sizeof scale, &scale, sizeof scale);
}

static bool place_blocks(const struct extent_rule *r, uint64_t from, const uint8_t *bytes, uint64_t n,
                         uint8_t *slot)
{
    for (uint64_t i = 0; i < n / r->scale_bytes; i++) {
        float scale = format_scale(r->scale, bytes, i);
        if (!isfinite(scale))
            return false;
        put_block(r, from / r->scale_bytes + i, scale, slot);
    }
    return true;
}

static void place_rows(const struct extent_rule *r, uint64_t from, const uint8_t *bytes, uint64_t n,
                       uint8_t *slot)
{
    while (n > 0) {
        uint64_t row = from / r->row_bytes, in_row = from % r->row_bytes;
        uint64_t some = size_min(r->row_bytes - in_row, n);
        memcpy(slot + (row % 2 ? r->second_at : r->at) + row / 2 * r->row_bytes + in_row, bytes, some);
        bytes += some;
        from += some;
        n -= some;
    }
}

static bool place_centred(const struct extent_rule *r, uint64_t from, const uint8_t *bytes, uint64_t n,
                          uint8_t *slot)
{
    memcpy(slot + r->at + from, bytes, n);
    return packed_biases(bytes, n / 2, slot + r->second_at + from);
}

/* Puts a factor to its place, and zeros that fill its room. */
static void place_factor(const struct extent_rule *r, float factor, uint8_t *slot)
{
    memset(slot + r->second_at, 0, FORMAT_FACTOR_BYTES);
    memcpy(slot + r->second_at, &factor, sizeof factor);
}

static bool place_scales(const struct extent_rule *r, uint64_t from, const uint8_t *bytes, uint64_t n,
                         uint8_t *slot)
{
    memcpy(slot + r->at + from, bytes, n);
    return format_scales_are_finite(SCALE_E4M3_FACTOR, bytes, n);
}

static bool place_nvfp4(const struct extent_rule *r, uint64_t from, const uint8_t *bytes, uint64_t n,
                        uint8_t *slot)
{
    uint8_t *scales = slot + r->scales_at;
    nvfp4_split(bytes, from, n, slot + r->at, scales);
    uint64_t first = (from + NVFP4_BLOCK_BYTES - 1) / NVFP4_BLOCK_BYTES;
    uint64_t end = (from + n + NVFP4_BLOCK_BYTES - 1) / NVFP4_BLOCK_BYTES;
    return format_scales_are_finite(SCALE_E4M3_FACTOR, scales + first * NVFP4_BLOCK_SCALES,
                                    (end - first) * NVFP4_BLOCK_SCALES);
}

bool extent_rule_place(const struct extent_rule *r, const struct tensor_factor *factor, uint64_t from,
                       const uint8_t *bytes, uint64_t n, uint8_t *slot)
{
    bool has_factor = r->change == EXTENT_FACTOR || r->change == EXTENT_NVFP4;
    if (has_factor && from == 0) /* one thread writes it: that with the first bytes */
        place_factor(r, factor->by, slot);
    if (r->change == EXTENT_FACTOR)
        return place_scales(r, from, bytes, n, slot);
    if (r->change == EXTENT_NVFP4)
        return place_nvfp4(r, from, bytes, n, slot);
    if (r->change == EXTENT_BLOCKS)
        return place_blocks(r, from, bytes, n, slot);
    if (r->change == EXTENT_CENTRED)
        return place_centred(r, from, bytes, n, slot);
    place_rows(r, from, bytes, n, slot);
    return r->scale == SCALE_NONE || format_scales_are_finite(r->scale, bytes, n);
}
