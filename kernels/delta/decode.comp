// delta/decode.comp - the gated delta net of one value head over the chunk's tokens, from the projections to the input of
// out_proj. Per token: causal conv and silu of the head's q, k, v channels; q and k scaled to unit length, q also by
// 1 / sqrt(k_dim); decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b);
//   S *= decay;  m = S k;  S += beta (v - m) k^T;  o = S q;  out = rms(o) * norm * silu(z)
//
// Grid: x = n_v heads. PARTS lanes share a row of S [v_dim][k_dim]; a lane keeps its columns of its rows in registers
// over the whole chunk. Value heads of one key head repeat its q and k; the first of them writes its window.
// float32 throughout. Tolerance 1e-5 of the largest output.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 512;
layout(constant_id = 2) const uint PARTS = 8; // a power of two, at most SUBGROUP
layout(constant_id = 3) const uint K_DIM = 128;
layout(constant_id = 4) const uint V_DIM = 128;
layout(constant_id = 5) const uint TAPS = 4; // conv_kernel

const uint ROW_STEP = WORKGROUP / PARTS;
const uint ROWS = (V_DIM + ROW_STEP - 1) / ROW_STEP; // of a lane
const uint COLS = (K_DIM + PARTS - 1) / PARTS;       // of a lane
const uint OUTS = (V_DIM + WORKGROUP - 1) / WORKGROUP; // of an invocation

layout(push_constant, std430) uniform Args { delta_args a; };

#include "delta.glsl"

// silu of the causal convolution at token t.
float convolved(uint t, uint channel)
{
    float x[TAPS], w[TAPS], y = 0.0;
    [[unroll]] for (uint j = 0; j < TAPS; j++) {
        x[j] = before_conv(t + j, channel);
        w[j] = F32s(a.conv).v[channel * TAPS + j];
    }
    [[unroll]] for (uint j = 0; j < TAPS; j++)
        y = fma(x[j], w[j], y);
    return silu(y);
}

// A head's channels after the convolution: q, k, v.
shared float conv_out[2 * K_DIM + V_DIM];
shared float core[V_DIM];

// The model's channel that stands at place c of conv_out.
uint channel_of(uint head, uint c)
{
    uint key_head = head / (a.n_v / a.n_k);
    if (c < K_DIM)
        return key_head * K_DIM + c;
    if (c < 2 * K_DIM)
        return a.n_k * K_DIM + key_head * K_DIM + c - K_DIM;
    return 2 * a.n_k * K_DIM + head * V_DIM + c - 2 * K_DIM;
}

void convolve(uint head, uint token)
{
    for (uint c = gl_LocalInvocationID.x; c < 2 * K_DIM + V_DIM; c += WORKGROUP) {
        conv_out[c] = convolved(token, channel_of(head, c));
    }
}

// The last invocations start: in a large workgroup they have nothing to convolve.
void keep_window(uint head)
{
    bool first = head % (a.n_v / a.n_k) == 0;
    uint start = WORKGROUP - 1 - gl_LocalInvocationID.x;
    for (uint c = start + (first ? 0 : 2 * K_DIM); c < 2 * K_DIM + V_DIM; c += WORKGROUP) {
        uint channel = channel_of(head, c);
        float x[TAPS];
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            x[i] = before_conv(a.n + i, channel);
        [[unroll]] for (uint i = 0; i + 1 < TAPS; i++)
            F32s(a.window_out).v[i * n_channels() + channel] = x[i];
    }
}

// Squares' sums of q and k. The subgroups each do all of it, which is quicker than a barrier.
vec2 qk_squares()
{
    float qq = 0.0, kk = 0.0;
    for (uint c = gl_SubgroupInvocationID; c < K_DIM; c += SUBGROUP) {
        qq += conv_out[c] * conv_out[c];
        kk += conv_out[K_DIM + c] * conv_out[K_DIM + c];
    }
    return vec2(subgroupAdd(qq), subgroupAdd(kk));
}

// Squares' sum of core.
float core_squares()
{
    float oo = 0.0;
    barrier();
    for (uint c = gl_SubgroupInvocationID; c < V_DIM; c += SUBGROUP)
        oo += core[c] * core[c];
    return subgroupAdd(oo);
}

// What an invocation needs of a token behind the channels, loaded early.
struct Gates {
    float decay_in, bias, log, beta_in;
    float z[OUTS], norm[OUTS];
};

void load_gates(uint head, uint token, out Gates g)
{
    uint row = token * a.stride, z_at = row + n_channels() + head * V_DIM, b_at = row + n_channels() + a.n_v * V_DIM;
    g.decay_in = F32s(a.proj).v[b_at + a.n_v + head];
    g.beta_in = F32s(a.proj).v[b_at + head];
    g.bias = F32s(a.dt_bias).v[head];
    g.log = F32s(a.a_log).v[head];
    [[unroll]] for (uint i = 0; i < OUTS; i++) {
        uint c = min(i * WORKGROUP + gl_LocalInvocationID.x, V_DIM - 1);
        g.z[i] = F32s(a.proj).v[z_at + c];
        g.norm[i] = F32s(a.norm).v[c];
    }
}

// Sum over the PARTS neighbouring lanes that share a row.
float row_sum(float x)
{
    for (uint mask = 1; mask < PARTS; mask <<= 1)
        x += subgroupShuffleXor(x, mask);
    return x;
}

// q and k of the token for this lane's columns.
float q[COLS], k[COLS];

void hold_qk(uint part, float q_scale, float k_scale)
{
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        uint c = j * PARTS + part;
        q[j] = conv_out[min(c, K_DIM - 1)] * q_scale;
        k[j] = conv_out[K_DIM + min(c, K_DIM - 1)] * k_scale;
    }
}

// Whether row `row` and column c of a lane's share exist; constants where the shares come out even.
bool has_row(uint row)
{
    return V_DIM % ROW_STEP == 0 || row < V_DIM;
}

bool has_col(uint c)
{
    return K_DIM % PARTS == 0 || c < K_DIM;
}

void main()
{
    uint head = gl_WorkGroupID.x, part = gl_LocalInvocationID.x % PARTS, row0 = gl_LocalInvocationID.x / PARTS;
    float s[ROWS][COLS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            uint c = j * PARTS + part;
            s[i][j] = has_row(row) && has_col(c) ? F32s(a.state).v[(head * V_DIM + row) * K_DIM + c] : 0.0;
        }
    }

    keep_window(head);
    for (uint t = 0; t < a.n; t++) {
        Gates g;
        load_gates(head, t, g);
        convolve(head, t);
        barrier();
        vec2 squares = qk_squares();
        float q_scale = inversesqrt(squares.x + 1e-6) * inversesqrt(float(K_DIM));
        float k_scale = inversesqrt(squares.y + 1e-6);
        float decay = exp_exact(-exp_exact(g.log) * softplus(g.decay_in + g.bias));
        float beta = sigmoid(g.beta_in);

        hold_qk(part, q_scale, k_scale);

        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            uint row = row0 + i * ROW_STEP;
            float m = 0.0, o = 0.0;
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                s[i][j] *= decay;
                m = fma(s[i][j], k[j], m);
            }
            m = row_sum(m);
            float update = beta * ((has_row(row) ? conv_out[2 * K_DIM + min(row, V_DIM - 1)] : 0.0) - m);
            // Columns past K_DIM hold 0 and are not stored; they must not reach the sums.
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                s[i][j] = has_col(j * PARTS + part) ? fma(update, k[j], s[i][j]) : 0.0;
                o = fma(s[i][j], q[j], o);
            }
            o = row_sum(o);
            if (part == 0 && has_row(row))
                core[row] = o;
        }
        float factor = inversesqrt(core_squares() / float(V_DIM) + a.eps);
        [[unroll]] for (uint i = 0; i < OUTS; i++) {
            uint c = i * WORKGROUP + gl_LocalInvocationID.x;
            if (c < V_DIM)
                F32s(a.dst).v[(t * a.n_v + head) * V_DIM + c] = core[c] * factor * g.norm[i] * silu(g.z[i]);
        }
    }

    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            uint c = j * PARTS + part;
            if (has_row(row) && has_col(c))
                F32s(a.state_out).v[(head * V_DIM + row) * K_DIM + c] = s[i][j];
        }
    }
}
