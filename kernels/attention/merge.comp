// attention/merge.comp - joins attention's splits and applies the output gate where there is one:
//   out[t][h] = (sum_s acc_s 2^(m_s - m)) / (sum_s l_s 2^(m_s - m)) * sigmoid(gate[t][h])
// Grid: x = n_heads times pieces of 4 * COLS channels, y = tokens. GROUPS = WORKGROUP / COLS invocations share four channels:
// each has every GROUPS-th split, and the first adds up what they have. Each subgroup finds m and the denominator for itself.
// float32, sums in a fixed order, the device's exp2. Tolerance 1e-5 of the largest output, attention included.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint COLS = 16;

layout(push_constant, std430) uniform Args { attention_merge_args a; };

const uint GROUPS = WORKGROUP / COLS;
const uint BATCH = 8; // splits that are loaded at once
const float LOWEST = -3.0e38;

shared vec4 sums[GROUPS > 1 ? WORKGROUP : 1];

vec2 stats_of(uint at, uint split)
{
    return uintBitsToFloat(Twos(a.partial).v[at + split]);
}

// Four channels of a split's sums and its m, of every GROUPS-th split.
struct Parts {
    vec4 sum[BATCH];
    float m[BATCH];
};

void ask(uint row, uint fours, uint stats, uint from, out Parts p)
{
    [[unroll]] for (uint i = 0; i < BATCH; i++) {
        uint s = from + i * GROUPS;
        p.sum[i] = vec4(0.0);
        p.m[i] = LOWEST;
        if (s < a.n_splits) {
            p.sum[i] = F32x4s(a.partial).v[row + s * fours];
            p.m[i] = stats_of(stats, s).x;
        }
    }
}

// The largest m of all splits and the denominator, each split once.
vec2 join_stats(uint stats)
{
    float top = LOWEST, total = 0.0;
    for (uint s = gl_SubgroupInvocationID; s < a.n_splits; s += SUBGROUP) {
        vec2 of = stats_of(stats, s);
        float both = max(top, of.x);
        total = fma(of.y, exp2(of.x - both), total * exp2(top - both));
        top = both;
    }
    float all = subgroupMax(top);
    return vec2(all, subgroupAdd(total * exp2(top - all)));
}

void main()
{
    uint fours = a.value_dim / 4, pieces = (fours + COLS - 1) / COLS;
    uint h = gl_WorkGroupID.x / pieces, token = gl_WorkGroupID.y;
    uint own = gl_WorkGroupID.x % pieces * COLS + gl_LocalInvocationID.x % COLS, col = min(own, fours - 1);
    uint group = gl_LocalInvocationID.x / COLS, first = (token * a.n_heads + h) * a.n_splits;
    uint row = first * fours + col, stats = a.rows * a.n_splits * (a.value_dim / 2) + first;
    Parts p;
    ask(row, fours, stats, group, p);
    vec4 gate = vec4(0.0);
    if (!addr_is_null(a.qkv) && group == 0)
        gate = four_at(a.qkv, (token * a.stride + (2 * h + 1) * a.value_dim) / 4 + col);
    vec2 joined = join_stats(stats);

    vec4 sum = vec4(0.0);
    for (uint s = group; s < a.n_splits; s += BATCH * GROUPS) {
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            sum = fma(p.sum[i], vec4(exp2(p.m[i] - joined.x)), sum);
        if (s + BATCH * GROUPS < a.n_splits)
            ask(row, fours, stats, s + BATCH * GROUPS, p);
    }
    if (GROUPS > 1) {
        sums[gl_LocalInvocationID.x] = sum;
        barrier();
        if (group == 0)
            [[unroll]] for (uint i = 1; i < GROUPS; i++)
                sum += sums[i * COLS + gl_LocalInvocationID.x];
    }
    if (group > 0 || own >= fours)
        return;
    sum /= joined.y;
    if (!addr_is_null(a.qkv))
        sum *= vec4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    F32x4s(a.dst).v[(token * a.dst_stride + h * a.value_dim) / 4 + col] = sum;
}
