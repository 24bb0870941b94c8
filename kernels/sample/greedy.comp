// sample/greedy.comp - the second of two kernels: the best of what sample/largest.comp found in the blocks,
// or the fault of the logits: the first NaN, else the first +infinity, else that all are -infinity. Grid: one
// workgroup. Exact.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "sample/weight.h"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

ARGS(sample_args)

#include "sample/largest.glsl"

void main()
{
    take_args();
    Largest best = merge_blocks();
    if (gl_LocalInvocationID.x == 0)
        answer(best, best.id);
}
