// ssd/scan.comp - Mamba-2's state space of one head over the chunk's tokens (ops/ssd/ssd.h), from the input
// projection to the gated outputs before their norm. Per token: causal conv and silu of the head's x and of
// its group's B and C; dt = softplus(dt + dt_bias) in LOW .. HIGH;
//   S = exp(-exp(a_log) dt) S + dt x B^T;  dst = (S C + d x) * silu(z)
//
// Grid: x = n_heads, y = BLOCKS; RECORDS: z = sequences. CHAIN: z = 1; record t has the window and the state
// after token t, record 0 all else. Every token's state is stored. PARTS lanes share a row of S
// [HEAD_DIM][STATE]; a lane keeps its columns of its rows in registers over the whole chunk. What does not
// depend on the state is computed for STAGE tokens at once. The heads of a group repeat its B and C; the
// first of them writes their window. float32 throughout. Tolerance 1e-5 of the largest output.
// variants: plain each chain
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint PARTS = 8; // a power of two, at most SUBGROUP
layout(constant_id = 3) const uint STATE = 128;
layout(constant_id = 4) const uint HEAD_DIM = 64;
layout(constant_id = 5) const uint TAPS = 4;   // conv_kernel
layout(constant_id = 6) const uint BLOCKS = 1; // workgroups that share a head's rows, a divisor of HEAD_DIM
layout(constant_id = 7) const uint REPEATS = 8; // heads of a group
layout(constant_id = 8) const uint STAGE = 8;   // tokens
layout(constant_id = 9) const float LOW = 0.0;
layout(constant_id = 10) const float HIGH = 3.0e38;

const uint V_ROWS = HEAD_DIM / BLOCKS; // rows of a workgroup
const uint ROW_STEP = WORKGROUP / PARTS;
const uint ROWS = (V_ROWS + ROW_STEP - 1) / ROW_STEP; // rows of a lane
const uint COLS = (STATE + PARTS - 1) / PARTS;        // columns of a lane
const uint CHANNELS = V_ROWS + 2 * STATE;             // x, B, C
const bool BY_FOURS = STATE % (4 * PARTS) == 0;
#ifdef CHAIN
const bool IS_CHAIN = true;
#else
const bool IS_CHAIN = false;
#endif

ARGS(ssd_scan_args)

shared float conv_out[STAGE * CHANNELS];
shared float gates[STAGE * V_ROWS]; // silu(z)
shared vec2 steps[STAGE];           // decay, dt

// Returns the first of this workgroup's rows, counted over all heads.
uint first_row(uint head)
{
    return head * HEAD_DIM + gl_WorkGroupID.y * V_ROWS;
}

uint n_channels()
{
    return a.n_heads * HEAD_DIM + 2 * a.n_groups * STATE;
}

// Returns the model's channel for index c of a token in conv_out.
uint channel_of(uint head, uint c)
{
    uint group = head / REPEATS, inner = a.n_heads * HEAD_DIM;
    if (c < V_ROWS)
        return first_row(head) + c;
    if (c < V_ROWS + STATE)
        return inner + group * STATE + c - V_ROWS;
    return inner + (a.n_groups + group) * STATE + c - V_ROWS - STATE;
}

// Returns row r of the sequence [window; chunk]: the value before the convolution.
float before_conv(uint r, uint channel)
{
    bool held = r < TAPS - 1;
    uvec2 from = held ? a.window_in : a.proj;
    return F32s(from)
        .v[held ? r * n_channels() + channel : (r - (TAPS - 1)) * a.stride + a.x_at + channel];
}

// Computes silu of the causal convolution of `count` tokens from `first` on. A lane goes along the tokens of
// a channel, so that it loads each value once.
void convolve(uint head, uint first, uint count)
{
    for (uint c = gl_LocalInvocationID.x; c < CHANNELS; c += WORKGROUP) {
        uint channel = channel_of(head, c);
        float x[TAPS], w[TAPS];
        float bias = addr_is_null(a.conv_bias) ? 0.0 : F32s(a.conv_bias).v[channel];
        [[unroll]] for (uint j = 0; j < TAPS; j++) {
            w[j] = F32s(a.conv).v[channel * TAPS + j];
            x[j] = j + 1 < TAPS ? before_conv(first + j, channel) : 0.0;
        }
        for (uint t = 0; t < count; t++) {
            x[TAPS - 1] = before_conv(first + t + TAPS - 1, channel);
            float y = bias;
            [[unroll]] for (uint j = 0; j < TAPS; j++)
                y = fma(x[j], w[j], y);
            conv_out[t * CHANNELS + c] = silu(y);
            [[unroll]] for (uint j = 0; j + 1 < TAPS; j++)
                x[j] = x[j + 1];
        }
    }
}

void find_gates(uint head, uint first, uint count)
{
    for (uint i = gl_LocalInvocationID.x; i < count * V_ROWS; i += WORKGROUP)
        gates[i] = silu(
            F32s(a.proj).v[(first + i / V_ROWS) * a.stride + a.z_at + first_row(head) + i % V_ROWS]);
    for (uint t = gl_LocalInvocationID.x; t < count; t += WORKGROUP) {
        float x = F32s(a.proj).v[(first + t) * a.stride + a.dt_at + head] + F32s(a.dt_bias).v[head];
        float dt = min(max(softplus(x), LOW), HIGH);
        steps[t] = vec2(exp_exact(-exp_exact(F32s(a.a_log).v[head]) * dt), dt);
    }
}

// Stores the inputs of the convolution that the token after token t needs.
void keep_window(uint head, uint t)
{
    bool is_first = head % REPEATS == 0 && gl_WorkGroupID.y == 0;
    for (uint c = gl_LocalInvocationID.x; c < (is_first ? CHANNELS : V_ROWS); c += WORKGROUP) {
        uint channel = channel_of(head, c);
        [[unroll]] for (uint j = 1; j < TAPS; j++)
            F32s(a.window_out).v[(j - 1) * n_channels() + channel] = before_conv(t + j, channel);
    }
}

// Returns the sum over the PARTS neighbouring lanes that share a row.
float row_sum(float x)
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
    return STATE % PARTS == 0 || c < STATE;
}

float s[ROWS][COLS]; // this lane's share of the state

void load_state(uint head, uint part, uint row0)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP, at = (first_row(head) + min(row, V_ROWS - 1)) * STATE;
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
        uint row = row0 + i * ROW_STEP, at = (first_row(head) + row) * STATE;
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

// Computes token `first` + t, whose inputs are number t of the stage.
void step(uint head, uint first, uint t, uint part, uint row0)
{
    float b[COLS], c[COLS];
    vec2 by = steps[t];
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        uint at = column(part, j), from = t * CHANNELS + V_ROWS + min(at, STATE - 1);
        b[j] = has_col(at) ? conv_out[from] : 0.0;
        c[j] = has_col(at) ? conv_out[from + STATE] : 0.0;
    }
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = row0 + i * ROW_STEP;
        float x = conv_out[t * CHANNELS + min(row, V_ROWS - 1)], sum = 0.0;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            s[i][j] = fma(by.y * x, b[j], by.x * s[i][j]);
            sum = fma(s[i][j], c[j], sum);
        }
        sum = row_sum(sum);
        if (part == 0 && has_row(row))
            F32s(a.dst).v[(first + t) * a.n_heads * HEAD_DIM + first_row(head) + row] =
                fma(F32s(a.d).v[head], x, sum) * gates[t * V_ROWS + row];
    }
}

// Stores what follows token t.
void keep(uint head, uint t, uint part, uint row0)
{
#ifdef CHAIN
    a.window_out = Records(each.records).v[t].window_out;
    a.state_out = Records(each.records).v[t].state_out;
#endif
    keep_window(head, t);
    store_state(head, part, row0);
}

void main()
{
    take_args();
    uint head = gl_WorkGroupID.x, part = gl_LocalInvocationID.x % PARTS,
         row0 = gl_LocalInvocationID.x / PARTS;
    load_state(head, part, row0);
    for (uint first = 0; first < a.n; first += STAGE) {
        uint count = min(STAGE, a.n - first);
        if (first > 0)
            barrier(); // before the next inputs replace those that other lanes read
        convolve(head, first, count);
        find_gates(head, first, count);
        barrier();
        for (uint t = 0; t < count; t++) {
            step(head, first, t, part, row0);
            if (IS_CHAIN)
                keep(head, first + t, part, row0);
        }
    }
    if (!IS_CHAIN)
        keep(head, a.n - 1, part, row0);
}
