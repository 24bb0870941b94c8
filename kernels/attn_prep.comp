// attn_prep.comp - what stands between the q/k/v product and attention: rms norm of each query and key head, RoPE
// (pairs i, i + rotary_dim / 2), and the new keys and values go into the cache.
// Grid: x = n_heads queries, n_kv_heads keys, n_kv_heads values; y = tokens; one subgroup a head. Tolerance 2e-6.
#version 460
#include "memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PER_LANE = 8; // ceil(head_dim / SUBGROUP)

layout(push_constant, std430) uniform Args { attn_prep_args a; };

shared float head[PER_LANE * SUBGROUP];

uvec2 cache_row(uint pos, uint value, uint kv_head)
{
    uvec2 block = Addrs(a.blocks).v[pos >> KV_BLOCK_SHIFT];
    uint row = (value << KV_BLOCK_SHIFT) + (pos & ((1u << KV_BLOCK_SHIFT) - 1));
    return addr_add(block, a.layer_off + 4 * (row * a.n_kv_heads + kv_head) * a.head_dim);
}

// Normalises and rotates head_dim elements from `src` on into dst.
void norm_and_rope(uint src, uvec2 norm, uvec2 dst, uint token)
{
    uint lane = gl_SubgroupInvocationID, half_dim = a.rotary_dim / 2;
    float v[PER_LANE], squares = 0.0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * SUBGROUP + lane;
        v[i] = c < a.head_dim ? F32s(a.qkv).v[src + c] : 0.0;
        squares += v[i] * v[i];
    }
    float factor = inversesqrt(subgroupAdd(squares) / float(a.head_dim) + a.eps);
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * SUBGROUP + lane;
        if (c < a.head_dim)
            head[c] = v[i] * factor * F32s(norm).v[c];
    }
    barrier();
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * SUBGROUP + lane;
        if (c >= a.head_dim)
            continue;
        float y = head[c];
        if (c < a.rotary_dim) {
            uint pair = c < half_dim ? c : c - half_dim;
            float co = F32s(a.rope).v[(token * half_dim + pair) * 2];
            float si = F32s(a.rope).v[(token * half_dim + pair) * 2 + 1];
            y = c < half_dim ? y * co - head[c + half_dim] * si : y * co + head[c - half_dim] * si;
        }
        F32s(dst).v[c] = y;
    }
}

void main()
{
    uint h = gl_WorkGroupID.x, token = gl_WorkGroupID.y;
    uint row = token * a.stride, d = a.head_dim;
    if (h < a.n_heads) {
        uvec2 dst = addr_add(a.q, 4 * (token * a.n_heads + h) * d);
        norm_and_rope(row + 2 * h * d, a.q_norm, dst, token);
        return;
    }
    h -= a.n_heads;
    uint keys = row + 2 * a.n_heads * d;
    if (h < a.n_kv_heads) {
        norm_and_rope(keys + h * d, a.k_norm, cache_row(a.pos + token, 0, h), token);
        return;
    }
    h -= a.n_kv_heads;
    uvec2 dst = cache_row(a.pos + token, 1, h);
    for (uint c = gl_SubgroupInvocationID; c < d; c += SUBGROUP)
        F32s(dst).v[c] = F32s(a.qkv).v[keys + (a.n_kv_heads + h) * d + c];
}
