// shuffle.comp - an exchange with a lane that is not there.
#version 460
#include "fault.glsl"

void main()
{
    uint i = gl_LocalInvocationID.x;
#ifdef MENDED
    uint other = subgroupShuffleXor(x.v[i], 1);
    if (x.v[i] % 2 == 1)
        y.v[i] = other;
#else
    if (x.v[i] % 2 == 1)
        y.v[i] = subgroupShuffleXor(x.v[i], 1);
#endif
}
