// experts/decode_down.comp - the second half of the feed-forward part, with the residual:
//   x[t] += sum_k weights[t][k] down_{idx[t][k]} act[t][k]  +  w_t shared_down (silu(g_t) * u_t)
// g_t, u_t: what the router's product wrote behind the router logits (shared_in); w_t = sigmoid of the logit before
// them, or 1 where the shared expert has no gate.
//
// The activations of all chosen experts and of the shared one, weights multiplied in, stand one after the other in
// shared memory as one long vector (tiles of TILE columns), so that every row is a single sum: experts in the
// router's order, then the shared one. Grid: x = row blocks of `hidden`, y = tokens. float32 sums. Tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"
#include "lib/math.glsl"

layout(push_constant, std430) uniform Args { experts_decode_down_args a; };

// Where the shared expert's columns start, in the long vector and in the tile [from, from + n).
uint routed_cols()
{
    return a.top_k * a.inner;
}

uint routed_in_tile(uint from, uint n)
{
    return min(max(routed_cols(), from) - from, n);
}

// The routed experts' columns of the tile, weights multiplied in.
void load_routed(uint token, uint from, uint n)
{
    uint n4 = routed_in_tile(from, n) / 4, at = (token * routed_cols() + from) / 4;
    for (uint first = gl_LocalInvocationID.x; first < n4; first += LOADS * WORKGROUP) {
        vec4 v[LOADS];
        float w[LOADS];
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint i = min(first + j * WORKGROUP, n4 - 1);
            v[j] = F32x4s(a.act).v[at + i];
            w[j] = F32s(a.weights).v[token * a.top_k + (from + 4 * i) / a.inner];
        }
        [[unroll]] for (uint j = 0; j < LOADS; j++)
            if (first + j * WORKGROUP < n4)
                xs_put(0, first + j * WORKGROUP, v[j] * w[j]);
    }
}

// The shared expert's columns of the tile; the last invocations start, the first have most of the routed ones.
void load_shared(uint token, uint from, uint n)
{
    uint i = token * a.shared_stride + a.shared_at, before = routed_in_tile(from, n);
    for (uint c = before + 4 * (WORKGROUP - 1 - gl_LocalInvocationID.x); c < n; c += 4 * WORKGROUP) {
        uint g = i + from + c - routed_cols();
        vec4 v, u;
        float gate = F32s(a.shared_in).v[i - a.is_gated];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            v[j] = F32s(a.shared_in).v[g + j];
            u[j] = F32s(a.shared_in).v[g + a.shared_inner + j];
        }
        gate = a.is_gated != 0 ? sigmoid(gate) : 1.0;
        [[unroll]] for (uint j = 0; j < 4; j++)
            v[j] = gate * silu(v[j]) * u[j];
        xs_put(0, c / 4, v);
    }
}

#include "experts/decode_down_lanes.glsl"

void main()
{
    uint token = gl_WorkGroupID.y;
    uint row = gl_WorkGroupID.x * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    uint total = a.top_k * a.inner + a.shared_inner;
    float acc[MAX_ACC];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        acc[r] = 0.0;

    for (uint from = 0; from < total; from += TILE) {
        uint n = min(TILE, total - from);
        fetch_tile(token, row, from, n);
        if (from > 0)
            barrier();
        load_routed(token, from, n);
        load_shared(token, from, n);
        barrier();
        if (row < a.hidden)
            add_tile(acc, token, row, from, n);
    }

    finish_product(acc);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint mine = row + lane_row(r);
        if (lane_stores(r) && mine < a.hidden)
            F32s(a.x).v[token * a.hidden + mine] += acc[r];
    }
}
