// sample/largest.comp - the first of two kernels. In each block of SAMPLE_BLOCK ids it finds the largest
// logit after the repeat penalty, with the lowest id on a tie, and the first logits that are NaN or +infinity
// (args.h). Blocked ids are left out. Grid: x = blocks. Exact: integers, and the penalty's correctly rounded
// product.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "sample/weight.h"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256; // divides SAMPLE_BLOCK

ARGS(sample_args)

#include "sample/largest.glsl"

const uint EACH = SAMPLE_BLOCK / WORKGROUP;

shared uint repeated[SAMPLE_BLOCK / 32]; // a set bit: the penalty applies to this id of the block

void mark_repeated(uint first)
{
    for (uint i = gl_LocalInvocationID.x; i < SAMPLE_BLOCK / 32; i += WORKGROUP)
        repeated[i] = 0u;
    barrier();
    for (uint i = gl_LocalInvocationID.x; i <= a.n_recent; i += WORKGROUP) {
        uint at = (i < a.n_recent ? U32s(a.recent).v[i] : U32s(a.last).v[0]) - first;
        if (at < SAMPLE_BLOCK)
            atomicOr(repeated[at / 32], 1u << at % 32);
    }
    barrier();
}

// Returns the entry of a logit of the block; nothing() if it is blocked.
Largest look_at(uint id, uint bits, uint blocked)
{
    uint at = id % SAMPLE_BLOCK;
    if ((blocked >> id % 32 & 1u) != 0u)
        return nothing();
    uint nan = (bits & 0x7fffffffu) > 0x7f800000u ? id : SAMPLE_NO_ID;
    uint inf = bits == 0x7f800000u ? id : SAMPLE_NO_ID;
    bits = sample_flush(bits);
    if (a.penalises != 0u && (repeated[at / 32] >> at % 32 & 1u) != 0u)
        bits = sample_penalise(bits, a.penalty, a.inverse_penalty);
    return Largest(sample_key(bits), id, nan, inf);
}

void main()
{
    take_args();
    uint first = gl_WorkGroupID.x * SAMPLE_BLOCK;
    uint bits[EACH], blocked[EACH];
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        uint id = min(first + i * WORKGROUP + gl_LocalInvocationID.x, a.n - 1);
        bits[i] = U32s(a.logits).v[id];
        blocked[i] = U32s(a.blocked).v[id / 32];
    }
    if (a.penalises != 0u)
        mark_repeated(first);
    Largest best = nothing();
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        uint id = first + i * WORKGROUP + gl_LocalInvocationID.x;
        if (id >= a.n)
            break;
        Largest here = look_at(id, bits[i], blocked[i]);
        if (a.scale != 0.0)
            U32s(a.keys).v[id] = here.key;
        best = merge(best, here);
    }
    best = merge_workgroup(best);
    if (gl_LocalInvocationID.x == 0) {
        uint at = gl_WorkGroupID.x * 4;
        U32s(a.found).v[at] = best.key;
        U32s(a.found).v[at + 1] = best.id;
        U32s(a.found).v[at + 2] = best.nan;
        U32s(a.found).v[at + 3] = best.inf;
    }
}
