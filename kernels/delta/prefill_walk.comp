// delta/prefill_walk.comp - delta/prefill_scan.comp's recurrence over a chunk's tokens, in blocks of four.
// With a_i = S k_i and b_i = S q_i for the state S before the block (row by row; d, e, beta as in args.h:
// decays and their products):
//   u_i = beta_i (v_i - e_i a_i) - sum_j<i beta_i e_ij (k_j k_i) u_j
//   dst_i = e_i b_i + sum_j<=i e_ij (k_j q_i) u_j
//   S = e_3 S + sum_j e_3j u_j k_j
// This is the recurrence, expanded. delta/prefill_blocks.comp computes what depends only on the tokens. So
// the lanes that share a row exchange their parts once for four tokens, and S is scaled once.
//
// BY_CHANNEL: the decays are vectors of the key channels. The e of a_i, b_i and S then weigh columns of S;
// k_i and q_i are multiplied by e_i before, and k_j by e_3j. All are products of decays, so none is above 1.
//
// PARTS lanes share EACH rows of S and keep them in registers; each lane gets one of the eight sums a_i, b_i.
// Queries, keys and values of STAGE tokens lie in shared memory, while the next ones are loaded.
// Grid: x = n_v heads, y = blocks of ROWS rows. float32, tolerance 1e-5.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32; // 8 or more
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint PARTS = 8; // 8, 16 or 32, at most SUBGROUP
layout(constant_id = 3) const uint EACH = 2;
layout(constant_id = 4) const uint STAGE = 16;  // a multiple of DELTA_BLOCK
layout(constant_id = 5) const uint K_DIM = 128; // K_DIM and V_DIM are multiples of 4
layout(constant_id = 6) const uint V_DIM = 128;
layout(constant_id = 7) const uint TILED = 0; // 1: the value heads of key head k are k, k + n_k, ...

layout(constant_id = 8) const uint BY_CHANNEL = 0;

layout(push_constant, std430) uniform Args { delta_prefill_walk_args a; };

const uint SUMS = 2 * DELTA_BLOCK;
const uint FOURS = K_DIM / 4, COLS = (FOURS + PARTS - 1) / PARTS; // COLS: a lane's groups of four columns
const uint SIDE = SUBGROUP / PARTS;           // neighbouring lanes that have the same columns
const uint ROWS = WORKGROUP / PARTS * EACH;   // a multiple of 4
const uint COEFS = DELTA_COEFS / 4;
// groups of four numbers in a stage
const uint VECTORS = BY_CHANNEL != 0 ? 3 : 2; // a token's q, k and decays
const uint QK = STAGE * VECTORS * FOURS, V = STAGE * ROWS / 4, C = STAGE / DELTA_BLOCK * COEFS;
const uint HELD_QK = (QK + WORKGROUP - 1) / WORKGROUP, HELD_V = (V + WORKGROUP - 1) / WORKGROUP,
           HELD_C = (C + WORKGROUP - 1) / WORKGROUP;
shared vec4 qk[QK], values[V], coefs[C]; // [token][q, k, decays], [token][row], [block]

uint head, key_head, part, row0; // row0: the workgroup's first row
vec4 next_qk[HELD_QK], next_values[HELD_V], next_coefs[HELD_C];

// Returns the place of a vector of a token in `prepared`.
uint vector_at(uint which)
{
    if (which == 2)
        return (2 * a.n_k + head) * FOURS + a.n_v * V_DIM / 4;
    return (which * a.n_k + key_head) * FOURS;
}

// Tokens past the last are 0, and their decays 1; delta_prefill_blocks assumes that.
void load(uint first)
{
    [[unroll]] for (uint i = 0; i < HELD_QK; i++) {
        uint u = i * WORKGROUP + gl_LocalInvocationID.x, t = first + u / (VECTORS * FOURS),
             which = u / FOURS % VECTORS;
        vec4 absent = vec4(which == 2 ? 1.0 : 0.0);
        uint at = t * (a.row / 4) + vector_at(which) + u % FOURS;
        next_qk[i] = u < QK && t < a.n ? F32x4s(a.prepared).v[at] : absent;
    }
    [[unroll]] for (uint i = 0; i < HELD_V; i++) {
        uint u = i * WORKGROUP + gl_LocalInvocationID.x, t = first + u / (ROWS / 4),
             row = row0 + u % (ROWS / 4) * 4;
        uint at = (t * a.row + 2 * a.n_k * K_DIM + head * V_DIM + row) / 4;
        next_values[i] = u < V && t < a.n && row < V_DIM ? F32x4s(a.prepared).v[at] : vec4(0.0);
    }
    [[unroll]] for (uint i = 0; i < HELD_C; i++) {
        uint u = i * WORKGROUP + gl_LocalInvocationID.x, block = first / DELTA_BLOCK + u / COEFS;
        bool there = u < C && block * DELTA_BLOCK < a.n;
        next_coefs[i] = there ? F32x4s(a.coefs).v[(block * a.n_v + head) * COEFS + u % COEFS] : vec4(0.0);
    }
}

void keep()
{
    [[unroll]] for (uint i = 0; i < HELD_QK; i++)
        if (i * WORKGROUP + gl_LocalInvocationID.x < QK)
            qk[i * WORKGROUP + gl_LocalInvocationID.x] = next_qk[i];
    [[unroll]] for (uint i = 0; i < HELD_V; i++)
        if (i * WORKGROUP + gl_LocalInvocationID.x < V)
            values[i * WORKGROUP + gl_LocalInvocationID.x] = next_values[i];
    [[unroll]] for (uint i = 0; i < HELD_C; i++)
        if (i * WORKGROUP + gl_LocalInvocationID.x < C)
            coefs[i * WORKGROUP + gl_LocalInvocationID.x] = next_coefs[i];
}

// Returns this lane's j-th group of four columns of a token's q (0), k (1) or decays (2). It is 0 past K_DIM,
// so that S there never counts.
vec4 column(uint token, uint which, uint j)
{
    uint c = j * PARTS + part;
    if (FOURS % PARTS == 0)
        return qk[(token * VECTORS + which) * FOURS + c];
    return c < FOURS ? qk[(token * VECTORS + which) * FOURS + c] : vec4(0.0);
}

// Completes two sums of which two lanes have a part each. The lane whose bit is set returns `high`, the other
// one `low`.
float exchange(float low, float high, uint bit)
{
    bool upper = (part & bit) != 0;
    return (upper ? high : low) + subgroupShuffleXor(upper ? low : high, bit * SIDE);
}

// Gives both lanes all sums.
void add_up(inout float x[SUMS], uint bit)
{
    if (bit < PARTS)
        [[unroll]] for (uint i = 0; i < SUMS; i++)
            x[i] += subgroupShuffleXor(x[i], bit * SIDE);
}

// Returns sum number part % SUMS over the lanes that share a row. It avoids a loop over the bits: drivers do
// not unroll a loop around one that they cannot unroll, and keep its arrays in memory.
float share(float x[SUMS])
{
    add_up(x, 8);
    add_up(x, 16);
    vec4 y;
    [[unroll]] for (uint i = 0; i < 4; i++)
        y[i] = exchange(x[i], x[i + 4], 4);
    return exchange(exchange(y.x, y.z, 2), exchange(y.y, y.w, 2), 1);
}

// Stores dst of a row for the block's tokens. Returns e_3j u_j.
vec4 solve(float sum, uint block, uint first, uint row)
{
    uint at = block / DELTA_BLOCK * COEFS, mine = part % SUMS, token = mine % DELTA_BLOCK,
         lane = gl_SubgroupInvocationID % SIDE;
    vec4 two = coefs[at + 7 + mine / 2], low = coefs[at + 4], last = coefs[at + 5], seen = coefs[at + token];
    vec2 factors = mine % 2 == 0 ? two.xy : two.zw;
    uint v = (block + token) * ROWS + row - row0;
    float r = fma(factors.y, sum, factors.x * values[v / 4][v % 4]);
    vec4 u;
    u.x = subgroupShuffle(r, lane);
    u.y = fma(-low.x, u.x, subgroupShuffle(r, lane + SIDE));
    u.z = fma(-low.z, u.y, fma(-low.y, u.x, subgroupShuffle(r, lane + 2 * SIDE)));
    u.w = fma(-last.z, u.z, fma(-last.y, u.y, fma(-last.x, u.x, subgroupShuffle(r, lane + 3 * SIDE))));
    float o = fma(seen.w, u.w, fma(seen.z, u.z, fma(seen.y, u.y, fma(seen.x, u.x, r))));
    if (mine >= DELTA_BLOCK && part < SUMS && first + token < a.n && row < V_DIM)
        F32s(a.dst).v[((first + token) * a.n_v + head) * V_DIM + row] = o;
    return coefs[at + 6] * u;
}

vec4 s[EACH][COLS];

// Adds up a_i and b_i of the lane's columns, and multiplies S and the k_j left in `k` by their decays.
void multiply(uint block, inout vec4 k[DELTA_BLOCK][COLS], inout float sums[EACH][SUMS])
{
    [[unroll]] for (uint j = 0; j < COLS; j++) {
        vec4 since = vec4(1.0);
        [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++) {
            vec4 q = column(block + i, 0, j), key = column(block + i, 1, j);
            k[i][j] = key;
            if (BY_CHANNEL != 0) {
                vec4 d = column(block + i, 2, j);
                since *= d;
                q *= since;
                key *= since;
                [[unroll]] for (uint l = 0; l < i; l++)
                    k[l][j] *= d;
            }
            [[unroll]] for (uint e = 0; e < EACH; e++)
                [[unroll]] for (uint c = 0; c < 4; c++) {
                    sums[e][i] = fma(s[e][j][c], key[c], sums[e][i]);
                    sums[e][DELTA_BLOCK + i] = fma(s[e][j][c], q[c], sums[e][DELTA_BLOCK + i]);
                }
        }
        if (BY_CHANNEL != 0)
            [[unroll]] for (uint e = 0; e < EACH; e++)
                s[e][j] *= since;
    }
}

// block: its first token within the stage. first: its first token within the chunk. row: the lane's first
// row.
void take_block(uint block, uint first, uint row)
{
    vec4 k[DELTA_BLOCK][COLS];
    float sums[EACH][SUMS];
    [[unroll]] for (uint e = 0; e < EACH; e++)
        [[unroll]] for (uint i = 0; i < SUMS; i++)
            sums[e][i] = 0.0;
    multiply(block, k, sums);
    float decay = coefs[block / DELTA_BLOCK * COEFS + 4].w;
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        vec4 u = solve(share(sums[e]), block, first, row + e);
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            if (BY_CHANNEL == 0)
                s[e][j] *= decay;
            [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++)
                s[e][j] = fma(vec4(u[i]), k[i][j], s[e][j]);
        }
    }
}

// Whether a row has a j-th group of four columns in the state. Others are not read: the state may be written
// in place.
bool has_state(uint row, uint j)
{
    return row < V_DIM && j * PARTS + part < FOURS;
}

// The place of a row's j-th group of four columns in the state.
uint state_at(uint row, uint j)
{
    return (head * V_DIM + row) * FOURS + j * PARTS + part;
}

void main()
{
    head = gl_WorkGroupID.x;
    key_head = TILED != 0 ? head % a.n_k : head / (a.n_v / a.n_k);
    row0 = gl_WorkGroupID.y * ROWS;
    part = gl_SubgroupInvocationID / SIDE;
    uint row = row0 + (gl_SubgroupID * SIDE + gl_SubgroupInvocationID % SIDE) * EACH;
    [[unroll]] for (uint e = 0; e < EACH; e++)
        [[unroll]] for (uint j = 0; j < COLS; j++)
            s[e][j] = has_state(row + e, j) ? F32x4s(a.state).v[state_at(row + e, j)] : vec4(0.0);

    load(0);
    for (uint first = 0; first < a.n; first += STAGE) {
        barrier();
        keep();
        barrier();
        load(first + STAGE);
        for (uint block = 0; block < STAGE && first + block < a.n; block += DELTA_BLOCK)
            take_block(block, first + block, row);
    }

    [[unroll]] for (uint e = 0; e < EACH; e++)
        [[unroll]] for (uint j = 0; j < COLS; j++)
            if (has_state(row + e, j))
                F32x4s(a.state_out).v[state_at(row + e, j)] = s[e][j];
}
