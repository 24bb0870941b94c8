// softcap.comp - bounds logits smoothly: x[i] = cap tanh(x[i] / cap), in place. float32.
// Grid: x = blocks of WORKGROUP numbers. Tolerance 2e-6 of cap.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { softcap_args a; };

void main()
{
    uint i = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x;
    if (i >= a.n)
        return;
    float x = F32s(a.x).v[i], e = exp_exact(-2.0 * abs(x) / a.cap);
    float y = a.cap * (1.0 - e) / (1.0 + e);
    F32s(a.x).v[i] = is_nan(x) ? x : x < 0.0 ? -y : y;
}
