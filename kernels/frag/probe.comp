// frag/probe.comp - where the lanes of a subgroup have the numbers of matrices, for kernels/lib/gemm_frag.glsl:
//   dst[l][0 .. 7]  row * 16 + column of the 16 x 16 float16 numbers that lane l has, in order, of weights
//   dst[l][8 .. 11] row * 8 + column of the 16 x 8 numbers, of inputs;  dst[l][12 .. 15] of float32 sums
//   dst[l][16 .. 18] how many of each a lane has
// One workgroup of one subgroup of 32. The numbers are exact.
#version 460
#include "lib/memory.glsl"
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require

layout(local_size_x = 32) in;
layout(push_constant, std430) uniform Args { frag_probe_args a; };

shared uvec4 halves[32]; // 0, 1, 2 and so on, eight in each
shared float floats[128];

void main()
{
    uint lane = gl_SubgroupInvocationID, at = lane * FRAG_PROBE_WORDS;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        halves[lane][i] = packHalf2x16(vec2(8 * lane + 2 * i, 8 * lane + 2 * i + 1));
        floats[4 * lane + i] = float(4 * lane + i);
    }
    subgroupBarrier();
    fcoopmatNV<16, gl_ScopeSubgroup, 16, 16> w;
    fcoopmatNV<16, gl_ScopeSubgroup, 16, 8> x;
    fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> sum;
    coopMatLoadNV(w, halves, 0, 2, false);
    coopMatLoadNV(x, halves, 0, 1, false);
    coopMatLoadNV(sum, floats, 0, 8, false);
    for (uint i = 0; i < 8; i++)
        U32s(a.dst).v[at + i] = i < w.length() ? uint(w[i]) : 0;
    for (uint i = 0; i < 4; i++) {
        U32s(a.dst).v[at + 8 + i] = i < x.length() ? uint(x[i]) : 0;
        U32s(a.dst).v[at + 12 + i] = i < sum.length() ? uint(sum[i]) : 0;
    }
    U32s(a.dst).v[at + 16] = w.length();
    U32s(a.dst).v[at + 17] = x.length();
    U32s(a.dst).v[at + 18] = sum.length();
}
