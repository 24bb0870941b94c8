// delta.comp - the gated delta net of one value head over the chunk's tokens, from the projections to the input of
// out_proj. Per token: causal conv and silu of the head's q, k, v channels; q and k scaled to unit length, q also by
// 1 / sqrt(k_dim); decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b);
//   S *= decay;  m = S k;  S += beta (v - m) k^T;  o = S q;  out = rms(o) * norm * silu(z)
//
// Grid: x = n_v heads. PARTS lanes share a row of S [v_dim][k_dim]; a lane keeps its columns of its rows in registers
// over the whole chunk. Value heads of one key head repeat its q and k; the first of them writes its window.
// float32 throughout. Tolerance 1e-5 of the largest output.
#version 460
#include "memory.glsl"
#include "math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 512;
layout(constant_id = 2) const uint PARTS = 8; // a power of two, at most SUBGROUP
layout(constant_id = 3) const uint K_DIM = 128;
layout(constant_id = 4) const uint V_DIM = 128;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint ROW_STEP = WORKGROUP / PARTS;
const uint ROWS = (V_DIM + ROW_STEP - 1) / ROW_STEP; // of a lane
const uint COLS = (K_DIM + PARTS - 1) / PARTS;       // of a lane

layout(push_constant, std430) uniform Args { delta_args a; };

// A head's channels after the convolution: q, k, v.
shared float conv_out[2 * K_DIM + V_DIM];
shared float core[V_DIM];
shared float sums[2 * SUBGROUPS];

uint n_channels()
{
    return 2 * a.n_k * a.k_dim + a.n_v * a.v_dim;
}

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

// Row r of the virtual sequence [window; chunk]: the value before the convolution.
float before_conv(uint r, uint channel)
{
    uint held = a.conv_kernel - 1;
    if (r < held)
        return F32s(a.window_in).v[r * n_channels() + channel];
    return F32s(a.proj).v[(r - held) * a.stride + channel];
}

void convolve(uint head, uint token)
{
    for (uint c = gl_LocalInvocationID.x; c < 2 * K_DIM + V_DIM; c += WORKGROUP) {
        uint channel = channel_of(head, c);
        float y = 0.0;
        for (uint j = 0; j < a.conv_kernel; j++)
            y = fma(before_conv(token + j, channel), F32s(a.conv).v[channel * a.conv_kernel + j], y);
        conv_out[c] = silu(y);
    }
}

void keep_window(uint head)
{
    bool first = head % (a.n_v / a.n_k) == 0;
    for (uint c = gl_LocalInvocationID.x + (first ? 0 : 2 * K_DIM); c < 2 * K_DIM + V_DIM; c += WORKGROUP) {
        uint channel = channel_of(head, c);
        for (uint i = 0; i + 1 < a.conv_kernel; i++)
            F32s(a.window_out).v[i * n_channels() + channel] = before_conv(a.n + i, channel);
    }
}

// Sums over the workgroup of two values per invocation.
vec2 workgroup_sum2(float x, float y)
{
    x = subgroupAdd(x);
    y = subgroupAdd(y);
    if (gl_SubgroupInvocationID == 0) {
        sums[2 * gl_SubgroupID] = x;
        sums[2 * gl_SubgroupID + 1] = y;
    }
    barrier();
    vec2 total = vec2(0.0);
    for (uint i = 0; i < SUBGROUPS; i++)
        total += vec2(sums[2 * i], sums[2 * i + 1]);
    barrier();
    return total;
}

// Sum over the PARTS neighbouring lanes that share a row.
float row_sum(float x)
{
    for (uint mask = 1; mask < PARTS; mask <<= 1)
        x += subgroupShuffleXor(x, mask);
    return x;
}

// q and k of the token for this lane's columns. Where a lane owns whole rows, all lanes of a subgroup need the same
// element at a time: they hold SUBGROUP of them each and broadcast, because a load costs a software device far more.
const uint HELD = PARTS == 1 ? (K_DIM + SUBGROUP - 1) / SUBGROUP : 1;
float q_held[HELD], k_held[HELD];

void hold_qk(float q_scale, float k_scale)
{
    if (PARTS != 1)
        return;
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = min(i * SUBGROUP + gl_SubgroupInvocationID, K_DIM - 1);
        q_held[i] = conv_out[c] * q_scale;
        k_held[i] = conv_out[K_DIM + c] * k_scale;
    }
}

float q_of(uint j, uint part, float q_scale)
{
    if (PARTS == 1)
        return subgroupBroadcast(q_held[j / SUBGROUP], j % SUBGROUP);
    return conv_out[min(j * PARTS + part, K_DIM - 1)] * q_scale;
}

float k_of(uint j, uint part, float k_scale)
{
    if (PARTS == 1)
        return subgroupBroadcast(k_held[j / SUBGROUP], j % SUBGROUP);
    return conv_out[K_DIM + min(j * PARTS + part, K_DIM - 1)] * k_scale;
}

void main()
{
    uint head = gl_WorkGroupID.x, part = gl_LocalInvocationID.x % PARTS, row0 = gl_LocalInvocationID.x / PARTS;
    uint z_at = n_channels(), b_at = z_at + a.n_v * V_DIM, a_at = b_at + a.n_v;
    float s[ROWS][COLS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            uint c = j * PARTS + part;
            s[i][j] = row < V_DIM && c < K_DIM ? F32s(a.state).v[(head * V_DIM + row) * K_DIM + c] : 0.0;
        }
    }

    for (uint t = 0; t < a.n; t++) {
        convolve(head, t);
        barrier();
        float qq = 0.0, kk = 0.0;
        for (uint c = gl_LocalInvocationID.x; c < K_DIM; c += WORKGROUP) {
            qq += conv_out[c] * conv_out[c];
            kk += conv_out[K_DIM + c] * conv_out[K_DIM + c];
        }
        vec2 squares = workgroup_sum2(qq, kk);
        float q_scale = inversesqrt(squares.x + 1e-6) * inversesqrt(float(K_DIM));
        float k_scale = inversesqrt(squares.y + 1e-6);
        float step = softplus(F32s(a.proj).v[t * a.stride + a_at + head] + F32s(a.dt_bias).v[head]);
        float decay = exp_exact(-exp_exact(F32s(a.a_log).v[head]) * step);
        float beta = sigmoid(F32s(a.proj).v[t * a.stride + b_at + head]);

        hold_qk(q_scale, k_scale);

        float oo = 0.0;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            uint row = row0 + i * ROW_STEP;
            float m = 0.0, o = 0.0;
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                s[i][j] *= decay;
                m = fma(s[i][j], k_of(j, part, k_scale), m);
            }
            m = row_sum(m);
            float update = beta * ((row < V_DIM ? conv_out[2 * K_DIM + min(row, V_DIM - 1)] : 0.0) - m);
            // Columns past K_DIM hold 0 and are not stored; they must not reach the sums.
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                s[i][j] = j * PARTS + part < K_DIM ? fma(update, k_of(j, part, k_scale), s[i][j]) : 0.0;
                o = fma(s[i][j], q_of(j, part, q_scale), o);
            }
            o = row_sum(o);
            if (part == 0 && row < V_DIM) {
                core[row] = o;
                oo += o * o;
            }
        }
        float factor = inversesqrt(workgroup_sum2(oo, 0.0).x / float(V_DIM) + a.eps);
        for (uint c = gl_LocalInvocationID.x; c < V_DIM; c += WORKGROUP) {
            float z = F32s(a.proj).v[t * a.stride + z_at + head * V_DIM + c];
            F32s(a.dst).v[(t * a.n_v + head) * V_DIM + c] = core[c] * factor * F32s(a.norm).v[c] * silu(z);
        }
        barrier();
    }

    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            uint c = j * PARTS + part;
            if (row < V_DIM && c < K_DIM)
                F32s(a.state).v[(head * V_DIM + row) * K_DIM + c] = s[i][j];
        }
    }
    keep_window(head);
}
