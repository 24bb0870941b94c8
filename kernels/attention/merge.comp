// attention/merge.comp - joins attention's splits and applies the output gate where there is one:
//   out[t][h] = (sum_s acc_s e^(m_s - m)) / (sum_s l_s e^(m_s - m)) * sigmoid(gate[t][h])
// Grid: x = n_heads, y = tokens; WORKGROUP invocations share the channels. Each subgroup finds m and the denominator
// for itself, a lane for every SUBGROUP-th split; sums over the splits are in order, the
// exponentials the device's. Tolerance 1e-5 of the largest output, attention included.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { attention_merge_args a; };

const uint BATCH = 4; // splits whose values are loaded at once
const float LOWEST = -3.0e38;

// The largest of the splits' maxima.
float find_top(uint first)
{
    float top = LOWEST;
    for (uint s = gl_SubgroupInvocationID; s < a.n_splits; s += SUBGROUP)
        top = max(top, F32s(a.partial).v[first + s * (a.value_dim + 2) + a.value_dim]);
    return subgroupMax(top);
}

// Channel c of the head whose first split is at `first`. All lanes of a subgroup call it.
float merged(uint first, float top, uint c)
{
    uint step = a.value_dim + 2;
    float v = 0.0, sum = 0.0;
    for (uint from = 0; from < a.n_splits; from += SUBGROUP) {
        uint n = min(SUBGROUP, a.n_splits - from), mine = from + min(gl_SubgroupInvocationID, n - 1);
        float w = exp(F32s(a.partial).v[first + mine * step + a.value_dim] - top);
        w = gl_SubgroupInvocationID < n ? w : 0.0;
        sum += w * F32s(a.partial).v[first + mine * step + a.value_dim + 1];
        for (uint i = 0; i < n; i += BATCH) {
            float part[BATCH];
            uint at = first + (from + i) * step + c, last = first + (from + n - 1) * step + c;
            [[unroll]] for (uint j = 0; j < BATCH; j++)
                part[j] = F32s(a.partial).v[min(at + j * step, last)];
            [[unroll]] for (uint j = 0; j < BATCH; j++)
                v = fma(part[j], i + j < n ? subgroupShuffle(w, i + j) : 0.0, v);
        }
    }
    return v / subgroupAdd(sum);
}

void main()
{
    uint h = gl_WorkGroupID.x, token = gl_WorkGroupID.y, d = a.value_dim;
    uint first = (token * a.n_heads + h) * a.n_splits * (d + 2);
    float top = find_top(first);
    for (uint from = 0; from < d; from += WORKGROUP) {
        uint c = from + gl_LocalInvocationID.x, in_head = min(c, d - 1);
        float v = merged(first, top, in_head);
        if (!addr_is_null(a.qkv))
            v *= sigmoid(F32s(a.qkv).v[token * a.stride + (2 * h + 1) * d + in_head]);
        if (c < d)
            F32s(a.dst).v[token * a.dst_stride + h * d + c] = v;
    }
}
