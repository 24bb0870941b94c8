// unwritten.comp - shared memory is read before it is written.
#version 460
#include "fault.glsl"

shared uint s[N];

void main()
{
    uint i = gl_LocalInvocationID.x;
#ifdef MENDED
    s[i] = x.v[i];
#else
    if (i < N / 2)
        s[i] = x.v[i];
#endif
    barrier();
    y.v[i] = s[N - 1 - i];
}
