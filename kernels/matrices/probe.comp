// matrices/probe.comp - tests whether a device's matrices have the known fragment layout
// (lib/fragment_layout.glsl):
//   dst[0] = 1 if they do, else 0
// One workgroup of one subgroup of 32. The numbers are exact.
// variants: coop
#version 460
#include "lib/memory.glsl"
#include "lib/matrices.glsl"
#include "lib/fragment_layout.glsl"

layout(local_size_x = 32) in;
layout(push_constant, std430) uniform Args { matrices_probe_args a; };

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
    MatrixA first;
    MatrixB second;
    MatrixC sums;
    matrix_load(first, halves, 0, 2, BY_ROWS);
    matrix_load(second, halves, 0, 2, BY_ROWS);
    matrix_load(sums, floats, 0, 16, BY_ROWS);
    bool fits = first.length() == 8 && second.length() == 8 && sums.length() == 8;
    for (uint i = 0; i < 8 && fits; i++) {
        uint g = frag_line() + i / 4 * 8, k = frag_col(i);
        fits = float(first[i]) == float(16 * g + k) && float(second[i]) == float(16 * k + g) &&
               sums[i] == float(16 * g + k);
    }
    uint all = subgroupMin(fits ? 1u : 0u);
    if (lane == 0)
        U32s(a.dst).v[0] = all;
}
