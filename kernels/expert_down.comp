// expert_down.comp - the second half of the feed-forward part, with the residual:
//   x[t] += sum_k weights[t][k] down_{idx[t][k]} act[t][k]  +  sigmoid(gate_t) shared_down (silu(g_t) * u_t)
// gate_t, g_t, u_t: what the router's product wrote behind the router logits (shared_in).
//
// The activations of all chosen experts and of the shared one, weights multiplied in, stand one after the other in
// shared memory as one long vector (tiles of TILE columns), so that every row is a single sum: experts in the
// router's order, then the shared one. Grid: x = row blocks of `hidden`, y = tokens. float32 sums. Tolerance 1e-5.
#version 460
#include "memory.glsl"
#include "matvec.glsl"
#include "math.glsl"

layout(push_constant, std430) uniform Args { expert_down_args a; };

// Four elements of the long vector of token t, from column c on (a multiple of 4; parts are multiples of 64).
vec4 long_vector(uint t, uint c)
{
    uint k = c / a.inner;
    if (k < a.top_k)
        return F32x4s(a.act).v[(t * a.top_k * a.inner + c) / 4] * F32s(a.weights).v[t * a.top_k + k];
    uint i = t * a.shared_stride + a.n_experts;
    float gate = sigmoid(F32s(a.shared_in).v[i]);
    uint g = i + 1 + c - a.top_k * a.inner;
    vec4 v;
    [[unroll]] for (uint j = 0; j < 4; j++)
        v[j] = gate * silu(F32s(a.shared_in).v[g + j]) * F32s(a.shared_in).v[g + a.shared_inner + j];
    return v;
}

// The down projection that part k of the long vector meets: an expert's, or behind the last the shared one.
Matrix part_matrix(uint token, uint k)
{
    bool routed = k < a.top_k;
    uvec2 expert = Addrs(a.table).v[U32s(a.idx).v[token * a.top_k + min(k, a.top_k - 1)]];
    Matrix m;
    m.weight = routed ? addr_add(expert, a.down_w) : a.shared_w;
    m.scales = routed ? addr_add(expert, a.down_s) : a.shared_s;
    m.biases = routed ? addr_add(expert, a.down_b) : a.shared_b;
    m.format = routed ? a.format : a.shared_format;
    m.rows = a.hidden;
    m.cols = routed ? a.inner : a.shared_inner;
    return m;
}

// Adds the products of the tile that starts at column `from` of the long vector and has n columns.
void add_tile(inout float acc[MAX_ACC], uint token, uint row, uint from, uint n)
{
    uint per_part = a.inner / UNIT; // of a routed one; the shared part comes last and may be longer
    if (ROWS_ON_LANES) {
        // All lanes walk the parts together, so a part's addresses are fetched once.
        uint end = (from + n) / UNIT;
        for (uint u = from / UNIT; u < end;) {
            uint k = min(u / per_part, a.top_k);
            uint stop = k < a.top_k ? min(end, (k + 1) * per_part) : end;
            Matrix m = part_matrix(token, k);
            for (; u < stop; u++)
                add_unit(acc, m, row, u - k * per_part, u - from / UNIT);
        }
    } else {
        for (uint u = unit_first(); u < n / UNIT; u += unit_step()) {
            uint unit = from / UNIT + u, k = min(unit / per_part, a.top_k);
            add_unit(acc, part_matrix(token, k), row, unit - k * per_part, u);
        }
    }
}

void main()
{
    uint token = gl_WorkGroupID.y;
    uint row = gl_WorkGroupID.x * SUBGROUPS * BLOCK_ROWS + block_row();
    uint total = a.top_k * a.inner + a.shared_inner;
    float acc[MAX_ACC];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        acc[r] = 0.0;

    for (uint from = 0; from < total; from += TILE) {
        uint n = min(TILE, total - from);
        if (from > 0)
            barrier();
        for (uint i = gl_LocalInvocationID.x; i < n / 4; i += WORKGROUP)
            xs_put(xs_index(0, i), long_vector(token, from + 4 * i));
        barrier();
        if (row < a.hidden)
            add_tile(acc, token, row, from, n);
    }

    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float y = finish(acc[r]);
        uint mine = row + lane_row(r);
        if (lane_stores(r) && mine < a.hidden)
            F32s(a.x).v[token * a.hidden + mine] += y;
    }
}
