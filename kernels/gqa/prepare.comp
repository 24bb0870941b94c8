// gqa/prepare.comp - what stands between the q/k/v product and attention: the biases (BIASED), rms norm of each query and key
// head (NORMED), RoPE (pairs i, i + rotary_dim / 2), and the new keys and values go into the cache.
// Grid: x = n_heads queries, n_kv_heads keys, n_kv_heads values; y = tokens. A head is WORKGROUP invocations with
// PER_LANE channels each: one on a GPU, where everything is loaded at once and the code stays short. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint PER_LANE = 1; // ceil(head_dim / WORKGROUP)
layout(constant_id = 3) const uint NORMED = 1;
layout(constant_id = 4) const uint BIASED = 0;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { gqa_prepare_args a; };

shared float head[PER_LANE * WORKGROUP];
shared float sums[SUBGROUPS];

float workgroup_sum(float x)
{
    x = subgroupAdd(x);
    if (SUBGROUPS == 1)
        return x;
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = x;
    barrier();
    x = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        x += sums[i];
    return x;
}

// Channel c of a head that stands at `at` in its token's row, and what it is turned by.
struct Channel {
    float v, norm, co, si;
};

Channel load_channel(uint at, uvec2 norm, uint token, uint c)
{
    uint half_dim = a.rotary_dim / 2, pair = c < half_dim ? c : c - half_dim;
    Channel ch = Channel(0.0, 1.0, 1.0, 0.0);
    if (c < a.head_dim) {
        ch.v = F32s(a.qkv).v[token * a.stride + at + c];
        if (BIASED != 0)
            ch.v += F32s(a.bias).v[at + c];
        if (NORMED != 0)
            ch.norm = F32s(norm).v[c];
    }
    if (c < a.rotary_dim) {
        ch.co = F32s(a.rope).v[(token * half_dim + pair) * 2];
        ch.si = F32s(a.rope).v[(token * half_dim + pair) * 2 + 1];
    }
    return ch;
}

void norm_and_rope(inout Channel ch[PER_LANE])
{
    uint half_dim = a.rotary_dim / 2;
    float squares = 0.0, factor = 1.0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        squares += ch[i].v * ch[i].v;
    if (NORMED != 0)
        factor = inversesqrt(workgroup_sum(squares) / float(a.head_dim) + a.eps);
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        ch[i].v *= factor * ch[i].norm;
        head[i * WORKGROUP + gl_LocalInvocationID.x] = ch[i].v;
    }
    barrier();
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < a.rotary_dim) {
            float other = c < half_dim ? -head[c + half_dim] : head[c - half_dim];
            ch[i].v = ch[i].v * ch[i].co + other * ch[i].si;
        }
    }
}

void store_query(uvec2 dst, Channel ch[PER_LANE])
{
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < a.head_dim)
            F32s(dst).v[c] = ch[i].v;
    }
}

// A lane with an even channel writes its neighbour's with its own where numbers have two bytes.
void store_cache(uvec2 dst, Channel ch[PER_LANE])
{
    if (KV_TYPE == KV_F32) {
        store_query(dst, ch);
        return;
    }
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        float next = subgroupShuffleXor(ch[i].v, 1);
        vec2 both = clamp(vec2(ch[i].v, next), vec2(-65504.0), vec2(65504.0));
        if (c < a.head_dim && c % 2 == 0)
            U32s(dst).v[c / 2] = packHalf2x16(both);
    }
}

void main()
{
    uint h = gl_WorkGroupID.x, token = gl_WorkGroupID.y, d = a.head_dim;
    bool is_query = h < a.n_heads, is_value = h >= a.n_heads + a.n_kv_heads;
    uint kv = h - a.n_heads; // of the keys and values that stand behind the queries and gates
    uint step = 1 + a.is_gated;
    uint at = (is_query ? step * h : step * a.n_heads + kv) * d;
    uvec2 norm = is_query ? a.q_norm : a.k_norm;
    Channel ch[PER_LANE];
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        ch[i] = load_channel(at, norm, token, i * WORKGROUP + gl_LocalInvocationID.x);
    if (!is_value)
        norm_and_rope(ch);
    if (is_query)
        store_query(addr_add(a.q, 4 * (token * a.n_heads + h) * d), ch);
    else
        store_cache(cache_row(a.blocks, a.layer_off, a.pos + token, is_value ? 1 : 0,
                              is_value ? kv - a.n_kv_heads : kv, a.n_kv_heads, d), ch);
}
