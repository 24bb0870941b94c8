// counter.comp - a counter in shared memory is added to before it is set.
#version 460
#include "fault.glsl"

shared uint n;

void main()
{
#ifdef MENDED
    if (gl_LocalInvocationID.x == 0)
        n = 0;
    barrier();
#endif
    atomicAdd(n, 1);
    barrier();
    y.v[gl_LocalInvocationID.x] = n;
}
