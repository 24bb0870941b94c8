// kv_cache.glsl - rows of the KV cache: where they lie and how their numbers are stored.
// FLAT: the same numbers outside the cache, keys [positions][n][dim] and values likewise.
#ifndef KV_CACHE_GLSL
#define KV_CACHE_GLSL

layout(constant_id = 7) const uint KV_TYPE = KV_F32;
layout(constant_id = 8) const uint FLAT = 0;

const uint KV_BYTES = KV_TYPE == KV_F16 ? 2 : 4; // bytes of a number

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 v[]; };
// eight halves
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer F16x8s { uvec4 v[]; };

// Returns the key (value = 0) or value (1) of a head at position p. blocks: the table. Rows are
// [2][positions][n][dim].
uvec2 cache_row(uvec2 blocks, uint layer_off, uint p, uint value, uint kv_head, uint n, uint dim)
{
    uvec2 block = Addrs(blocks).v[p >> KV_BLOCK_SHIFT];
    uint row = (value << KV_BLOCK_SHIFT) + (p & ((1u << KV_BLOCK_SHIFT) - 1));
    return addr_add(block, layer_off + KV_BYTES * (row * n + kv_head) * dim);
}

// Returns a head's FLAT row at position p.
uvec2 flat_row(uvec2 rows, uint p, uint kv_head, uint n, uint dim)
{
    return addr_add(rows, KV_BYTES * (p * n + kv_head) * dim);
}

// Returns channels 4 * i .. of a row.
vec4 cache_four(uvec2 row, uint i)
{
    if (KV_TYPE == KV_F32)
        return four_at(row, i);
    uvec2 packed = two_at(row, i);
    return vec4(unpackHalf2x16(packed.x), unpackHalf2x16(packed.y));
}

#endif
