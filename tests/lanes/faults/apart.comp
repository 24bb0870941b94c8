// apart.comp - a barrier under divergence: lanes of one half alone reach it.
#version 460
#include "fault.glsl"

shared uint s[N];

void main()
{
    uint i = gl_LocalInvocationID.x;
    if (i < N / 2) {
        s[i] = x.v[i];
#ifndef MENDED
        barrier();
#endif
    }
#ifdef MENDED
    barrier();
#endif
    y.v[i] = i < N / 2 ? s[i] : 0;
}
