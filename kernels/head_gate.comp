// head_gate.comp - multiplies the outputs of attention's heads by a gate each: x[t][h][c] *=
// sigmoid(gate[t][h]). float32.
// Grid: x = blocks of WORKGROUP columns of [n_heads * dim], y = tokens. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { head_gate_args a; };

void main()
{
    uint c = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    if (c >= a.n_heads * a.dim)
        return;
    uint at = t * a.n_heads * a.dim + c;
    F32s(a.x).v[at] *= sigmoid(F32s(a.gate).v[t * a.stride + c / a.dim]);
}
