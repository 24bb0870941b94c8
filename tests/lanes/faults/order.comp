// order.comp - a race in a buffer: the barrier orders shared memory alone.
#version 460
#include "fault.glsl"

void main()
{
    uint i = gl_LocalInvocationID.x;
    y.v[i] = x.v[i];
#ifdef MENDED
    memoryBarrierBuffer();
#endif
    barrier();
    uint other = y.v[(i + 1) % N];
    memoryBarrierBuffer();
    barrier();
    y.v[i] = other;
}
