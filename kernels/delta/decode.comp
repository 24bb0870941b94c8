// delta/decode.comp - the gated delta net of one value head over the chunk's tokens, from the projections to
// the input of out_proj. Per token: causal conv and silu of the head's q, k, v channels; q and k scaled to
// unit length, q also by 1 / sqrt(k_dim); decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b);
//   S *= decay;  m = S k;  S += beta (v - m) k^T;  o = S q;  out = rms(o) * norm * silu(z)
// BY_CHANNEL: each key channel has a decay of its own, and a lower bound of its logarithm may change the
// formula (ops/delta/delta.h).
//
// Grid: x = n_v heads, y = BLOCKS; RECORDS: z = sequences. CHAIN: z = 1; record t has the window and the
// state after token t, record 0 all else. Every token's state is stored. PARTS lanes share a row of S
// [v_dim][k_dim]; a lane keeps its columns of its rows in registers over the whole chunk. Value heads of one
// key head repeat its q and k; the first of them writes its window. float32 throughout. Tolerance 1e-5 of the
// largest output.
// variants: plain each chain
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 512;
layout(constant_id = 2) const uint PARTS = 8; // a power of two, at most SUBGROUP
layout(constant_id = 3) const uint K_DIM = 128;
layout(constant_id = 4) const uint V_DIM = 128;
layout(constant_id = 5) const uint TAPS = 4; // conv_kernel

// Workgroups that share a head's rows, a divisor of V_DIM. With more than one, `out` lacks the factor of its
// norm and their sums of squares of o are written instead.
layout(constant_id = 6) const uint BLOCKS = 1;
layout(constant_id = 7) const uint REPEATS = 1; // value heads of a key head
layout(constant_id = 8) const uint SIGMOID = 0; // 1: the output gate is sigmoid(z)
layout(constant_id = 9) const uint TILED = 0; // 1: the value heads of key head k are k, k + n_k, ...

layout(constant_id = 10) const uint BY_CHANNEL = 0;
layout(constant_id = 11) const float LOWER = 0.0; // lower bound of a decay's logarithm; 0: none

const uint V_ROWS = V_DIM / BLOCKS; // rows of a workgroup
const uint ROW_STEP = WORKGROUP / PARTS;
const uint ROWS = (V_ROWS + ROW_STEP - 1) / ROW_STEP; // rows of a lane
const uint COLS = (K_DIM + PARTS - 1) / PARTS;       // columns of a lane
const uint OUTS = (V_ROWS + WORKGROUP - 1) / WORKGROUP; // outputs of an invocation
const uint CHANNELS = 2 * K_DIM + V_ROWS;
const uint CONVS = (CHANNELS + WORKGROUP - 1) / WORKGROUP; // channels of an invocation
const uint MIDDLE = WORKGROUP / SUBGROUP / 2 * SUBGROUP;
#ifdef CHAIN
const bool IS_CHAIN = true;
#else
const bool IS_CHAIN = false;
#endif
const bool BY_FOURS = K_DIM % (4 * PARTS) == 0;

ARGS(delta_args)

#include "delta.glsl"

// A head's channels after the convolution: q, k, v.
shared float conv_out[CHANNELS];
shared float core[V_ROWS];
shared float decays[BY_CHANNEL != 0 ? K_DIM : 1];

// Returns the first of this workgroup's rows, counted over all heads.
uint first_row(uint head)
{
    return head * V_DIM + gl_WorkGroupID.y * V_ROWS;
}

// Returns the model's channel for index c of conv_out.
uint channel_of(uint head, uint c)
{
    uint key_head = TILED != 0 ? head % a.n_k : head / REPEATS;
    if (c < K_DIM)
        return key_head * K_DIM + c;
    if (c < 2 * K_DIM)
        return a.n_k * K_DIM + key_head * K_DIM + c - K_DIM;
    return 2 * a.n_k * K_DIM + first_row(head) + c - 2 * K_DIM;
}

// The inputs of an invocation's i-th convolution, token t and its predecessors, oldest first; and the taps.
float tap_x[CONVS][TAPS], tap_w[CONVS][TAPS];

uint place(uint i)
{
    return i * WORKGROUP + gl_LocalInvocationID.x;
}

void load_taps(uint head, uint t)
{
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        if (place(i) >= CHANNELS)
            break;
        uint channel = channel_of(head, place(i));
        [[unroll]] for (uint j = 0; j < TAPS; j++) {
            tap_x[i][j] = before_conv(t + j, channel);
            tap_w[i][j] = F32s(a.conv).v[channel * TAPS + j];
        }
    }
}

// Computes silu of the causal convolution.
void convolve()
{
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        if (place(i) >= CHANNELS)
            break;
        float y = 0.0;
        [[unroll]] for (uint j = 0; j < TAPS; j++)
            y = fma(tap_x[i][j], tap_w[i][j], y);
        conv_out[place(i)] = silu(y);
    }
}

// Sets where the state after token t goes.
void find_target(uint t)
{
#ifdef CHAIN
    a.window_out = Records(each.records).v[t].window_out;
    a.state_out = Records(each.records).v[t].state_out;
#endif
}

// Stores what the next chunk needs of the last token and its predecessors.
void keep_window(uint head)
{
    bool first = (TILED != 0 ? head < a.n_k : head % REPEATS == 0) && gl_WorkGroupID.y == 0;
    [[unroll]] for (uint i = 0; i < CONVS; i++) {
        uint c = place(i), channel = channel_of(head, min(c, CHANNELS - 1));
        if (c < CHANNELS && (first || c >= 2 * K_DIM))
            [[unroll]] for (uint j = 1; j < TAPS; j++)
                F32s(a.window_out).v[(j - 1) * n_channels() + channel] = tap_x[i][j];
    }
}

// What all lanes need of a token. Only the last subgroup computes it: a scalar that every subgroup computed
// would take as long as a row of the state.
struct Scalars {
    float decay, beta;
    float q_scale, k_scale, kq; // kq: before q and k are scaled
};
shared Scalars scalars;

bool is_last_subgroup()
{
    return gl_SubgroupID == WORKGROUP / SUBGROUP - 1;
}

// One load gets four values: lane 0 has a, 1 its bias, 2 a_log, 3 b.
float load_gate(uint head, uint token)
{
    uint lane = gl_SubgroupInvocationID, row = token * a.stride;
    uvec2 from = lane == 1 ? a.dt_bias : lane == 2 ? a.a_log : a.proj;
    return F32s(from).v[head + (lane == 0 ? row + a.a_at : lane == 3 ? row + a.b_at : 0)];
}

void find_gates(float gate)
{
    float x = subgroupBroadcast(gate, 0) + subgroupBroadcast(gate, 1);
    float decay = BY_CHANNEL != 0 ? 1.0 : decay_of(x, subgroupBroadcast(gate, 2));
    float beta = sigmoid(subgroupBroadcast(gate, 3));
    if (gl_SubgroupInvocationID == 0) {
        scalars.decay = decay;
        scalars.beta = beta;
    }
}

// Computes the channels' decays, if each has one.
void find_decays(uint head, uint token)
{
    if (BY_CHANNEL == 0)
        return;
    for (uint c = gl_LocalInvocationID.x; c < K_DIM; c += WORKGROUP)
        decays[BY_CHANNEL != 0 ? c : 0] = channel_decay(token, head, c);
}

void find_scales()
{
    vec3 sum = vec3(0.0);
    for (uint c = gl_SubgroupInvocationID; c < K_DIM; c += SUBGROUP) {
        float q = conv_out[c], k = conv_out[K_DIM + c];
        sum += vec3(q * q, k * k, k * q);
    }
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0) {
        scalars.q_scale = inversesqrt(sum.x + 1e-6) * inversesqrt(float(K_DIM));
        scalars.k_scale = inversesqrt(sum.y + 1e-6);
        scalars.kq = sum.z;
    }
}

// Returns the channel that an invocation stores. In a large workgroup the invocations in the middle have
// nothing to do besides rows, so they store.
uint out_channel(uint i)
{
    return i * WORKGROUP + (gl_LocalInvocationID.x + MIDDLE) % WORKGROUP;
}

// Returns whether a subgroup stores any.
bool has_outputs()
{
    return OUTS > 1 || (gl_SubgroupID * SUBGROUP + MIDDLE) % WORKGROUP < V_ROWS;
}

float z[OUTS], norm[OUTS];

void load_outputs(uint head, uint token)
{
    [[unroll]] for (uint i = 0; i < OUTS; i++) {
        uint c = min(out_channel(i), V_ROWS - 1);
        z[i] = F32s(a.proj).v[token * a.stride + a.z_at + first_row(head) + c];
        norm[i] = F32s(a.norm).v[gl_WorkGroupID.y * V_ROWS + c];
    }
}

void store_outputs(uint head, uint token)
{
    float squares = 0.0;
    for (uint c = gl_SubgroupInvocationID; c < V_ROWS; c += SUBGROUP)
        squares += core[c] * core[c];
    squares = subgroupAdd(squares);
    float factor = BLOCKS > 1 ? 1.0 : inversesqrt(squares / float(V_DIM) + a.eps);
    if (BLOCKS > 1 && out_channel(0) == 0)
        F32s(a.squares).v[(token * a.n_v + head) * BLOCKS + gl_WorkGroupID.y] = squares;
    [[unroll]] for (uint i = 0; i < OUTS; i++) {
        uint c = out_channel(i);
        if (c < V_ROWS)
            F32s(a.dst).v[token * a.n_v * V_DIM + first_row(head) + c] =
                core[c] * factor * norm[i] * (SIGMOID != 0 ? sigmoid(z[i]) : silu(z[i]));
    }
}

// Returns the sums over the PARTS neighbouring lanes that share a row.
vec2 row_sums(vec2 x)
{
    for (uint mask = 1; mask < PARTS; mask <<= 1)
        x += subgroupShuffleXor(x, mask);
    return x;
}

// Returns column j of a lane's share: in groups of four if rows divide evenly, so that 16 bytes are loaded at
// once.
uint column(uint part, uint j)
{
    return BY_FOURS ? (j / 4 * PARTS + part) * 4 + j % 4 : j * PARTS + part;
}

// Return whether a row, and a column of a lane's share, exists; constants if the shares divide evenly.
bool has_row(uint row)
{
    return V_ROWS % ROW_STEP == 0 || row < V_ROWS;
}

bool has_col(uint c)
{
    return K_DIM % PARTS == 0 || c < K_DIM;
}

float s[ROWS][COLS]; // this lane's share of the state

void load_state(uint head, uint part, uint row0)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP, at = (first_row(head) + min(row, V_ROWS - 1)) * K_DIM;
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
        uint row = row0 + i * ROW_STEP, at = (first_row(head) + row) * K_DIM;
        [[unroll]] for (uint j = 0; j < COLS; j += BY_FOURS ? 4 : 1) {
            uint c = column(part, j), last = COLS - 1;
            if (BY_FOURS && has_row(row))
                F32x4s(a.state_out).v[(at + c) / 4] =
                    vec4(s[i][j], s[i][min(j + 1, last)], s[i][min(j + 2, last)], s[i][min(j + 3, last)]);
            if (!BY_FOURS && has_row(row) && has_col(c))
                F32s(a.state_out).v[at + c] = s[i][j];
        }
    }
}

// This lane's columns of the token's q and k, right after the convolution, and their decays.
float q[COLS], k[COLS], d[COLS];

void load_qk(uint part)
{
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        uint c = column(part, j);
        q[j] = has_col(c) ? conv_out[min(c, K_DIM - 1)] : 0.0;
        k[j] = has_col(c) ? conv_out[K_DIM + min(c, K_DIM - 1)] : 0.0;
        d[j] = BY_CHANNEL != 0 ? decays[min(c, K_DIM - 1)] : 1.0;
    }
}

// Returns S k and S q of a row. Because o = S_new q = decay (S q) + u (k q), both need only the old state.
// BY_CHANNEL: S is S * decay there; else the decay follows in update_row.
vec2 row_products(uint i)
{
    vec2 sums = vec2(0.0);
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        if (BY_CHANNEL != 0)
            s[i][j] *= d[j];
        sums = fma(vec2(s[i][j]), vec2(k[j], q[j]), sums);
    }
    return row_sums(sums);
}

void update_row(uint i, uint part, uint row, vec2 products)
{
    Scalars by = scalars;
    float v = conv_out[2 * K_DIM + min(row, V_ROWS - 1)];
    float update = by.beta * (v - by.decay * products.x * by.k_scale) * by.k_scale;
    [[unroll]] for (uint j = 0; j < COLS; j++)
        s[i][j] = fma(update, k[j], by.decay * s[i][j]);
    if (part == 0 && has_row(row))
        core[row] = fma(update, by.kq, by.decay * products.y) * by.q_scale;
}

void main()
{
    take_args();
    uint head = gl_WorkGroupID.x, part = gl_LocalInvocationID.x % PARTS,
         row0 = gl_LocalInvocationID.x / PARTS;
    for (uint t = 0; t < a.n; t++) {
        // All loads start before the first store and the first wait.
        float gate = is_last_subgroup() ? load_gate(head, t) : 0.0;
        load_taps(head, t);
        if (has_outputs())
            load_outputs(head, t);
        if (t == 0)
            load_state(head, part, row0);
        find_decays(head, t);
        convolve();
        if (is_last_subgroup())
            find_gates(gate);
        barrier();
        if (is_last_subgroup())
            find_scales();
        load_qk(part);
        vec2 products[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++)
            products[i] = row_products(i);
        barrier();
        [[unroll]] for (uint i = 0; i < ROWS; i++)
            update_row(i, part, row0 + i * ROW_STEP, products[i]);
        if (IS_CHAIN || t + 1 == a.n) {
            find_target(t);
            keep_window(head);
            store_state(head, part, row0);
        }
        barrier();
        if (has_outputs())
            store_outputs(head, t);
    }
}
