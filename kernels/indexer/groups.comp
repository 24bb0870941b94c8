// indexer/groups.comp - candidates of an indexer (ops/indexer/indexer.h). FINDS: the score of each group is
// the largest of its blocks, of the last group infinite. Otherwise blocks of groups that are not listed get
// the score -infinity.
// Grid: x = groups or blocks, WORKGROUP of them each; y = tokens. Exact.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint FINDS = 0;

#define INFINITE uintBitsToFloat(0x7f800000u)

layout(push_constant, std430) uniform Args { indexer_groups_args a; };

// Returns whether token t's list has group g.
bool is_listed(uint t, uint g)
{
    uint at = t * (a.n_listed + 1), lo = 0, hi = a.n_listed;
    while (hi - lo > 1) {
        uint mid = lo + (hi - lo) / 2;
        if (U32s(a.candidates).v[at + mid] <= g)
            lo = mid;
        else
            hi = mid;
    }
    return U32s(a.candidates).v[at + lo] == g;
}

void main()
{
    uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, n = (a.pos + t + 1) / a.ratio;
    uint n_groups = (n + a.group - 1) / a.group, at = t * a.score_stride;
    if (FINDS == 0) {
        if (i < n && !is_listed(t, i / a.group))
            F32s(a.scores).v[at + i] = -INFINITE;
        return;
    }
    if (i >= n_groups)
        return;
    float most = i + 1 == n_groups ? INFINITE : F32s(a.scores).v[at + i * a.group];
    for (uint b = i * a.group + 1; i + 1 < n_groups && b < (i + 1) * a.group; b++)
        most = max(most, F32s(a.scores).v[at + b]);
    F32s(a.groups).v[t * a.group_stride + i] = most;
}
