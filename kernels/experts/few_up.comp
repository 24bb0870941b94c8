// experts/few_up.comp - experts/prefill_up.comp for experts that few tokens chose, in float32:
//   act[t][k] = silu(gate p) * (up p), p = rms(x[t]) * norm, gate and up [inner][hidden] of the tile's expert.
//
// Grid: x = blocks of GROUP_ROWS rows of `inner`, y = tiles of up to TOKENS pairs of experts/prefill_sort.comp. float32 sums.
// Tolerance 1e-5 of the largest output.
#version 460
#define MATRICES 2
#include "lib/memory.glsl"
#include "lib/few.glsl"
#include "lib/math.glsl"

layout(push_constant, std430) uniform Args { experts_prefill_up_args a; };
#include "expert_tiles.glsl"

uvec4 tile;

void store_row(uint row, uint t, float gate, float up)
{
    float factor = addr_is_null(a.norm) ? 1.0 : inversesqrt(shared_sum(t) / float(TILE) + a.eps);
    F32s(a.act).v[tile_pair(tile, t) * a.inner + row] = silu(gate * factor) * (up * factor);
}

void main()
{
    if (!tile_is_there())
        return;
    tile = this_tile();
    uvec2 expert = Addrs(a.table).v[tile.x];
    Matrix m[2] = {Matrix(addr_add(expert, a.gate_w), addr_add(expert, a.gate_s), addr_add(expert, a.gate_b), a.format,
                          a.inner, TILE),
                   Matrix(addr_add(expert, a.up_w), addr_add(expert, a.up_s), addr_add(expert, a.up_b), a.format, a.inner,
                          TILE)};
    float squares[4];
    begin_few(m);
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        squares[t] = 0.0;
        if (t < tile.z)
            squares[t] = put_vector(t, a.x, tile_pair(tile, t) / a.top_k * TILE, a.norm, 0, TILE / 4);
    }
    share_sums(squares);
    barrier();
    multiply_few(m, tile.z);
}
