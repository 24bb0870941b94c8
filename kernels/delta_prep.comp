// delta_prep.comp - the first of three kernels that make the gated delta net of a chunk (delta.comp: of one token): all
// that does not depend on the state, for every token at once. Convolution and silu of the q, k, v channels, q and k
// scaled to unit length, q also by 1 / sqrt(k_dim), decay and beta of each value head; the new window.
//
// Grid: x = tokens, y = n_k key heads, then n_v value heads; one head's channels a workgroup. float32, tolerance 1e-5.
#version 460
#include "memory.glsl"
#include "math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint K_DIM = 128;
layout(constant_id = 3) const uint V_DIM = 128;
layout(constant_id = 4) const uint TAPS = 4; // conv_kernel

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint HELD = (K_DIM + WORKGROUP - 1) / WORKGROUP; // channels of q, or k, of an invocation

layout(push_constant, std430) uniform Args { delta_args a; };
#include "delta.glsl"

shared float sums[2 * SUBGROUPS];

vec2 workgroup_sum2(vec2 x)
{
    x = subgroupAdd(x);
    if (gl_SubgroupInvocationID == 0) {
        sums[2 * gl_SubgroupID] = x.x;
        sums[2 * gl_SubgroupID + 1] = x.y;
    }
    barrier();
    vec2 total = vec2(0.0);
    for (uint i = 0; i < SUBGROUPS; i++)
        total += vec2(sums[2 * i], sums[2 * i + 1]);
    return total;
}

// Rows of the new window that the channels of [first, first + n) need.
void keep_window(uint first, uint n)
{
    for (uint c = gl_LocalInvocationID.x; c < n; c += WORKGROUP) {
        float x[TAPS];
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            x[i] = before_conv(a.n + i, first + c);
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            F32s(a.window_out).v[i * n_channels() + first + c] = x[i];
    }
}

void prepare_key(uint t, uint head, uint row)
{
    uint q_at = head * K_DIM, k_at = (a.n_k + head) * K_DIM;
    float q[HELD], k[HELD];
    vec2 squares = vec2(0.0);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        q[i] = c < K_DIM ? convolved(t, q_at + c) : 0.0;
        k[i] = c < K_DIM ? convolved(t, k_at + c) : 0.0;
        squares += vec2(q[i] * q[i], k[i] * k[i]);
    }
    squares = workgroup_sum2(squares);
    float q_scale = inversesqrt(squares.x + 1e-6) * inversesqrt(float(K_DIM));
    float k_scale = inversesqrt(squares.y + 1e-6);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        if (c < K_DIM) {
            F32s(a.dst).v[row + q_at + c] = q[i] * q_scale;
            F32s(a.dst).v[row + k_at + c] = k[i] * k_scale;
        }
    }
    if (t == 0) {
        keep_window(q_at, K_DIM);
        keep_window(k_at, K_DIM);
    }
}

void prepare_value(uint t, uint head, uint row)
{
    uint v_at = 2 * a.n_k * K_DIM + head * V_DIM;
    for (uint c = gl_LocalInvocationID.x; c < V_DIM; c += WORKGROUP)
        F32s(a.dst).v[row + v_at + c] = convolved(t, v_at + c);
    if (gl_LocalInvocationID.x == 0) {
        uint b_at = t * a.stride + n_channels() + a.n_v * V_DIM, gates = row + n_channels() + 2 * head;
        float rate = softplus(F32s(a.proj).v[b_at + a.n_v + head] + F32s(a.dt_bias).v[head]);
        F32s(a.dst).v[gates] = exp_exact(-exp_exact(F32s(a.a_log).v[head]) * rate);
        F32s(a.dst).v[gates + 1] = sigmoid(F32s(a.proj).v[b_at + head]);
    }
    if (t == 0)
        keep_window(v_at, V_DIM);
}

void main()
{
    uint t = gl_WorkGroupID.x, y = gl_WorkGroupID.y;
    uint row = t * DELTA_PREPARED(n_channels(), a.n_v);
    if (y < a.n_k)
        prepare_key(t, y, row);
    else
        prepare_value(t, y - a.n_k, row);
}
