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
const uint CHANNELS = 2 * K_DIM + V_DIM;
const uint CONVS = (CHANNELS + WORKGROUP - 1) / WORKGROUP; // likewise
const bool BY_FOURS = K_DIM % (4 * PARTS) == 0;

layout(push_constant, std430) uniform Args { delta_args a; };

#include "delta.glsl"

// A head's channels after the convolution: q, k, v.
shared float conv_out[CHANNELS];
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

// What an invocation convolves at the i-th of its places: token t and its predecessors, oldest first, and the taps.
float tap_x[CONVS][TAPS], tap_w[CONVS][TAPS];

uint place(uint i)
{
    return i * WORKGROUP + gl_LocalInvocationID.x;
}

void load_taps(uint head, uint t)
{
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        uint channel = channel_of(head, min(place(i), CHANNELS - 1));
        [[unroll]] for (uint j = 0; j < TAPS; j++) {
            tap_x[i][j] = before_conv(t + j, channel);
            tap_w[i][j] = F32s(a.conv).v[channel * TAPS + j];
        }
    }
}

// silu of the causal convolution.
void convolve()
{
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        float y = 0.0;
        [[unroll]] for (uint j = 0; j < TAPS; j++)
            y = fma(tap_x[i][j], tap_w[i][j], y);
        if (place(i) < CHANNELS)
            conv_out[place(i)] = silu(y);
    }
}

// What the next chunk needs of the last token and its predecessors.
void keep_window(uint head)
{
    bool first = head % (a.n_v / a.n_k) == 0;
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        uint c = place(i), channel = channel_of(head, min(c, CHANNELS - 1));
        if (c < CHANNELS && (first || c >= 2 * K_DIM))
            [[unroll]] for (uint j = 1; j < TAPS; j++)
                F32s(a.window_out).v[(j - 1) * n_channels() + channel] = tap_x[i][j];
    }
}

// q q, k k and k q. The subgroups each do all of it, which is quicker than a barrier.
vec3 qk_products()
{
    vec3 sum = vec3(0.0);
    for (uint c = gl_SubgroupInvocationID; c < K_DIM; c += SUBGROUP) {
        float q = conv_out[c], k = conv_out[K_DIM + c];
        sum += vec3(q * q, k * k, k * q);
    }
    return subgroupAdd(sum);
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

// Sums over the PARTS neighbouring lanes that share a row.
vec2 row_sums(vec2 x)
{
    for (uint mask = 1; mask < PARTS; mask <<= 1)
        x += subgroupShuffleXor(x, mask);
    return x;
}

// Column j of a lane's share: by fours where rows come out even, so that 16 bytes are loaded at once.
uint column(uint part, uint j)
{
    return BY_FOURS ? (j / 4 * PARTS + part) * 4 + j % 4 : j * PARTS + part;
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

float s[ROWS][COLS]; // this lane's share of the state

void load_state(uint head, uint part, uint row0)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP, at = (head * V_DIM + min(row, V_DIM - 1)) * K_DIM;
        [[unroll]] for (uint j = 0; j < COLS; j += BY_FOURS ? 4 : 1) {
            uint c = column(part, j);
            if (BY_FOURS) {
                vec4 v = F32x4s(a.state).v[(at + c) / 4];
                [[unroll]] for (uint l = 0; l < 4; l++)
                    s[i][min(j + l, COLS - 1)] = v[l];
            } else {
                s[i][j] = has_row(row) && has_col(c) ? F32s(a.state).v[at + c] : 0.0;
            }
        }
    }
}

void store_state(uint head, uint part, uint row0)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP, at = (head * V_DIM + row) * K_DIM;
        [[unroll]] for (uint j = 0; j < COLS; j += BY_FOURS ? 4 : 1) {
            uint c = column(part, j), last = COLS - 1;
            if (BY_FOURS && has_row(row))
                F32x4s(a.state).v[(at + c) / 4] =
                    vec4(s[i][j], s[i][min(j + 1, last)], s[i][min(j + 2, last)], s[i][min(j + 3, last)]);
            if (!BY_FOURS && has_row(row) && has_col(c))
                F32s(a.state).v[at + c] = s[i][j];
        }
    }
}

// One token's step of the state, from conv_out to core. As o = S_new q = decay (S q) + u (k q), both sums over a row
// need the old state alone.
void step_state(uint part, uint row0, float decay, float beta)
{
    vec3 products = qk_products();
    float k_scale = inversesqrt(products.y + 1e-6);
    float q_scale = inversesqrt(products.x + 1e-6) * inversesqrt(float(K_DIM));
    float q[COLS], k[COLS];
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        uint c = column(part, j);
        q[j] = has_col(c) ? conv_out[min(c, K_DIM - 1)] : 0.0;
        k[j] = has_col(c) ? conv_out[K_DIM + min(c, K_DIM - 1)] : 0.0;
    }
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        vec2 sums = vec2(0.0);
        [[unroll]] for (uint j = 0; j < COLS; j++)
            sums = fma(vec2(s[i][j]), vec2(k[j], q[j]), sums);
        sums = decay * row_sums(sums);
        float update = beta * (conv_out[2 * K_DIM + min(row, V_DIM - 1)] - sums.x * k_scale) * k_scale;
        [[unroll]] for (uint j = 0; j < COLS; j++)
            s[i][j] = fma(update, k[j], decay * s[i][j]);
        if (part == 0 && has_row(row))
            core[row] = fma(update, products.z, sums.y) * q_scale;
    }
}

void main()
{
    uint head = gl_WorkGroupID.x, part = gl_LocalInvocationID.x % PARTS, row0 = gl_LocalInvocationID.x / PARTS;
    for (uint t = 0; t < a.n; t++) {
        // All loads come before the first store and the first wait.
        Gates g;
        load_taps(head, t);
        load_gates(head, t, g);
        if (t == 0)
            load_state(head, part, row0);
        convolve();
        float decay = exp_exact(-exp_exact(g.log) * softplus(g.decay_in + g.bias));
        barrier();
        step_state(part, row0, decay, sigmoid(g.beta_in));
        if (t + 1 == a.n) {
            keep_window(head);
            store_state(head, part, row0);
        }
        float factor = inversesqrt(core_squares() / float(V_DIM) + a.eps);
        [[unroll]] for (uint i = 0; i < OUTS; i++) {
            uint c = i * WORKGROUP + gl_LocalInvocationID.x;
            if (c < V_DIM)
                F32s(a.dst).v[(t * a.n_v + head) * V_DIM + c] = core[c] * factor * g.norm[i] * silu(g.z[i]);
        }
    }
}
