// streams/attend.comp - the input of a sublayer from a residual of blocks: attention over the first stream
// and n_kept others, the formulas of ops/streams/streams.h.
// Grid: y = tokens, one workgroup each. float32; the order of the sums over channels depends on the workgroup
// alone, sums over streams are in their order. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint N_STREAMS = 4;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { streams_attend_args a; };

shared vec2 sums[N_STREAMS][SUBGROUPS]; // x * norm * score, squares
shared float logits[N_STREAMS];

// Returns group c of four channels of a stream; the first one's after the addition, which is kept.
vec4 fours_of(uint row, uint s, uint c, uint fours, uint add)
{
    vec4 v = F32x4s(a.x).v[row + s * fours + c];
    if (s > 0 || addr_is_null(a.add))
        return v;
    vec4 more = F32x4s(a.add).v[add + c];
    v = a.sets > 0 ? more : v + more;
    F32x4s(a.x).v[row + c] = v;
    return v;
}

// Sums stream s.
void sum_stream(uint t, uint s)
{
    uint fours = a.hidden / 4, row = t * a.n_streams * fours;
    vec2 sum = vec2(0.0);
    for (uint c = gl_LocalInvocationID.x; c < fours; c += WORKGROUP) {
        vec4 v = fours_of(row, s, c, fours, t * fours);
        if (addr_is_null(a.dst))
            continue;
        vec4 w = F32x4s(a.score).v[c];
        if (!addr_is_null(a.norm))
            w *= F32x4s(a.norm).v[c];
        sum += vec2(dot(v, w), dot(v, v));
    }
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0)
        sums[s][gl_SubgroupID] = sum;
}

void main()
{
    uint t = gl_WorkGroupID.y, fours = a.hidden / 4, row = t * a.n_streams * fours;
    sum_stream(t, 0);
    if (addr_is_null(a.dst))
        return;
    for (uint s = 1; s <= a.n_kept; s++)
        sum_stream(t, s);
    barrier();
    for (uint s = gl_LocalInvocationID.x; s <= a.n_kept; s += WORKGROUP) {
        vec2 sum = vec2(0.0);
        for (uint i = 0; i < SUBGROUPS; i++)
            sum += sums[s][i];
        logits[s] = sum.x * inversesqrt(sum.y / float(a.hidden) + a.eps);
    }
    barrier();
    float top = logits[0], all = 0.0;
    for (uint s = 1; s <= a.n_kept; s++)
        top = max(top, logits[s]);
    for (uint s = 0; s <= a.n_kept; s++)
        all += exp_exact(logits[s] - top);
    for (uint c = gl_LocalInvocationID.x; c < fours; c += WORKGROUP) {
        vec4 v = F32x4s(a.x).v[row + c];
        if (a.keep > 0)
            F32x4s(a.x).v[row + a.keep * fours + c] = v;
        vec4 sum = exp_exact(logits[0] - top) * v;
        for (uint s = 1; s <= a.n_kept; s++)
            sum = fma(vec4(exp_exact(logits[s] - top)), F32x4s(a.x).v[row + s * fours + c], sum);
        F32x4s(a.dst).v[t * fours + c] = sum / all;
    }
}
