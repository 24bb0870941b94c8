// experts/prefill_up.comp - experts/decode_up.comp's product for the many tokens of a chunk, sorted by
// expert:
//   act[t][k] = silu(gate p) * (up p), p = rms(x[t]) * norm, gate and up [inner][hidden] of the tile's expert
// The shared expert's is multiplied by the sigmoid of its gate's logit if it has a gate. Biases and limit:
// see ops/experts/experts.h.
// PASS: see experts/decode_up.comp. The first dispatch leaves gate p in a buffer of its own.
//
// Grid: x = blocks of BLOCK_ROWS / 2 rows of `inner` (gate and up rows meet in one invocation), y = tiles of
// experts/prefill_sort.comp. float32 sums. Tolerance 1e-5 of the largest output.
// variants: plain coop fragcoop ext extcoop blk blkcoop
#version 460
#include "lib/memory.glsl"
#include "lib/gemm.glsl"
#include "lib/math.glsl"

layout(constant_id = 7) const uint PASS = PASS_BOTH;

layout(push_constant, std430) uniform Args { experts_prefill_up_args a; };
layout(buffer_reference, std430,
       buffer_reference_align = 8) readonly buffer SharedUps { experts_shared_up v; };
#include "expert_tiles.glsl"

uint input_row(uint t)
{
    return tile_pair(this_tile(), t) / a.slots * a.hidden;
}

uvec2 book_address()
{
    return uvec2(a.gate_s, a.gate_b);
}

uint input_tokens()
{
    return this_tile().z;
}

// Stores element i of act. In float16 another invocation has the element after an even one; one of them
// writes both.
void keep(uint i, float v, bool is_there)
{
#ifdef COOP
    float next = next_stored(v);
    if (is_there && i % 2 == 0)
        U32s(a.act).v[i / 2] = packHalf2x16(clamp(vec2(v, next), vec2(-65504.0), vec2(65504.0)));
#else
    if (is_there)
        F32s(a.act).v[i] = v;
#endif
}

// Returns the rows of each of a routed expert's two matrices.
uint matrix_rows()
{
    return PASS == PASS_BOTH ? a.inner : a.inner / 2;
}

void find_matrices(uint expert, out Matrix gates, out Matrix ups)
{
    if (expert == SHARED_EXPERT) {
        experts_shared_up e = SharedUps(a.shared_up).v;
        gates = Matrix(e.gate_w, e.gate_s, e.gate_b, a.format, matrix_rows(), a.hidden);
        ups = Matrix(e.up_w, e.up_s, e.up_b, a.format, matrix_rows(), a.hidden);
        return;
    }
    uvec2 at = Addrs(a.table).v[expert];
    gates = Matrix(addr_add(at, a.gate_w), addr_add(at, a.gate_s), addr_add(at, a.gate_b), a.format,
                   matrix_rows(), a.hidden);
    ups = Matrix(addr_add(at, a.up_w), addr_add(at, a.up_s), addr_add(at, a.up_b), a.format, matrix_rows(),
                 a.hidden);
}

float weight_of(uvec4 tile, uint pair)
{
    bool is_gated = tile.x == SHARED_EXPERT && a.gate_at != 0;
    return is_gated ? sigmoid(F32s(a.logits).v[pair / a.slots * a.stride + a.gate_at]) : 1.0;
}

// Keeps row `mine` of one half of a matrix's rows. All invocations call it.
void keep_pass(uint expert, uint pair, uint mine, float v, bool is_there)
{
    if (!addr_is_null(a.biases))
        v += F32s(a.biases).v[(expert + (PASS == PASS_UP ? a.stride : 0)) * a.inner + min(mine, a.inner - 1)];
    uint at = pair * a.inner + mine;
    if (PASS == PASS_GATE) {
        if (is_there)
            F32s(a.shared_up).v[at] = v;
        return;
    }
    if (PASS == PASS_ONE) {
        keep(pair * a.inner + stored_col(mine), gated(v, v, a.gating), is_there);
        return;
    }
    float gate = is_there ? F32s(a.shared_up).v[at] : 0.0;
    keep(pair * a.inner + stored_col(mine), gated(gate, v, a.gating), is_there);
}

void main()
{
    if (!tile_is_there())
        return;
    uvec4 tile = this_tile();
    Matrix gates, ups;
    find_matrices(tile.x, gates, ups);
    uint row = gl_WorkGroupID.x * (BLOCK_ROWS / 2);
    float factors[16];
    multiply(factors, gates, ups, row, row, Input(a.x, a.norm), a.eps);

    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        if (t % PART == 0)
            take(t / PART);
        uint pair = tile_pair(tile, tile_token(t));
        bool is_there = tile_token(t) < tile.z && has_sums();
        float weight = weight_of(tile, pair);
        [[unroll]] for (uint r = 0; r < ROWS / 2; r++) {
            float g = acc[r * PART + t % PART] * factors[t],
                  u = acc[(r + ROWS / 2) * PART + t % PART] * factors[t];
            uint mine = row + half_row(r);
            if (PASS != PASS_BOTH) {
                bool is_mine = is_there && mine < matrix_rows();
                keep_pass(tile.x, pair, mine, g, is_mine);
                keep_pass(tile.x, pair, mine + matrix_rows(), u, is_mine);
                continue;
            }
            if (!addr_is_null(a.biases)) {
                uint at = tile.x * a.inner + min(mine, a.inner - 1);
                g += F32s(a.biases).v[at];
                u += F32s(a.biases).v[at + a.stride * a.inner];
            }
            keep(pair * a.inner + stored_col(mine), weight * gated(g, u, a.gating),
                 is_there && mine < a.inner);
        }
    }
}
