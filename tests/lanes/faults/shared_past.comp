// shared_past.comp - a read past the end of an array in shared memory.
#version 460
#include "fault.glsl"

shared uint s[N], other[N];

void main()
{
    uint i = gl_LocalInvocationID.x;
    s[i] = other[i] = x.v[i];
    barrier();
#ifdef MENDED
    y.v[i] = s[min(i + 1, N - 1)] + other[i];
#else
    y.v[i] = s[i + 1] + other[i];
#endif
}
