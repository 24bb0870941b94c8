// sample/greedy.comp - the second of two: the choice among what sample/largest.comp found in the blocks, or what is wrong with the
// logits: the first NaN, else the first +infinity, else that all are -infinity.
// Grid: one workgroup.
#version 460
#include "lib/memory.glsl"
#include "sample/weight.h"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { sample_args a; };

#include "sample/largest.glsl"

void main()
{
    Largest best = nothing();
    for (uint i = gl_LocalInvocationID.x; i < (a.n + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK; i += WORKGROUP) {
        uint at = i * 4;
        best = merge(best, Largest(U32s(a.found).v[at], U32s(a.found).v[at + 1], U32s(a.found).v[at + 2],
                                   U32s(a.found).v[at + 3]));
    }
    best = merge_workgroup(best);
    if (gl_LocalInvocationID.x != 0)
        return;
    uint fault = SAMPLE_OK, id = best.id;
    if (best.nan != SAMPLE_NO_ID) {
        fault = SAMPLE_NAN;
        id = best.nan;
    } else if (best.inf != SAMPLE_NO_ID) {
        fault = SAMPLE_INFINITE;
        id = best.inf;
    } else if (best.key <= sample_key(0xff800000u)) {
        fault = SAMPLE_NOTHING;
        id = 0u;
    }
    U32s(a.id).v[0] = fault == SAMPLE_OK ? id : 0u;
    U32s(a.result).v[0] = id;
    U32s(a.result).v[1] = fault;
}
