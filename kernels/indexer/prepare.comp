// indexer/prepare.comp - index queries, and index rows of the blocks that end in the chunk:
//   q_h = rope(rms(q_h) * q_norm)
//   row = rope(rms(mean of a block's keys) * k_norm), turned as the block's first position is
// and the keys that the next chunk needs. RoPE turns the pairs (i, i + ROTARY / 2).
// Grid: x = n_heads queries, then the keys; y = tokens or rows of the window, whichever are more. float32; a
// mean adds up the keys in their order. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint DIM = 128;
layout(constant_id = 3) const uint ROTARY = 64;
layout(constant_id = 4) const uint RATIO = 4; // positions of a block

const uint SUBGROUPS = WORKGROUP / SUBGROUP, HELD = RATIO - 1, WIDTH = DIM + ROTARY;

layout(push_constant, std430) uniform Args { indexer_prepare_args a; };
#include "indexer/rows.glsl"

shared float head[DIM], turned[DIM];
shared float sums[SUBGROUPS];

float workgroup_sum(float x)
{
    x = subgroupAdd(x);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = x;
    barrier();
    x = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        x += sums[i];
    return x;
}

// Returns number i of row r of [window; chunk]: a token's key, then its cosines and sines.
float held_at(uint r, uint i)
{
    if (r < HELD)
        return F32s(a.window_in).v[r * WIDTH + i];
    r -= HELD;
    if (i < DIM)
        return F32s(a.proj).v[r * a.stride + a.n_heads * DIM + i];
    return F32s(a.rope).v[r * ROTARY + i - DIM];
}

float projected(uint t, uint h, uint c)
{
    if (h < a.n_heads)
        return F32s(a.proj).v[t * a.stride + h * DIM + c];
    float sum = 0.0;
    for (uint j = 0; j < RATIO; j++)
        sum += held_at(t + j, c);
    return sum / float(RATIO);
}

// Norms a head and turns it as row r of [window; chunk].
void norm_and_turn(uint t, uint h, uint r)
{
    uvec2 norm = h < a.n_heads ? a.q_norm : a.k_norm;
    float squares = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        head[c] = projected(t, h, c);
        squares += head[c] * head[c];
    }
    float factor = inversesqrt(workgroup_sum(squares) / float(DIM) + a.eps);
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
        head[c] *= factor * F32s(norm).v[c];
    barrier();
    const uint pairs = ROTARY / 2;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        float v = head[c];
        if (c < ROTARY) {
            uint pair = c < pairs ? c : c - pairs;
            float other = c < pairs ? -head[c + pairs] : head[pair];
            v = v * held_at(r, DIM + 2 * pair) + other * held_at(r, DIM + 2 * pair + 1);
        }
        turned[c] = v;
    }
    barrier();
}

void store_row(uint b)
{
    uvec2 row = index_row(a.blocks, a.layer_off, b);
    for (uint c = gl_LocalInvocationID.x; KV_TYPE == KV_F32 && c < DIM; c += WORKGROUP)
        F32s(row).v[c] = turned[c];
    for (uint i = gl_LocalInvocationID.x; KV_TYPE == KV_F16 && i < DIM / 2; i += WORKGROUP)
        U32s(row).v[i] = packHalf2x16(
            clamp(vec2(turned[2 * i], turned[2 * i + 1]), vec2(-65504.0), vec2(65504.0)));
}

void main()
{
    uint h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    bool is_key = h == a.n_heads;
    if (is_key && t < HELD)
        for (uint i = gl_LocalInvocationID.x; i < WIDTH; i += WORKGROUP)
            F32s(a.window_out).v[t * WIDTH + i] = held_at(a.n + t, i);
    if (t >= a.n || (is_key && (a.pos + t + 1) % RATIO != 0))
        return;
    norm_and_turn(t, h, is_key ? t : HELD + t);
    if (is_key)
        store_row((a.pos + t) / RATIO);
    else
        for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
            F32s(a.q).v[(t * a.n_heads + h) * DIM + c] = turned[c];
}
