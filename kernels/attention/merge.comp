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

void ask(uint row, uint fours, uint from, out vec4 part[BATCH])
{
    [[unroll]] for (uint i = 0; i < BATCH; i++)
        part[i] = F32x4s(a.partial).v[row + min(from + i * GROUPS, a.n_splits - 1) * fours];
}

void main()
{
    uint fours = a.value_dim / 4, pieces = (fours + COLS - 1) / COLS;
    uint h = gl_WorkGroupID.x / pieces, token = gl_WorkGroupID.y;
    uint own = gl_WorkGroupID.x % pieces * COLS + gl_LocalInvocationID.x % COLS, col = min(own, fours - 1);
    uint group = gl_LocalInvocationID.x / COLS, first = (token * a.n_heads + h) * a.n_splits;
    uint row = first * fours + col, stats = a.rows * a.n_splits * (a.value_dim / 2) + first;
    vec4 part[BATCH];
    ask(row, fours, group, part);

    float top = LOWEST, total = 0.0;
    for (uint s = gl_SubgroupInvocationID; s < a.n_splits; s += SUBGROUP)
        top = max(top, stats_of(stats, s).x);
    top = subgroupMax(top);
    for (uint s = gl_SubgroupInvocationID; s < a.n_splits; s += SUBGROUP)
        total = fma(stats_of(stats, s).y, exp2(stats_of(stats, s).x - top), total);
    total = subgroupAdd(total);

    vec4 sum = vec4(0.0);
    for (uint s = group; s < a.n_splits; s += BATCH * GROUPS) {
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            if (s + i * GROUPS < a.n_splits)
                sum = fma(part[i], vec4(exp2(stats_of(stats, s + i * GROUPS).x - top)), sum);
        ask(row, fours, s + BATCH * GROUPS, part);
    }
    if (GROUPS > 1) {
        sums[gl_LocalInvocationID.x] = sum;
        barrier();
        for (uint i = 1; group == 0 && i < GROUPS; i++)
            sum += sums[i * COLS + gl_LocalInvocationID.x];
    }
    if (group > 0 || own >= fours)
        return;
    sum /= total;
    if (!addr_is_null(a.qkv)) {
        vec4 gate = four_at(a.qkv, (token * a.stride + (2 * h + 1) * a.value_dim) / 4 + col);
        sum *= vec4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    }
    F32x4s(a.dst).v[(token * a.dst_stride + h * a.value_dim) / 4 + col] = sum;
}
