// kv_store.glsl - writes q8_0 rows of the KV cache (ops/attention/kv_cache.h). Rows come from shared memory:
// the includer defines staged_four.
#ifndef KV_STORE_GLSL
#define KV_STORE_GLSL

#include "lib/kv_cache.glsl"

// Returns the `at`-th four numbers in shared memory.
vec4 staged_four(uint at);

const uint INFINITE = 0x7f800000u; // bits of a float without its sign from which it is not finite

// Returns the largest |x| of the block of channel c, as the bits of a float: the largest integer is also the
// largest float, and a NaN stays. at: the row's first four numbers; dim: number of all.
uint staged_most(uint at, uint dim, uint c)
{
    uint first = c / Q8_BLOCK * (Q8_BLOCK / 4), most = 0;
    [[unroll]] for (uint i = 0; i < Q8_BLOCK / 4; i++) {
        uvec4 v = floatBitsToUint(staged_four(at + min(first + i, dim / 4 - 1))) & 0x7fffffffu;
        most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
    }
    return most;
}

// Returns the scale, as it is stored, of a block whose staged_most is `most`.
uint stored_scale(uint most)
{
    if (most >= INFINITE)
        return 0x7e00u; // NaN
    return packHalf2x16(vec2(min(uintBitsToFloat(most) / 127.0, 65504.0), 0.0));
}

// Returns the codes of the row's channels 4 * i ...
uint staged_codes(uint at, uint dim, uint i)
{
    uint most = staged_most(at, dim, 4 * i);
    float scale = uintBitsToFloat(most) / 127.0;
    if (most >= INFINITE || scale == 0.0)
        return 0;
    vec4 v = staged_four(at + i) * (1.0 / scale);
    uvec4 u = uvec4(ivec4(v + 0.5 * sign(v))) & 0xffu;
    return u.x | u.y << 8 | u.z << 16 | u.w << 24;
}

// Returns the scales of blocks 2 * i and 2 * i + 1; 0 past the last block.
uint staged_scales(uint at, uint dim, uint i)
{
    uint scales = 0;
    [[unroll]] for (uint k = 0; k < 2; k++)
        if ((2 * i + k) * Q8_BLOCK < dim)
            scales |= stored_scale(staged_most(at, dim, (2 * i + k) * Q8_BLOCK)) << 16 * k;
    return scales;
}

// Writes the row, divided among `lanes` lanes.
void store_staged(uvec2 row, uint at, uint dim, uint lane, uint lanes)
{
    for (uint i = lane; i < dim / 4; i += lanes)
        U32s(row).v[i] = staged_codes(at, dim, i);
    for (uint i = lane; i < (row_bytes(dim) - dim) / 4; i += lanes)
        U32s(row).v[dim / 4 + i] = staged_scales(at, dim, i);
}

#endif
