// gqa/prepare.comp - the step between the q/k/v product and attention: adds biases (BIASED), applies the rms
// norm of query and key heads (NORM) and RoPE (pairs i, i + rotary_dim / 2), and writes the new keys and
// values to the cache; with norms_values the values are divided by the rms of their heads. Values have
// VALUE_DIM channels, at most head_dim, and are multiplied by VALUE_SCALE.
// Grid: x = n_heads queries, n_kv_heads keys, n_kv_heads values; with NORM_ALL one workgroup for all of them;
// y = tokens; RECORDS: z = sequences. A head is WORKGROUP invocations with PER_LANE channels each. PER_LANE
// is 1 on a GPU, where everything is loaded at once and the code stays short. float32 sums. Tolerance 2e-6.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/kv_store.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint PER_LANE = 1; // ceil(head_dim / WORKGROUP)
layout(constant_id = 3) const uint NORM = NORM_HEADS;
layout(constant_id = 4) const uint BIASED = 0;
layout(constant_id = 5) const uint VALUE_DIM = 256;
layout(constant_id = 6) const float VALUE_SCALE = 1.0;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

ARGS(gqa_prepare_args)

shared float head[(PER_LANE * WORKGROUP + 3) / 4 * 4];
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

float projected(uint token, uint i)
{
    float v = F32s(a.qkv).v[token * a.stride + i];
    return BIASED != 0 ? v + F32s(a.bias).v[i] : v;
}

// Returns 1 / rms of the n numbers from `at` on.
float rms_factor(uint token, uint at, uint n)
{
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < n; i += WORKGROUP) {
        float v = projected(token, at + i);
        squares += v * v;
    }
    float sum = workgroup_sum(squares);
    barrier();
    return inversesqrt(sum / float(n) + a.eps);
}

// Channel c of a head that begins at `at` in its token's row, and what RoPE turns it by.
struct Channel {
    float v, norm, co, si;
};

// dim: channels of the head. norm_at: index of its first channel in the norm.
Channel load_channel(uint at, uint dim, uvec2 norm, uint norm_at, uint token, uint c)
{
    uint half_dim = a.rotary_dim / 2, pair = c < half_dim ? c : c - half_dim;
    Channel ch = Channel(0.0, 1.0, 1.0, 0.0);
    if (c < dim) {
        ch.v = projected(token, at + c);
        if (NORM != NORM_NONE)
            ch.norm = F32s(norm).v[norm_at + c];
    }
    if (c < a.rotary_dim) {
        ch.co = F32s(a.rope).v[(token * half_dim + pair) * 2];
        ch.si = F32s(a.rope).v[(token * half_dim + pair) * 2 + 1];
    }
    return ch;
}

void norm_and_rope(inout Channel ch[PER_LANE], float factor)
{
    uint half_dim = a.rotary_dim / 2;
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        squares += ch[i].v * ch[i].v;
    if (NORM == NORM_HEADS)
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

void scale_values(inout Channel ch[PER_LANE])
{
    float squares = 0.0, factor = VALUE_SCALE;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        squares += ch[i].v * ch[i].v;
    if (a.norms_values != 0)
        factor *= inversesqrt(workgroup_sum(squares) / float(VALUE_DIM) + a.eps);
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        ch[i].v *= factor;
}

void store_floats(uvec2 dst, uint dim, Channel ch[PER_LANE])
{
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < dim)
            F32s(dst).v[c] = ch[i].v;
    }
}

vec4 staged_four(uint at)
{
    return vec4(head[4 * at], head[4 * at + 1], head[4 * at + 2], head[4 * at + 3]);
}

void store_q8(uvec2 dst, uint dim, Channel ch[PER_LANE])
{
    barrier(); // norm_and_rope has read what it staged
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        head[i * WORKGROUP + gl_LocalInvocationID.x] = ch[i].v;
    barrier();
    store_staged(dst, 0, dim, gl_LocalInvocationID.x, WORKGROUP);
}

// A lane with an even channel also writes its neighbour's channel if numbers have two bytes.
void store_cache(uvec2 dst, uint dim, Channel ch[PER_LANE])
{
    if (KV_TYPE == KV_F32) {
        store_floats(dst, dim, ch);
        return;
    }
    if (KV_TYPE == KV_Q8_0) {
        store_q8(dst, dim, ch);
        return;
    }
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        float next = subgroupShuffleXor(ch[i].v, 1);
        if (c < dim && c % 2 == 0)
            U32s(dst).v[c / 2] = halves2(vec2(ch[i].v, next));
    }
}

// Prepares row h of the token's queries, keys and values.
void prepare(uint h, uint token, vec2 factors)
{
    uint d = a.head_dim;
    bool is_query = h < a.n_heads, is_value = h >= a.n_heads + a.n_kv_heads;
    uint kv = h - a.n_heads; // index among the keys and values, which follow the queries and gates
    uint step = 1 + a.is_gated;
    uint dim = is_value ? VALUE_DIM : d;
    uint at = (is_query ? step * h : step * a.n_heads + kv) * d;
    if (is_value)
        at = (step * a.n_heads + a.n_kv_heads) * d + (kv - a.n_kv_heads) * dim;
    uvec2 norm = is_query ? a.q_norm : a.k_norm;
    uint norm_at = NORM != NORM_ALL || is_value ? 0 : (is_query ? h : kv) * d;
    Channel ch[PER_LANE];
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        ch[i] = load_channel(at, dim, norm, norm_at, token, i * WORKGROUP + gl_LocalInvocationID.x);
    if (!is_value)
        norm_and_rope(ch, is_query ? factors.x : factors.y);
    else
        scale_values(ch);
    if (is_query)
        store_floats(addr_add(a.q, 4 * (token * a.n_heads + h) * d), d, ch);
    else if (is_value)
        store_cache(value_cache_row(a.blocks, a.layer_off, a.pos + token, kv - a.n_kv_heads, a.n_kv_heads, d,
                                    dim), dim, ch);
    else
        store_cache(key_cache_row(a.blocks, a.layer_off, a.pos + token, kv, a.n_kv_heads, d), d, ch);
}

void main()
{
    take_args();
    uint token = gl_WorkGroupID.y, d = a.head_dim, rows = a.n_heads + 2 * a.n_kv_heads;
    if (NORM != NORM_ALL) {
        prepare(gl_WorkGroupID.x, token, vec2(1.0));
        return;
    }
    vec2 factors;
    factors.x = rms_factor(token, 0, a.n_heads * d);
    factors.y = rms_factor(token, a.n_heads * d, a.n_kv_heads * d);
    for (uint h = 0; h < rows; h++) {
        prepare(h, token, factors);
        barrier();
    }
}
