// experts/decode_up.comp - the first half of the chosen experts: act[t][k] = silu(gate p) * (up p), p = rms(x[t]) * norm,
// gate and up [inner][hidden] of expert idx[t][k], found through the layer's table of addresses.
//
// Grid: x = row blocks of `inner`, y = top_k, z = tokens. float32 sums. Tolerance 1e-5 of the largest output.
// The caller makes sure that every expert named by idx and not skipped is in the table.
#version 460
#define MATRICES 2
#include "lib/memory.glsl"
#include "lib/gemv.glsl"
#include "lib/math.glsl"

layout(push_constant, std430) uniform Args { experts_decode_up_args a; };

float load_tile(uint token, uint from, uint n4)
{
    float squares = 0.0;
    uint at = (token * a.hidden + from) / 4;
    for (uint first = gl_LocalInvocationID.x; first < n4; first += LOADS * WORKGROUP) {
        vec4 v[LOADS], w[LOADS];
        [[unroll]] for (uint k = 0; k < LOADS; k++) {
            uint i = min(first + k * WORKGROUP, n4 - 1);
            v[k] = F32x4s(a.x).v[at + i];
            w[k] = F32x4s(a.norm).v[from / 4 + i];
        }
        [[unroll]] for (uint k = 0; k < LOADS; k++)
            if (first + k * WORKGROUP < n4) {
                squares += dot(v[k], v[k]);
                xs_put(0, first + k * WORKGROUP, v[k] * w[k]);
            }
    }
    return squares;
}

void main()
{
    uint token = gl_WorkGroupID.z;
    uint k = gl_WorkGroupID.y;
    if (((k < 32 ? a.skip_low >> k : a.skip_high >> (k - 32)) & 1u) != 0 && k < 64)
        return;
    uint slot = token * a.top_k + k;
    uint row = gl_WorkGroupID.x * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    uvec2 expert = Addrs(a.table).v[U32s(a.idx).v[slot]];
    Matrix m[2] = {Matrix(addr_add(expert, a.gate_w), addr_add(expert, a.gate_s), addr_add(expert, a.gate_b),
                          a.format, a.inner, a.hidden),
                   Matrix(addr_add(expert, a.up_w), addr_add(expert, a.up_s), addr_add(expert, a.up_b), a.format,
                          a.inner, a.hidden)};
    float acc[MAX_ACC];
    float squares[4];
    squares[0] = 0.0;
    [[unroll]] for (uint i = 0; i < 2 * ROWS; i++)
        acc[i] = 0.0;

    for (uint from = 0; from < a.hidden; from += TILE) {
        uint n = min(TILE, a.hidden - from);
        fetch_product(m, row, from, n);
        if (from > 0)
            barrier();
        squares[0] += load_tile(token, from, n / 4);
        if (from + TILE >= a.hidden)
            share_sums(squares);
        barrier();
        if (row < a.inner)
            add_product(acc, m, row, from, n);
    }

    finish_product(acc);
    float factor = inversesqrt(shared_sum(0) / float(a.hidden) + a.eps);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint mine = row + lane_row(r);
        if (lane_stores(r) && mine < a.inner)
            F32s(a.act).v[slot * a.inner + mine] = silu(acc[r] * factor) * (acc[ROWS + r] * factor);
    }
}
