// expert_sort.comp - the (token, slot) pairs of a chunk sorted by expert, and the tiles of up to tile_tokens pairs of
// one expert that the products of a chunk work on.
//
//   rows[]: the pairs token * top_k + slot, those of expert 0 first;  tiles[0].x: how many tiles there are,
//   tiles[1 + i] = (expert, first of rows, number, 0)
//
// Pairs of an expert that the table does not have are left out: they belong to another wave.
// One workgroup counts, sums up and scatters. The order of the pairs of one expert is left open: no result depends on
// it, because every pair is computed by itself.
#version 460
#include "memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint N_EXPERTS = 256;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Tiles { uvec4 v[]; };
layout(push_constant, std430) uniform Args { expert_sort_args a; };

shared uint counts[N_EXPERTS];
shared uint ends[N_EXPERTS]; // where the next pair of an expert goes

bool is_here(uint expert)
{
    uvec2 address = Addrs(a.table).v[expert];
    return (address.x | address.y) != 0;
}

void main()
{
    for (uint e = gl_LocalInvocationID.x; e < N_EXPERTS; e += WORKGROUP)
        counts[e] = 0;
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < a.n_pairs; i += WORKGROUP)
        atomicAdd(counts[U32s(a.idx).v[i]], 1);
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < N_EXPERTS; e += WORKGROUP)
        if (!is_here(e))
            counts[e] = 0;
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < N_EXPERTS; e += WORKGROUP) {
        uint first = 0, tile = 0, n = counts[e];
        for (uint before = 0; before < e; before++) {
            first += counts[before];
            tile += (counts[before] + a.tile_tokens - 1) / a.tile_tokens;
        }
        ends[e] = first;
        for (uint from = 0; from < n; from += a.tile_tokens)
            Tiles(a.tiles).v[1 + tile++] = uvec4(e, first + from, min(n - from, a.tile_tokens), 0);
        if (e == N_EXPERTS - 1)
            Tiles(a.tiles).v[0] = uvec4(tile, 0, 0, 0);
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < a.n_pairs; i += WORKGROUP) {
        uint expert = U32s(a.idx).v[i];
        if (counts[expert] != 0)
            U32s(a.rows).v[atomicAdd(ends[expert], 1)] = i;
    }
}
