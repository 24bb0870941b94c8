// swiglu.comp - the activation between the products of a dense feed-forward part: dst[t] = silu(gate[t]) *
// up[t], or another activation (gated() in lib/math.glsl). float32.
// Grid: x = blocks of WORKGROUP * 4 columns, y = tokens. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { swiglu_args a; };

void main()
{
    uint c4 = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x, t = gl_WorkGroupID.y, row4 = a.inner / 4;
    if (c4 >= row4)
        return;
    uint up_at = a.gating == GATING_RELU ? 0 : row4, at = t * (row4 + up_at) + c4; // it has no gate
    vec4 g = F32x4s(a.src).v[at], u = F32x4s(a.src).v[at + up_at];
    vec4 v;
    [[unroll]] for (uint i = 0; i < 4; i++)
        v[i] = gated(g[i], u[i], a.gating);
    F32x4s(a.dst).v[t * row4 + c4] = v;
}
