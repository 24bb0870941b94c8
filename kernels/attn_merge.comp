// attn_merge.comp - joins attention's splits and applies the output gate:
//   out[t][h] = (sum_s acc_s e^(m_s - m)) / (sum_s l_s e^(m_s - m)) * sigmoid(gate[t][h])
// Grid: x = n_heads, y = tokens; WORKGROUP invocations share the channels. Tolerance 2e-6.
#version 460
#include "memory.glsl"
#include "math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 64;

layout(push_constant, std430) uniform Args { attn_merge_args a; };

void main()
{
    uint h = gl_WorkGroupID.x, token = gl_WorkGroupID.y, d = a.head_dim;
    uint first = (token * a.n_heads + h) * a.n_splits * (d + 2);
    float top = F32s(a.partial).v[first + d];
    for (uint s = 1; s < a.n_splits; s++)
        top = max(top, F32s(a.partial).v[first + s * (d + 2) + d]);
    float sum = 0.0;
    for (uint s = 0; s < a.n_splits; s++) {
        uint row = first + s * (d + 2);
        sum += F32s(a.partial).v[row + d + 1] * exp_exact(F32s(a.partial).v[row + d] - top);
    }
    for (uint c = gl_LocalInvocationID.x; c < d; c += WORKGROUP) {
        float v = 0.0;
        for (uint s = 0; s < a.n_splits; s++) {
            uint row = first + s * (d + 2);
            v = fma(F32s(a.partial).v[row + c], exp_exact(F32s(a.partial).v[row + d] - top), v);
        }
        float gate = F32s(a.qkv).v[token * a.stride + (2 * h + 1) * d + c];
        F32s(a.dst).v[(token * a.n_heads + h) * d + c] = v / sum * sigmoid(gate);
    }
}
