// ssd/norm.comp - divides each group of a token's channels by its rms and multiplies it by weights, in place:
//   x[t][g] = x[t][g] / sqrt(mean(x[t][g]^2) + eps) * norm[g]
//
// Grid: x = groups, y = tokens. A workgroup sums in float32: each lane its channels in order, then a tree.
// Tolerance 1e-5 of the largest output.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;

layout(push_constant, std430) uniform Args { ssd_norm_args a; };

shared float sums[WORKGROUP / SUBGROUP];

void main()
{
    uint first = (gl_WorkGroupID.y * a.n_groups + gl_WorkGroupID.x) * a.size,
         weights = gl_WorkGroupID.x * a.size;
    float squares = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < a.size; c += WORKGROUP) {
        float x = F32s(a.x).v[first + c];
        squares = fma(x, x, squares);
    }
    squares = subgroupAdd(squares);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = squares;
    barrier();
    squares = 0.0;
    for (uint i = 0; i < WORKGROUP / SUBGROUP; i++)
        squares += sums[i];
    float by = inversesqrt(squares / float(a.size) + a.eps);
    for (uint c = gl_LocalInvocationID.x; c < a.size; c += WORKGROUP)
        F32s(a.x).v[first + c] *= by * F32s(a.norm).v[weights + c];
}
