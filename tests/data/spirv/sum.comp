// sum.comp - the sum of n floats by one workgroup, right and with planted faults: tests/unit/test_lanes.c.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_memory_scope_semantics : require

layout(local_size_x = 256) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(push_constant) uniform Args {
    uvec2 src, dst;
    uint n;
};
shared float parts[256];
shared float others[256];

// A neighbour's number through shared memory: a race without a barrier, whether or not lanes run in lockstep.
float of_neighbour(float x)
{
    others[gl_LocalInvocationID.x] = x;
#ifdef SUBGROUP_BARRIER
    subgroupBarrier();
#endif
    return others[gl_LocalInvocationID.x ^ 1];
}

float total()
{
    uint at = gl_LocalInvocationID.x;
#ifdef PAST_END
    float x = Floats(src).v[at];
#else
    float x = at < n ? Floats(src).v[at] : 0.0;
#endif
#if defined(LOCKSTEP) || defined(SUBGROUP_BARRIER)
    x = of_neighbour(x);
#endif
#ifdef DIVERGES
    float sum = 0.0;
    if (at < n)
        sum = subgroupAdd(x);
#else
    float sum = subgroupAdd(x);
#endif
#ifdef SIZE_32
    uint which = at / 32, n_parts = 8;
    bool is_first = at % 32 == 0;
#else
    uint which = gl_SubgroupID, n_parts = gl_NumSubgroups;
    bool is_first = subgroupElect();
#endif
#ifdef UNWRITTEN
    n_parts++;
#endif
    if (is_first)
        parts[which] = sum;
#ifdef BARRIER_APART
    if (at % 2 == 0)
        barrier();
#elif defined(BARRIER_OF_SOME)
    if (gl_SubgroupID == 0)
        barrier();
#elif !defined(NO_BARRIER)
    barrier();
#endif
    float all = 0.0;
    for (uint i = 0; i < n_parts; i++)
        all += parts[i];
    return all;
}

void main()
{
    float all = total();
#ifdef BUFFER_RACE
    Floats(dst).v[gl_LocalInvocationID.x] = all;
    barrier();
    all = Floats(dst).v[gl_LocalInvocationID.x ^ 255];
#endif
#ifdef BUFFER_BARRIER
    Floats(dst).v[gl_LocalInvocationID.x] = all;
    memoryBarrierBuffer();
    barrier();
    all = Floats(dst).v[gl_LocalInvocationID.x ^ 255];
    memoryBarrierBuffer();
    barrier();
#endif
    if (gl_LocalInvocationID.x == 0)
        Floats(dst).v[0] = all;
}
