// experts/prefill_up.comp - experts/decode_up.comp's product for the many tokens of a chunk, sorted by expert:
//   act[t][k] = silu(gate p) * (up p), p = rms(x[t]) * norm, gate and up [inner][hidden] of the tile's expert.
//
// Grid: x = blocks of BLOCK_ROWS / 2 rows of `inner` (gate and up rows meet in one invocation), y = tiles of
// experts/prefill_sort.comp. float32 sums. Tolerance 1e-5 of the largest output.
#version 460
#include "lib/memory.glsl"
#include "lib/gemm.glsl"
#include "lib/math.glsl"

layout(push_constant, std430) uniform Args { experts_prefill_up_args a; };
#include "expert_tiles.glsl"

uint input_row(uint t)
{
    return tile_pair(this_tile(), t) / a.top_k * a.hidden;
}

uint input_tokens()
{
    return this_tile().z;
}

// Element i of act. Neighbouring invocations have neighbouring rows: in float16 one of them writes both.
void keep(uint i, float v, bool is_there)
{
#ifdef COOP
    float next = next_row(v);
    if (is_there && i % 2 == 0)
        U32s(a.act).v[i / 2] = packHalf2x16(clamp(vec2(v, next), vec2(-65504.0), vec2(65504.0)));
#else
    if (is_there)
        F32s(a.act).v[i] = v;
#endif
}

void main()
{
    if (!tile_is_there())
        return;
    uvec4 tile = this_tile();
    uvec2 expert = Addrs(a.table).v[tile.x];
    Matrix gates = Matrix(addr_add(expert, a.gate_w), addr_add(expert, a.gate_s), addr_add(expert, a.gate_b), a.format,
                          a.inner, a.hidden);
    Matrix ups = Matrix(addr_add(expert, a.up_w), addr_add(expert, a.up_s), addr_add(expert, a.up_b), a.format, a.inner,
                        a.hidden);
    uint row = gl_WorkGroupID.x * (BLOCK_ROWS / 2);
    float factors[16];
    multiply(factors, gates, ups, row, row, Input(a.x, a.norm), a.eps);

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (t % PART == 0)
            take(t / PART);
        uint pair = tile_pair(tile, tile_token(t));
        bool is_there = tile_token(t) < tile.z;
        [[unroll]] for (uint r = 0; r < ROWS / 2; r++) {
            float g = acc[r * PART + t % PART] * factors[t], u = acc[(r + ROWS / 2) * PART + t % PART] * factors[t];
            uint mine = row + half_row(r);
            keep(pair * a.inner + stored_col(mine), silu(g) * u, is_there && mine < a.inner);
        }
    }
}
