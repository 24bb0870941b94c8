// streams/norm.comp - the end of a sublayer and the beginning of the next one, for each stream:
//   x[t][s] += 2 sigmoid(by[t][s] / n_streams) * add[t]     only if there is `add`
//   dst[t][s] = rms(x[t][s]) * norm[s]                      only if there is `dst`
// Grid: x = streams, y = tokens; an invocation has HELD groups of four channels. float32; the order of the
// sum of squares depends on the workgroup alone. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint HELD = 1; // ceil(hidden / 4 / WORKGROUP)

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { streams_norm_args a; };

shared float sums[SUBGROUPS];

void main()
{
    uint s = gl_WorkGroupID.x, t = gl_WorkGroupID.y, fours = a.hidden / 4;
    uint row = (t * a.n_streams + s) * fours;
    vec4 v[HELD], norm[HELD];
    float by = 0.0, squares = 0.0;
    if (!addr_is_null(a.add))
        by = 2.0 * sigmoid(F32s(a.by).v[t * a.by_stride + s] / float(a.n_streams));
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        v[i] = norm[i] = vec4(0.0);
        if (c >= fours)
            continue;
        v[i] = F32x4s(a.x).v[row + c];
        if (!addr_is_null(a.dst))
            norm[i] = F32x4s(a.norm).v[s * fours + c];
        if (!addr_is_null(a.add)) {
            v[i] = fma(vec4(by), F32x4s(a.add).v[t * fours + c], v[i]);
            F32x4s(a.x).v[row + c] = v[i];
        }
        squares += dot(v[i], v[i]);
    }
    if (addr_is_null(a.dst))
        return;
    squares = subgroupAdd(squares);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = squares;
    barrier();
    squares = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        squares += sums[i];
    float factor = inversesqrt(squares / float(a.hidden) + a.eps);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < fours)
            F32x4s(a.dst).v[row + c] = v[i] * factor * norm[i];
    }
}
