// mla/prepare.comp - the step between the products of latent attention and its scores. It applies RoPE to the
// queries' rotary channels, into q_out, which may be in place. It writes the position's row of the cache: the
// latent's rms norm and the rotary key after RoPE.
// Grid: x = 1 for the cache's row, then blocks of WORKGROUP pairs of the queries' channels; y = tokens.
// float32 sums. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_store.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint INTERLEAVED = 0; // 1: pairs (2i, 2i + 1); 0: (i, i + rope_dim / 2)
layout(constant_id = 3) const uint ROW_DIM = 576;   // latent_dim + rope_dim

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { mla_prepare_args a; };

shared float sums[SUBGROUPS];
shared vec4 staged[KV_TYPE == KV_Q8_0 ? ROW_DIM / 4 : 1];

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

uvec2 channels_of(uint pair)
{
    return INTERLEAVED != 0 ? uvec2(2 * pair, 2 * pair + 1) : uvec2(pair, pair + a.rope_dim / 2);
}

// Returns a turned pair of the rotary channels from src on.
vec2 turned(uint token, uvec2 from, uint src, uint pair)
{
    uvec2 at = src + channels_of(pair);
    uint of_pair = (token * (a.rope_dim / 2) + pair) * 2;
    float co = F32s(a.rope).v[of_pair], si = F32s(a.rope).v[of_pair + 1];
    float u = F32s(from).v[at.x], v = F32s(from).v[at.y], across = v * si, along = u * si;
    return vec2(fma(u, co, -across), fma(v, co, along));
}

vec4 staged_four(uint at)
{
    return staged[at];
}

// Stores channels 2 * i and 2 * i + 1 of a row of the cache; of q8_0 in shared memory.
void store_two(uvec2 row, uint i, vec2 v)
{
    if (KV_TYPE == KV_Q8_0) {
        if (i % 2 == 0)
            staged[i / 2].xy = v;
        else
            staged[i / 2].zw = v;
    } else if (KV_TYPE == KV_F16) {
        U32s(row).v[i] = halves2(v);
    } else {
        F32s(row).v[2 * i] = v.x;
        F32s(row).v[2 * i + 1] = v.y;
    }
}

// Returns channels 2 * i and 2 * i + 1 of the turned rotary key from src on.
vec2 key_two(uint token, uint src, uint i)
{
    if (INTERLEAVED != 0)
        return turned(token, a.kv, src, i);
    uint pairs = a.rope_dim / 2, c = 2 * i;
    vec2 one = turned(token, a.kv, src, c % pairs), other = turned(token, a.kv, src, (c + 1) % pairs);
    return vec2(c < pairs ? one.x : one.y, c + 1 < pairs ? other.x : other.y);
}

void write_row(uint token)
{
    uint src = token * a.kv_stride + a.kv_at, rope_src = src + a.latent_dim;
    uvec2 dst = key_cache_row(a.blocks, a.layer_off, a.pos + token, 0, 1, a.latent_dim + a.rope_dim);
    float squares = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < a.latent_dim; c += WORKGROUP) {
        float v = F32s(a.kv).v[src + c];
        squares = fma(v, v, squares);
    }
    float factor = inversesqrt(workgroup_sum(squares) / float(a.latent_dim) + a.eps);
    for (uint i = gl_LocalInvocationID.x; i < a.latent_dim / 2; i += WORKGROUP) {
        vec2 v = vec2(F32s(a.kv).v[src + 2 * i], F32s(a.kv).v[src + 2 * i + 1]);
        store_two(dst, i, v * factor * vec2(F32s(a.norm).v[2 * i], F32s(a.norm).v[2 * i + 1]));
    }
    for (uint i = gl_LocalInvocationID.x; i < a.rope_dim / 2; i += WORKGROUP)
        store_two(dst, a.latent_dim / 2 + i, key_two(token, rope_src, i));
    if (KV_TYPE == KV_Q8_0) {
        barrier();
        store_staged(dst, 0, ROW_DIM, gl_LocalInvocationID.x, WORKGROUP);
    }
}

void main()
{
    uint token = gl_WorkGroupID.y;
    if (gl_WorkGroupID.x == 0) {
        write_row(token);
        return;
    }
    uint pairs = a.rope_dim / 2, at = (gl_WorkGroupID.x - 1) * WORKGROUP + gl_LocalInvocationID.x;
    uint h = at / pairs, i = at % pairs;
    uint src = token * a.q_stride + h * (a.nope_dim + a.rope_dim) + a.nope_dim;
    uint dst = token * a.out_stride + h * a.out_step + a.out_at;
    if (h >= a.n_heads)
        return;
    uvec2 to = dst + channels_of(i);
    vec2 v = turned(token, a.q, src, i);
    F32s(a.q_out).v[to.x] = v.x;
    F32s(a.q_out).v[to.y] = v.y;
}
