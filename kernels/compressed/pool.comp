// compressed/pool.comp - compresses blocks of RATIO positions to rows of the cache, and writes the sums of
// the unfinished block (ops/compressed/compressed.h). A channel's softmax is online, in the order of the
// positions. Grid: x = blocks that the chunk has tokens of. float32. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint DIM = 512;
layout(constant_id = 3) const uint ROTARY = 64;
layout(constant_id = 4) const uint RATIO = 4;
layout(constant_id = 5) const uint OVERLAPS = 0;

layout(push_constant, std430) uniform Args { compressed_pool_args a; };
#include "compressed/row.glsl"
#include "compressed/far.glsl"

const uint WIDTH = (1 + OVERLAPS) * DIM;

// A sum in progress: top, total, sum.
vec3 resumed(uint idx, uint c)
{
    uint at = idx * 3 * DIM + c;
    return vec3(F32s(a.state_in).v[at], F32s(a.state_in).v[at + DIM], F32s(a.state_in).v[at + 2 * DIM]);
}

void suspend(uint idx, uint c, vec3 s)
{
    uint at = idx * 3 * DIM + c;
    [[unroll]] for (uint i = 0; i < 3; i++)
        F32s(a.state_out).v[at + i * DIM] = s[i];
}

// Adds channel c of tokens from .. to - 1.
vec3 added(vec3 s, uint from, uint to, uint c)
{
    for (uint t = from; t < to; t++) {
        float gate = F32s(a.gates).v[t * a.stride + c];
        if (!addr_is_null(a.bias))
            gate += F32s(a.bias).v[(a.pos + t) % RATIO * WIDTH + c];
        float before = s.y == 0.0 ? gate : s.x, top = max(before, gate);
        float keep = exp(before - top), weight = exp(gate - top);
        s = vec3(top, fma(s.y, keep, weight), fma(s.z, keep, weight * F32s(a.kv).v[t * a.stride + c]));
    }
    return s;
}

void main()
{
    uint end = a.pos + a.n, idx = a.pos / RATIO + gl_WorkGroupID.x, begin = idx * RATIO;
    uint previous = begin - (idx > 0 && OVERLAPS != 0 ? RATIO : 0);
    bool resumes = a.pos > begin, follows = !resumes && previous < begin && a.pos > previous;
    bool is_whole = begin + RATIO <= end, is_last = idx == (end - 1) / RATIO;
    uint from = resumes ? 0 : begin - a.pos, to = min(begin + RATIO, end) - a.pos;
    uint before = resumes ? from : previous > a.pos ? previous - a.pos : 0;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP) {
        vec3 s = resumes || follows ? resumed(resumes ? 0 : 1, c) : vec3(0.0);
        s = added(s, before, from, c);
        s = added(s, from, to, c + OVERLAPS * DIM);
        head[c] = s.z / s.y;
        if (is_last) {
            suspend(0, c, is_whole ? vec3(0.0) : s);
            if (OVERLAPS != 0)
                suspend(1, c, added(resumes ? resumed(1, c) : vec3(0.0), from, to, c));
        }
    }
    uvec2 angles = resumes ? a.state_in : a.rope;
    uint at = resumes ? 3 * WIDTH : from * ROTARY;
    for (uint i = gl_LocalInvocationID.x; is_last && i < ROTARY; i += WORKGROUP)
        F32s(a.state_out).v[3 * WIDTH + i] = F32s(angles).v[at + i];
    if (!is_whole)
        return;
    float factor = unit_factor(a.eps);
    barrier();
    for (uint c = gl_LocalInvocationID.x; !addr_is_null(a.plain) && c < DIM; c += WORKGROUP)
        F32s(a.plain).v[(to - 1) * DIM + c] = head[c] * factor * F32s(a.norm).v[c];
    for (uint i = gl_LocalInvocationID.x; !addr_is_null(a.plain) && i < ROTARY; i += WORKGROUP)
        F32s(a.angles).v[(to - 1) * ROTARY + i] = F32s(angles).v[at + i];
    uvec2 row = far_row(a.blocks, a.layer_off, idx);
    for (uint i = gl_LocalInvocationID.x; i < DIM / 2; i += WORKGROUP)
        store_two(row, i, turned_two(i, factor, a.norm, angles, at));
    end_row(row);
}
