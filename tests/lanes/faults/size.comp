// size.comp - a size taken for 32: the sum of a workgroup from one sum of every 32 lanes.
#version 460
#include "fault.glsl"

shared uint s[N];

void main()
{
#ifdef MENDED
    uint size = gl_SubgroupSize;
#else
    uint size = 32;
#endif
    uint i = gl_LocalInvocationID.x, all = 0, sum = subgroupAdd(x.v[i]);
    if (i % size == 0)
        s[i / size] = sum;
    barrier();
    for (uint k = 0; k < N / size; k++)
        all += s[k];
    y.v[i] = all;
}
