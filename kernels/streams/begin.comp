// streams/begin.comp - the residual's streams begin as copies of the embedding: x[t][s] = src[t].
// Grid: x = blocks of WORKGROUP * 4 channels, y = tokens. Exact.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { streams_begin_args a; };

void main()
{
    uint c = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, row = a.hidden / 4;
    if (c >= row)
        return;
    vec4 v = F32x4s(a.src).v[t * row + c];
    for (uint s = 0; s < a.n_streams; s++)
        F32x4s(a.x).v[(t * a.n_streams + s) * row + c] = v;
}
