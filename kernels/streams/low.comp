// streams/low.comp - the activation between the two products of the streams' low-rank mix: low = silu(low /
// n_streams), in place.
// Grid: x = blocks of WORKGROUP numbers, y = tokens. float32. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { streams_low_args a; };

void main()
{
    uint i = gl_GlobalInvocationID.x, at = gl_WorkGroupID.y * a.stride + i;
    if (i < a.rank)
        F32s(a.low).v[at] = silu(F32s(a.low).v[at] / float(a.n_streams));
}
