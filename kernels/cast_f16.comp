// cast_f16.comp - rounds the vectors of a chunk to float16, for the products of gemm.glsl that take float16:
//   dst[t][c] = x[t][c] f_t norm[c],  f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
// Values beyond +-65504 become +-65504. Grid: x = tokens. Sums are float32. Tolerance: float16's rounding,
// 1e-3 of each output.
#version 460
#include "lib/memory.glsl"
#include "lib/put_halves.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint FORM = 0; // FORM_* of put_halves.glsl

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { cast_f16_args a; };

shared float sums[SUBGROUPS];

float factor(uint row)
{
    if (addr_is_null(a.norm))
        return 1.0;
    float sum = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < a.cols / 4; c += WORKGROUP) {
        vec4 v = F32x4s(a.x).v[row + c];
        sum += dot(v, v);
    }
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = sum;
    barrier();
    sum = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        sum += sums[i];
    return inversesqrt(sum / float(a.cols) + a.eps);
}

void main()
{
    uint token = gl_WorkGroupID.x, row = token * a.x_stride / 4, cols4 = a.cols / 4;
    float f = factor(row);
    for (uint c = gl_LocalInvocationID.x; c < cols4; c += WORKGROUP) {
        vec4 v = F32x4s(a.x).v[row + c] * f;
        if (!addr_is_null(a.norm))
            v *= F32x4s(a.norm).v[c];
        put_four(FORM, a.dst, token * cols4, c, v);
    }
}
