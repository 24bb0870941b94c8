// barrier.comp - a missing barrier: a lane reads what another writes to shared memory.
#version 460
#include "fault.glsl"

shared uint s[N];

void main()
{
    uint i = gl_LocalInvocationID.x;
    s[i] = 0;
    barrier();
    s[i] = x.v[i];
#ifdef MENDED
    barrier();
#endif
    y.v[i] = s[(i + 1) % N];
}
