// sum.comp - a sum under divergence: half of a subgroup adds.
#version 460
#include "fault.glsl"

void main()
{
    uint i = gl_LocalInvocationID.x;
#ifdef MENDED
    uint sum = subgroupAdd(x.v[i] % 2 == 1 ? x.v[i] : 0);
    if (x.v[i] % 2 == 1)
        y.v[i] = sum > 0 ? 1 : 0;
#else
    if (x.v[i] % 2 == 1)
        y.v[i] = subgroupAdd(x.v[i]) > 0 ? 1 : 0;
#endif
}
