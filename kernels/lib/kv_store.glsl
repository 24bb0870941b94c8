// kv_store.glsl - writes q8_0 rows of the KV cache (ops/attention/kv_cache.h). Rows come from shared memory:
// the includer defines staged_four.
#ifndef KV_STORE_GLSL
#define KV_STORE_GLSL

#include "lib/kv_cache.glsl"

// Returns the `at`-th four numbers in shared memory.
vec4 staged_four(uint at);

// Returns the scale of the block of channel c before it is rounded. at: the row's first four numbers; dim:
// number of all.
float staged_scale(uint at, uint dim, uint c)
{
    uint first = c / Q8_BLOCK * (Q8_BLOCK / 4);
    float most = 0.0;
    [[unroll]] for (uint i = 0; i < Q8_BLOCK / 4; i++) {
        vec4 v = abs(staged_four(at + min(first + i, dim / 4 - 1)));
        most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
    }
    return most / 127.0;
}

// Returns the codes of the row's channels 4 * i ...
uint staged_codes(uint at, uint dim, uint i)
{
    float scale = staged_scale(at, dim, 4 * i), by = scale > 0.0 ? 1.0 / scale : 0.0;
    vec4 v = staged_four(at + i) * by;
    uvec4 u = uvec4(ivec4(v + 0.5 * sign(v))) & 0xffu;
    return u.x | u.y << 8 | u.z << 16 | u.w << 24;
}

// Returns the scales of blocks 2 * i and 2 * i + 1; 0 past the last block.
uint staged_scales(uint at, uint dim, uint i)
{
    vec2 scales = vec2(0.0);
    [[unroll]] for (uint k = 0; k < 2; k++)
        if ((2 * i + k) * Q8_BLOCK < dim)
            scales[k] = min(staged_scale(at, dim, (2 * i + k) * Q8_BLOCK), 65504.0);
    return packHalf2x16(scales);
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
