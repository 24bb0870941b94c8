// add.comp - adds vectors (ops/add.h): x[i] += y[i], or x[i] += y[i mod every], or with `sets` x[i] = y[i mod
// every].
// y may lie in host memory: each number is read once, neighbouring ones by neighbouring lanes.
// Grid: x = blocks of WORKGROUP * 4 numbers. Exact.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;

layout(push_constant, std430) uniform Args { add_args a; };

void main()
{
    uint i = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x;
    if (a.every > 0) {
        for (uint k = 4 * i; k < min(4 * i + 4, a.n); k++)
            F32s(a.x).v[k] = (a.sets != 0 ? 0.0 : F32s(a.x).v[k]) + F32s(a.y).v[k % a.every];
    } else if (i < a.n / 4)
        F32x4s(a.x).v[i] += F32x4s(a.y).v[i];
}
