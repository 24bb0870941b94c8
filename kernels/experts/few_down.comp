// experts/few_down.comp - experts/prefill_down.comp for experts that few tokens chose, in float32: dst[t][k] = down_e act[t][k],
// down [hidden][inner] of the tile's expert.
//
// Grid: x = blocks of GROUP_ROWS rows of `hidden`, y = tiles of up to TOKENS pairs of experts/prefill_sort.comp. float32 sums.
// Tolerance 1e-5 of the largest output.
#version 460
#include "lib/memory.glsl"
#include "lib/few.glsl"

layout(push_constant, std430) uniform Args { experts_prefill_down_args a; };
#include "expert_tiles.glsl"

uvec4 tile;

void store_row(uint row, uint t, float sum, float unused)
{
    F32s(a.dst).v[tile_pair(tile, t) * a.hidden + row] = sum;
}

void main()
{
    if (!tile_is_there())
        return;
    tile = this_tile();
    uvec2 expert = Addrs(a.table).v[tile.x];
    Matrix m[1] = {Matrix(addr_add(expert, a.down_w), addr_add(expert, a.down_s), addr_add(expert, a.down_b), a.format,
                          a.hidden, TILE)};
    begin_few(m);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        if (t < tile.z)
            put_vector(t, a.act, tile_pair(tile, t) * TILE, uvec2(0), 0, TILE / 4);
    barrier();
    multiply_few(m, tile.z);
}
