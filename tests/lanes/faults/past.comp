// past.comp - a read past the end of a buffer.
#version 460
#include "fault.glsl"

void main()
{
    uint i = gl_LocalInvocationID.x;
#ifdef MENDED
    y.v[i] = x.v[min(i + 1, N - 1)];
#else
    y.v[i] = x.v[i + 1];
#endif
}
