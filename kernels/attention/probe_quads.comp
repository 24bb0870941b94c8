// attention/probe_quads.comp - whether a device's matrices lie as attention/prefill_quads.glsl tells:
//   dst[0] = 1 if so, else 0
// One workgroup of one subgroup of 32. The numbers are exact.
#version 460
#include "lib/memory.glsl"
#include "lib/matrices.glsl"

layout(local_size_x = 32) in;
layout(push_constant, std430) uniform Args { attention_probe_args a; };

shared uvec4 halves[32]; // 0, 1, 2 and so on, eight in each
shared float floats[256];

void main()
{
    uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint i = 0; i < 4; i++)
        halves[lane][i] = packHalf2x16(vec2(8 * lane + 2 * i, 8 * lane + 2 * i + 1));
    [[unroll]] for (uint i = 0; i < 8; i++)
        floats[8 * lane + i] = float(8 * lane + i);
    barrier();
    MatrixA factor;
    MatrixC sums;
    matrix_load(factor, halves, 0, 2, BY_ROWS);
    matrix_load(sums, floats, 0, 16, BY_ROWS);
    bool fits = factor.length() == 8 && sums.length() == 8;
    for (uint i = 0; i < 8 && fits; i++) {
        float want = float(16 * (lane / 4 + i / 4 * 8) + lane % 4 * 2 + (i & 1) + (i & 2) * 4);
        fits = float(factor[i]) == want && sums[i] == want;
    }
    uint all = subgroupMin(fits ? 1u : 0u);
    if (lane == 0)
        U32s(a.dst).v[0] = all;
}
