// streams/mix.comp - the input of a sublayer from the residual's streams: dst[t] = mean_s(sigmoid(up[t][s]) *
// normed[t][s]).
// Grid: x = blocks of WORKGROUP * 4 channels, y = tokens. float32, the sum in the order of the streams.
// Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { streams_mix_args a; };

void main()
{
    uint c = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, row = a.hidden / 4;
    if (c >= row)
        return;
    vec4 sum = vec4(0.0);
    for (uint s = 0; s < a.n_streams; s++) {
        uint at = (t * a.n_streams + s) * row + c;
        vec4 up = F32x4s(a.up).v[at];
        vec4 by = vec4(sigmoid(up.x), sigmoid(up.y), sigmoid(up.z), sigmoid(up.w));
        sum = fma(by, F32x4s(a.normed).v[at], sum);
    }
    F32x4s(a.dst).v[t * row + c] = sum / float(a.n_streams);
}
