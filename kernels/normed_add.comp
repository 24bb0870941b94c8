// normed_add.comp - adds a part's normed output to the residual, or keeps it for a later call:
//   z = rms(y[t]) * norm + add[t];  z = rms(z) * outer;  dst[t] = (base[t] + z) * factor
// Terms whose address is 0 are absent.
// Grid: x = tokens; an invocation has HELD groups of four channels. float32; the order of the sums of squares
// depends on the workgroup alone. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint HELD = 1; // ceil(cols / 4 / WORKGROUP)

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { normed_add_args a; };

shared float sums[2][SUBGROUPS];

// Returns 1 / rms of the workgroup's numbers. which: 0 or 1, another one for each call.
float rms_factor(vec4 v[HELD], uint which)
{
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < HELD; i++)
        squares += dot(v[i], v[i]);
    squares = subgroupAdd(squares);
    if (gl_SubgroupInvocationID == 0)
        sums[which][gl_SubgroupID] = squares;
    barrier();
    squares = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        squares += sums[which][i];
    return inversesqrt(squares / float(a.cols) + a.eps);
}

void main()
{
    uint fours = a.cols / 4, row = gl_WorkGroupID.x * fours;
    vec4 v[HELD], norm[HELD], add[HELD], outer[HELD], base[HELD];
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        v[i] = norm[i] = add[i] = outer[i] = base[i] = vec4(0.0);
        if (c >= fours)
            continue;
        v[i] = F32x4s(a.y).v[row + c];
        norm[i] = F32x4s(a.norm).v[c];
        if (!addr_is_null(a.add))
            add[i] = F32x4s(a.add).v[row + c];
        if (!addr_is_null(a.outer))
            outer[i] = F32x4s(a.outer).v[c];
        if (!addr_is_null(a.base))
            base[i] = F32x4s(a.base).v[row + c];
    }
    float factor = addr_is_null(a.factor) ? 1.0 : F32s(a.factor).v[0], by = rms_factor(v, 0);
    [[unroll]] for (uint i = 0; i < HELD; i++)
        v[i] = v[i] * by * norm[i] + add[i];
    if (!addr_is_null(a.outer)) {
        by = rms_factor(v, 1);
        [[unroll]] for (uint i = 0; i < HELD; i++)
            v[i] = v[i] * by * outer[i];
    }
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < fours)
            F32x4s(a.dst).v[row + c] = (base[i] + v[i]) * factor;
    }
}
