// indexer/prepare.comp - index queries, and index rows of the blocks that end in the chunk:
//   q_h = rope(rms(q_h) * q_norm)
//   row = rope(rms(mean of a block's keys) * k_norm), turned as the block's first position is
// or with LAYER_NORM
//   q_h = rope(q_h),  row = rope(rms(m - mean(m)) * k_norm + k_bias) for the mean m of a block's keys
// or with POOLED, which has LAYER_NORM and no ROTARY, for each channel c
//   row_c = sum_j softmax_j(gate_jc + pool_bias_jc) * key_jc,  key_j: the layer norm of a block's key
// and the keys that the next chunk needs, with angles or gates. RoPE turns the pairs (i, i + ROTARY / 2), or
// (2i, 2i + 1) with INTERLEAVED.
// Grid: x = n_heads queries, then the keys; y = tokens or rows of the window, whichever are more. float32; a
// mean adds up the keys in their order. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint DIM = 128;
layout(constant_id = 3) const uint ROTARY = 64;
layout(constant_id = 4) const uint RATIO = 4; // positions of a block

layout(constant_id = 5) const uint LAYER_NORM = 0;
layout(constant_id = 6) const uint INTERLEAVED = 0;

layout(constant_id = 9) const uint POOLED = 0;

const uint SUBGROUPS = WORKGROUP / SUBGROUP, HELD = RATIO - 1, WIDTH = DIM + (POOLED != 0 ? DIM : ROTARY);

layout(push_constant, std430) uniform Args { indexer_prepare_args a; };
#include "indexer/rows.glsl"

shared float head[DIM], turned[DIM], top[DIM], total[DIM];
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

// Returns number i of row r of [window; chunk]: a token's key, then its cosines and sines or its gates.
float held_at(uint r, uint i)
{
    if (r < HELD)
        return F32s(a.window_in).v[r * WIDTH + i];
    r -= HELD;
    if (i < DIM || POOLED != 0)
        return F32s(a.keys).v[r * a.key_stride + i];
    return F32s(a.rope).v[r * ROTARY + i - DIM];
}

float projected(uint t, uint h, uint c)
{
    if (h < a.n_heads)
        return F32s(a.queries).v[t * a.stride + h * DIM + c];
    float sum = 0.0;
    for (uint j = 0; j < RATIO; j++)
        sum += held_at(t + j, c);
    return sum / float(RATIO);
}

// Norms the head in shared memory, each invocation its own channels. is_shifted: k_bias is added.
void norm_head(uvec2 norm, bool is_shifted)
{
    float squares = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
        squares += head[c] * head[c];
    float factor = inversesqrt(workgroup_sum(squares) / float(DIM) + a.eps);
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
        head[c] = head[c] * (factor * F32s(norm).v[c]) + (is_shifted ? F32s(a.k_bias).v[c] : 0.0);
}

// Subtracts the mean of the head in shared memory; sum: an invocation's own channels.
void subtract_mean(float sum)
{
    float mean = workgroup_sum(sum) / float(DIM);
    barrier();
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
        head[c] -= mean;
}

// Returns what channel c of the block's position j has before the softmax; t: the block's last token.
float pool_logit(uint t, uint j, uint c)
{
    return held_at(t + j, DIM + c) + F32s(a.pool_bias).v[j * DIM + c];
}

// Averages the keys of the block whose last token is t.
void pool(uint t)
{
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        float most = pool_logit(t, 0, c), sum = 0.0;
        for (uint j = 1; j < RATIO; j++)
            most = max(most, pool_logit(t, j, c));
        for (uint j = 0; j < RATIO; j++)
            sum += exp_exact(pool_logit(t, j, c) - most);
        top[c] = most;
        total[c] = sum;
        turned[c] = 0.0;
    }
    for (uint j = 0; j < RATIO; j++) {
        float sum = 0.0;
        for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
            head[c] = held_at(t + j, c);
            sum += head[c];
        }
        subtract_mean(sum);
        norm_head(a.k_norm, true);
        for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
            turned[c] += head[c] * exp_exact(pool_logit(t, j, c) - top[c]) / total[c];
        barrier();
    }
}

// Norms a head and turns it as row r of [window; chunk].
void norm_and_turn(uint t, uint h, uint r)
{
    bool is_key = h == a.n_heads;
    float sum = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        head[c] = projected(t, h, c);
        sum += head[c];
    }
    if (LAYER_NORM != 0 && is_key)
        subtract_mean(sum);
    if (LAYER_NORM == 0 || is_key)
        norm_head(is_key ? a.k_norm : a.q_norm, LAYER_NORM != 0);
    barrier();
    const uint pairs = ROTARY / 2, apart = INTERLEAVED != 0 ? 1 : pairs;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        float v = head[c];
        if (c < ROTARY) {
            bool is_first = INTERLEAVED != 0 ? c % 2 == 0 : c < pairs;
            uint pair = INTERLEAVED != 0 ? c / 2 : c % max(pairs, 1);
            float other = is_first ? -head[c + apart] : head[c - apart];
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
    if (POOLED != 0 && is_key)
        pool(t);
    else
        norm_and_turn(t, h, is_key ? t : HELD + t);
    if (is_key)
        store_row((a.pos + t) / RATIO);
    else
        for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
            F32s(a.q).v[(t * a.n_heads + h) * DIM + c] = turned[c];
}
