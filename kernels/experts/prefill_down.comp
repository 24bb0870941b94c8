// experts/prefill_down.comp - the down projections of a chunk's pairs, sorted by expert: dst[t][k] = down_e
// act[t][k], down [hidden][inner] of the tile's expert, plus its biases. experts/prefill_mix.comp adds them
// up.
//
// Grid: x = blocks of BLOCK_ROWS rows of `hidden`, y = tiles of experts/prefill_sort.comp. float32 sums.
// Tolerance 1e-5 of the largest output.
// variants: plain coop fragcoop ext extcoop blk blkcoop
#version 460
#include "lib/memory.glsl"
#include "lib/gemm.glsl"

layout(push_constant, std430) uniform Args { experts_prefill_down_args a; };
#include "expert_tiles.glsl"

uint input_row(uint t)
{
    return tile_pair(this_tile(), t) * a.inner;
}

uvec2 book_address()
{
    return uvec2(a.down_s, a.down_b);
}

uint input_tokens()
{
    return this_tile().z;
}

void main()
{
    if (!tile_is_there())
        return;
    uvec4 tile = this_tile();
    if (tile.x == SHARED_EXPERT && addr_is_null(a.shared_w)) // it is computed separately
        return;
    Matrix m = Matrix(a.shared_w, a.shared_s, a.shared_b, a.format, a.hidden, a.inner);
    if (tile.x != SHARED_EXPERT) {
        uvec2 expert = Addrs(a.table).v[tile.x];
        m.weight = addr_add(expert, a.down_w);
        m.scales = addr_add(expert, a.down_s);
        m.biases = addr_add(expert, a.down_b);
    }
    uint row = gl_WorkGroupID.x * BLOCK_ROWS;
    float factors[16];
    multiply(factors, m, m, row, row + BLOCK_ROWS / 2, Input(a.act, uvec2(0)), 0.0);

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (t % PART == 0)
            take(t / PART);
        bool is_there = tile_token(t) < tile.z && has_sums();
        uint pair = tile_pair(tile, tile_token(t));
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint mine = row + half_row(r) + (r < ROWS / 2 ? 0 : BLOCK_ROWS / 2);
            float bias = 0.0;
            if (!addr_is_null(a.biases))
                bias = F32s(a.biases).v[tile.x * a.hidden + min(mine, a.hidden - 1)];
            if (is_there && mine < a.hidden)
                F32s(a.dst).v[pair * a.hidden + mine] = acc[r * PART + t % PART] + bias;
        }
    }
}
