// kv_cache.glsl - rows of the KV cache: where they lie and how their numbers are stored
// (ops/attention/kv_cache.h).
// FLAT: the same numbers outside the cache, keys [positions][n][dim] and values likewise.
#ifndef KV_CACHE_GLSL
#define KV_CACHE_GLSL

layout(constant_id = 7) const uint KV_TYPE = KV_F32;
layout(constant_id = 8) const uint FLAT = 0;

const uint Q8_BLOCK = 32; // numbers that share a scale

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 v[]; };
// eight halves
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer F16x8s { uvec4 v[]; };

// Returns the bytes of a row of dim numbers.
uint row_bytes(uint dim)
{
    if (KV_TYPE == KV_Q8_0)
        return (dim + 2 * ((dim + Q8_BLOCK - 1) / Q8_BLOCK) + 7) / 8 * 8;
    return (KV_TYPE == KV_F16 ? 2 : 4) * dim;
}

// Return the key and the value of a head at position p. blocks: the table. A block has the rows of keys,
// [positions][n], then those of values.
uvec2 key_cache_row(uvec2 blocks, uint layer_off, uint p, uint kv_head, uint n, uint dim)
{
    uvec2 block = Addrs(blocks).v[p >> KV_BLOCK_SHIFT];
    uint row = p & ((1u << KV_BLOCK_SHIFT) - 1);
    return addr_add(block, layer_off + (row * n + kv_head) * row_bytes(dim));
}

uvec2 value_cache_row(uvec2 blocks, uint layer_off, uint p, uint kv_head, uint n, uint key_dim,
                      uint value_dim)
{
    uint keys = (n << KV_BLOCK_SHIFT) * row_bytes(key_dim);
    return key_cache_row(blocks, layer_off + keys, p, kv_head, n, value_dim);
}

// Returns a head's FLAT row at position p.
uvec2 flat_row(uvec2 rows, uint p, uint kv_head, uint n, uint dim)
{
    return addr_add(rows, (p * n + kv_head) * row_bytes(dim));
}

// Returns four q8_0 codes as numbers, by way of the integers 2^23 + 128 + code, which floats hold exactly.
vec4 q8_codes(uint codes)
{
    uvec4 u = (uvec4(codes ^ 0x80808080u) >> uvec4(0, 8, 16, 24)) & 0xffu;
    return uintBitsToFloat(u | 0x4b000000u) - 8388736.0;
}

// Returns the scale of channel c of a q8_0 row of dim numbers.
float q8_scale(uvec2 row, uint dim, uint c)
{
    uint block = c / Q8_BLOCK;
    return unpackHalf2x16(U32s(row).v[dim / 4 + block / 2] >> block % 2 * 16).x;
}

// Returns channels 8 * i .. of a row as they are stored; not of float32. dim: numbers of the row.
uvec4 stored_eight(uvec2 row, uint dim, uint i)
{
    if (KV_TYPE == KV_Q8_0)
        return uvec4(two_at(row, i), floatBitsToUint(q8_scale(row, dim, 8 * i)), 0);
    return F16x8s(row).v[i];
}

// Returns half h of channels in the form that stored_eight returns.
vec4 stored_four(uvec4 eight, uint h)
{
    if (KV_TYPE == KV_Q8_0)
        return q8_codes(h == 0 ? eight.x : eight.y) * uintBitsToFloat(eight.z);
    uvec2 two = h == 0 ? eight.xy : eight.zw;
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
}

// Returns numbers as halves, the largest for those that are larger.
uint halves2(vec2 v)
{
    return packHalf2x16(clamp(v, vec2(-65504.0), vec2(65504.0)));
}

uvec4 halves8(vec4 a, vec4 b)
{
    return uvec4(halves2(a.xy), halves2(a.zw), halves2(b.xy), halves2(b.zw));
}

// Returns halves as a later read of the cache gives them. zero: 0, which the compiler does not know; some
// compilers drop a conversion to halves and back if nothing stands in between (NVIDIA's, 580.159).
vec2 halves_read(uint halves, uint zero)
{
    return unpackHalf2x16(halves ^ zero);
}

// Returns, as halves, channels in the form that stored_eight returns.
uvec4 stored_halves(uvec4 eight)
{
    return KV_TYPE == KV_Q8_0 ? halves8(stored_four(eight, 0), stored_four(eight, 1)) : eight;
}

// Returns channels 4 * i .. of a row of dim numbers.
vec4 cache_four(uvec2 row, uint dim, uint i)
{
    if (KV_TYPE == KV_F32)
        return four_at(row, i);
    if (KV_TYPE == KV_Q8_0)
        return q8_codes(U32s(row).v[i]) * q8_scale(row, dim, 4 * i);
    uvec2 packed = two_at(row, i);
    return vec4(unpackHalf2x16(packed.x), unpackHalf2x16(packed.y));
}

#endif
