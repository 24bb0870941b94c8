// matrices/probe.comp - whether a device's matrices lie in quads:
//   dst[0] = 1 if so, else 0
// Lane l, with g = l / 4 and q = l % 4, then has eight numbers of each 16 x 16 matrix, in order
//   of first factors and of sums, [row][column]: of row g columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then of row g + 8
//   of second factors: of column g rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then of column g + 8
// One workgroup of one subgroup of 32. The numbers are exact.
#version 460
#include "lib/memory.glsl"
#include "lib/matrices.glsl"

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
        uint g = lane / 4 + i / 4 * 8, k = lane % 4 * 2 + (i & 1) + (i & 2) * 4;
        fits = float(first[i]) == float(16 * g + k) && float(second[i]) == float(16 * k + g) &&
               sums[i] == float(16 * g + k);
    }
    uint all = subgroupMin(fits ? 1u : 0u);
    if (lane == 0)
        U32s(a.dst).v[0] = all;
}
