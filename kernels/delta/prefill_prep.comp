// delta/prefill_prep.comp - the first kernel of the gated delta net of a chunk: what does not depend on the
// state, for all tokens at once (delta/decode.comp does everything, token by token). It computes the
// convolution and silu of the q, k, v channels; q and k scaled to unit length, q also by 1 / sqrt(k_dim);
// decay and beta of each value head, or the decays of its key channels (BY_CHANNEL); the new window.
//
// Grid: x = runs of DELTA_RUN tokens, y = n_k key heads, then n_v value heads. A workgroup has one head's
// channels, so that each number before the convolution is read once, and not once for each tap. float32,
// tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint K_DIM = 128;
layout(constant_id = 3) const uint V_DIM = 128;
layout(constant_id = 4) const uint TAPS = 4; // conv_kernel
layout(constant_id = 5) const uint BY_CHANNEL = 0;
layout(constant_id = 6) const float LOWER = 0.0; // lower bound of a decay's logarithm; 0: none

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint HELD = (K_DIM + WORKGROUP - 1) / WORKGROUP; // channels of q, or of k, of an invocation

layout(push_constant, std430) uniform Args { delta_args a; };
#include "delta.glsl"

shared vec2 sums[DELTA_RUN * SUBGROUPS];

uint first; // first token

// Adds up over the workgroup, for each token.
void workgroup_sums(inout vec2 x[DELTA_RUN])
{
    [[unroll]] for (uint t = 0; t < DELTA_RUN; t++) {
        x[t] = subgroupAdd(x[t]);
        if (gl_SubgroupInvocationID == 0)
            sums[t * SUBGROUPS + gl_SubgroupID] = x[t];
    }
    barrier();
    [[unroll]] for (uint t = 0; t < DELTA_RUN; t++) {
        x[t] = vec2(0.0);
        for (uint i = 0; i < SUBGROUPS; i++)
            x[t] += sums[t * SUBGROUPS + i];
    }
}

// Computes silu of a channel's causal convolution. Tokens past the last repeat valid inputs.
void convolve(uint channel, out float y[DELTA_RUN])
{
    float x[DELTA_RUN + TAPS - 1], w[TAPS];
    [[unroll]] for (uint j = 0; j < TAPS; j++)
        w[j] = F32s(a.conv).v[channel * TAPS + j];
    [[unroll]] for (uint i = 0; i < DELTA_RUN + TAPS - 1; i++)
        x[i] = before_conv(min(first + i, a.n + TAPS - 2), channel);
    [[unroll]] for (uint t = 0; t < DELTA_RUN; t++) {
        y[t] = 0.0;
        [[unroll]] for (uint j = 0; j < TAPS; j++)
            y[t] = fma(x[t + j], w[j], y[t]);
        y[t] = silu(y[t]);
    }
}

// Stores channels [from, from + n) of the new window.
void keep_window(uint from, uint n)
{
    for (uint c = gl_LocalInvocationID.x; c < n; c += WORKGROUP) {
        float x[TAPS];
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            x[i] = before_conv(a.n + i, from + c);
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            F32s(a.window_out).v[i * n_channels() + from + c] = x[i];
    }
}

void prepare_key(uint head, uint row)
{
    uint q_at = head * K_DIM, k_at = (a.n_k + head) * K_DIM;
    float q[HELD][DELTA_RUN], k[HELD][DELTA_RUN];
    vec2 squares[DELTA_RUN];
    [[unroll]] for (uint t = 0; t < DELTA_RUN; t++)
        squares[t] = vec2(0.0);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * WORKGROUP + gl_LocalInvocationID.x;
        convolve(q_at + min(c, K_DIM - 1), q[i]);
        convolve(k_at + min(c, K_DIM - 1), k[i]);
        [[unroll]] for (uint t = 0; t < DELTA_RUN; t++)
            squares[t] += c < K_DIM ? vec2(q[i][t] * q[i][t], k[i][t] * k[i][t]) : vec2(0.0);
    }
    workgroup_sums(squares);
    [[unroll]] for (uint t = 0; t < DELTA_RUN; t++) {
        float q_scale = inversesqrt(squares[t].x + 1e-6) * inversesqrt(float(K_DIM));
        float k_scale = inversesqrt(squares[t].y + 1e-6);
        uint at = (first + t) * row;
        [[unroll]] for (uint i = 0; i < HELD; i++) {
            uint c = i * WORKGROUP + gl_LocalInvocationID.x;
            if (c < K_DIM && first + t < a.n) {
                F32s(a.dst).v[at + q_at + c] = q[i][t] * q_scale;
                F32s(a.dst).v[at + k_at + c] = k[i][t] * k_scale;
            }
        }
    }
    if (first == 0) {
        keep_window(q_at, K_DIM);
        keep_window(k_at, K_DIM);
    }
}

void prepare_gates(uint head, uint row, uint tokens)
{
    for (uint t = gl_LocalInvocationID.x; t < tokens; t += WORKGROUP) {
        uint from = (first + t) * a.stride, to = (first + t) * row + n_channels();
        float beta = sigmoid(F32s(a.proj).v[from + a.b_at + head]);
        if (BY_CHANNEL != 0) {
            F32s(a.dst).v[to + a.n_v * K_DIM + head] = beta;
        } else {
            float x = F32s(a.proj).v[from + a.a_at + head] + F32s(a.dt_bias).v[head];
            F32s(a.dst).v[to + 2 * head] = decay_of(x, F32s(a.a_log).v[head]);
            F32s(a.dst).v[to + 2 * head + 1] = beta;
        }
    }
    for (uint i = gl_LocalInvocationID.x; BY_CHANNEL != 0 && i < tokens * K_DIM; i += WORKGROUP) {
        uint t = first + i / K_DIM, c = i % K_DIM;
        F32s(a.dst).v[t * row + n_channels() + head * K_DIM + c] = channel_decay(t, head, c);
    }
}

void prepare_value(uint head, uint row)
{
    uint v_at = 2 * a.n_k * K_DIM + head * V_DIM, tokens = min(a.n - first, DELTA_RUN);
    for (uint c = gl_LocalInvocationID.x; c < V_DIM; c += WORKGROUP) {
        float v[DELTA_RUN];
        convolve(v_at + c, v);
        [[unroll]] for (uint t = 0; t < DELTA_RUN; t++)
            if (t < tokens)
                F32s(a.dst).v[(first + t) * row + v_at + c] = v[t];
    }
    prepare_gates(head, row, tokens);
    if (first == 0)
        keep_window(v_at, V_DIM);
}

void main()
{
    uint y = gl_WorkGroupID.y, gates = a.n_v * (BY_CHANNEL != 0 ? K_DIM + 1 : 2),
         row = DELTA_PREPARED(n_channels(), gates);
    first = gl_WorkGroupID.x * DELTA_RUN;
    if (y < a.n_k)
        prepare_key(y, row);
    else
        prepare_value(y - a.n_k, row);
}
