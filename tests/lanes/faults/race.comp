// race.comp - a race in a buffer: lanes write one word.
#version 460
#include "fault.glsl"

void main()
{
    uint i = gl_LocalInvocationID.x;
#ifdef MENDED
    if (i == 0)
#endif
        y.v[0] = x.v[i];
}
