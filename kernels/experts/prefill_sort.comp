// experts/prefill_sort.comp - the (token, slot) pairs of a chunk sorted by expert, and the tiles of up to
// tile_tokens pairs of one expert that the products of a chunk work on.
//
//   rows[]         pairs token * slots + slot: first the shared expert's, if there is one, which has every
//                  token; then those of expert 0, 1, ...
//   tiles[0].x     number of tiles, at most one partly filled tile for each expert
//   tiles[1 + i]   (expert, first of rows, number of pairs, 0)
//
// Pairs of an expert that the table lacks are left out, because they belong to another round; so are those of
// NO_EXPERT. One workgroup counts, sums up and scatters. The order of the pairs of one expert is undefined:
// every pair is computed by itself, so no result depends on it.
// Grid: one workgroup.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint N_EXPERTS = 256;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Tiles { uvec4 v[]; };
layout(push_constant, std430) uniform Args { experts_prefill_sort_args a; };

shared uint counts[N_EXPERTS];
shared uint ends[N_EXPERTS];  // next place for a pair of an expert
shared uvec2 sums[WORKGROUP]; // (pairs, tiles) of a subgroup's experts

void put_shared()
{
    for (uint t = gl_LocalInvocationID.x; t < a.n_shared; t += WORKGROUP) {
        U32s(a.rows).v[t] = t * a.slots + a.top_k;
        if (t % a.tile_tokens == 0)
            Tiles(a.tiles).v[1 + t / a.tile_tokens] =
                uvec4(SHARED_EXPERT, t, min(a.n_shared - t, a.tile_tokens), 0);
    }
}

bool is_here(uint expert)
{
    uvec2 address = Addrs(a.table).v[expert];
    return (address.x | address.y) != 0;
}

// Writes the n pairs of an expert, which begin at row `first`, as tiles from `tile` on.
void put_tiles(uint expert, uint n, uint first, uint tile)
{
    ends[expert] = first;
    for (uint from = 0; from < n; from += a.tile_tokens)
        Tiles(a.tiles).v[1 + tile++] = uvec4(expert, first + from, min(n - from, a.tile_tokens), 0);
}

void main()
{
    for (uint e = gl_LocalInvocationID.x; e < N_EXPERTS; e += WORKGROUP)
        counts[e] = 0;
    put_shared();
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < a.n_pairs; i += WORKGROUP)
        if (U32s(a.idx).v[i] != NO_EXPERT)
            atomicAdd(counts[U32s(a.idx).v[i]], 1);
    barrier();
    for (uint e = gl_LocalInvocationID.x; e < N_EXPERTS; e += WORKGROUP)
        if (!is_here(e))
            counts[e] = 0;
    barrier();
    // (pairs, tiles) of the experts before those of this turn.
    uvec2 before = uvec2(a.n_shared, (a.n_shared + a.tile_tokens - 1) / a.tile_tokens);
    for (uint from = 0; from < N_EXPERTS; from += WORKGROUP) {
        uint e = from + gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, n = 0;
        if (e < N_EXPERTS)
            n = counts[e];
        uvec2 mine = uvec2(n, (n + a.tile_tokens - 1) / a.tile_tokens), upto = subgroupInclusiveAdd(mine);
        if (gl_SubgroupInvocationID == gl_SubgroupSize - 1)
            sums[gl_SubgroupID] = upto;
        barrier();
        uvec2 at = before + upto - mine;
        for (uint i = 0; i < gl_NumSubgroups; i++) {
            if (i < gl_SubgroupID)
                at += sums[i];
            before += sums[i];
        }
        if (e < N_EXPERTS)
            put_tiles(e, n, at.x, at.y);
        barrier();
    }
    if (gl_LocalInvocationID.x == 0)
        Tiles(a.tiles).v[0] = uvec4(before.y, 0, 0, 0);
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < a.n_pairs; i += WORKGROUP) {
        uint expert = U32s(a.idx).v[i];
        if (expert != NO_EXPERT && counts[expert] != 0)
            U32s(a.rows).v[atomicAdd(ends[expert], 1)] = i / a.top_k * a.slots + i % a.top_k;
    }
}
