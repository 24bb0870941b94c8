// expert_up.comp - the first half of the chosen experts: act[t][k] = silu(gate p) * (up p), p = rms(x[t]) * norm,
// gate and up [inner][hidden] of expert idx[t][k], found through the layer's table of addresses.
//
// Grid: x = row blocks of `inner`, y = top_k, z = tokens. float32 sums. Tolerance 1e-5 of the largest output.
// The caller makes sure that every expert named by idx and not skipped is in the table.
#version 460
#include "memory.glsl"
#include "matvec.glsl"
#include "math.glsl"

layout(push_constant, std430) uniform Args { expert_up_args a; };

float load_tile(uint token, uint from, uint n4)
{
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < n4; i += WORKGROUP) {
        vec4 v = F32x4s(a.x).v[(token * a.hidden + from) / 4 + i];
        squares += dot(v, v);
        xs_put(xs_index(0, i), v * F32x4s(a.norm).v[from / 4 + i]);
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
    uint row = gl_WorkGroupID.x * SUBGROUPS * BLOCK_ROWS + block_row();
    uvec2 expert = Addrs(a.table).v[U32s(a.idx).v[slot]];
    Matrix gates = Matrix(addr_add(expert, a.gate_w), addr_add(expert, a.gate_s), addr_add(expert, a.gate_b),
                          a.format, a.inner, a.hidden);
    Matrix ups = Matrix(addr_add(expert, a.up_w), addr_add(expert, a.up_s), addr_add(expert, a.up_b), a.format,
                        a.inner, a.hidden);
    float gate[MAX_ACC], up[MAX_ACC];
    float squares = 0.0;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        gate[r] = up[r] = 0.0;

    for (uint from = 0; from < a.hidden; from += TILE) {
        uint n = min(TILE, a.hidden - from);
        if (from > 0)
            barrier();
        squares += load_tile(token, from, n / 4);
        barrier();
        if (row < a.inner)
            for (uint u = unit_first(); u < n / UNIT; u += unit_step()) {
                add_unit(gate, gates, row, from / UNIT + u, u);
                add_unit(up, ups, row, from / UNIT + u, u);
            }
    }

    float factor = inversesqrt(workgroup_sum(squares) / float(a.hidden) + a.eps);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float g = finish(gate[r]) * factor;
        float u = finish(up[r]) * factor;
        uint mine = row + lane_row(r);
        if (lane_stores(r) && mine < a.inner)
            F32s(a.act).v[slot * a.inner + mine] = silu(g) * u;
    }
}
