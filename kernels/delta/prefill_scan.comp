// delta/prefill_scan.comp - the second of three kernels: the recurrence over a chunk's tokens. Per value head
// and row r of its state
//   S_r *= decay;  m = S_r k;  u = beta (v_r - m);  S_r += u k;  dst_r = S_r q
// BY_CHANNEL: a column of S has a decay of its own. S is multiplied by them first; below, decay is 1 then.
// It is computed from a = S_r k, b = S_r q of the old state: m = decay a, dst_r = decay b + u (k q). So the
// lanes exchange their parts only once for each token; these exchanges take most of the time.
// Rows are independent: PARTS lanes share one and keep it in registers, and no barrier is needed. The next
// token's numbers are loaded while this one's are used.
//
// Grid: x = n_v heads, y = blocks of SUBGROUP / PARTS rows; one subgroup a workgroup. float32, tolerance
// 1e-5.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PARTS = 8; // a power of two, at most SUBGROUP
layout(constant_id = 2) const uint K_DIM = 128; // a multiple of 4
layout(constant_id = 3) const uint V_DIM = 128;
layout(constant_id = 4) const uint TILED = 0; // 1: the value heads of key head k are k, k + n_k, ...

layout(constant_id = 5) const uint BY_CHANNEL = 0;

const uint COLS4 = (K_DIM / 4 + PARTS - 1) / PARTS; // a lane's groups of four columns

layout(push_constant, std430) uniform Args { delta_prefill_scan_args a; };

// The next token's numbers.
vec4 next_q[COLS4], next_k[COLS4], next_d[COLS4];
float next_v, next_decay, next_beta;

// Columns past K_DIM are 0 in q and k, so that what S has there never counts.
void load(uint t, uint key_head, uint head, uint row, uint part)
{
    uint at = t * a.row, channels = 2 * a.n_k * K_DIM + a.n_v * V_DIM;
    [[unroll]] for (uint j = 0; j < COLS4; j++) {
        uint c = j * PARTS + part;
        bool there = c < K_DIM / 4;
        next_q[j] = there ? F32x4s(a.prepared).v[(at + key_head * K_DIM) / 4 + c] : vec4(0.0);
        next_k[j] = there ? F32x4s(a.prepared).v[(at + (a.n_k + key_head) * K_DIM) / 4 + c] : vec4(0.0);
        if (BY_CHANNEL != 0)
            next_d[j] = there ? F32x4s(a.prepared).v[(at + channels + head * K_DIM) / 4 + c] : vec4(0.0);
    }
    next_v = F32s(a.prepared).v[at + 2 * a.n_k * K_DIM + head * V_DIM + row];
    next_decay = BY_CHANNEL != 0 ? 1.0 : F32s(a.prepared).v[at + channels + 2 * head];
    next_beta = F32s(a.prepared).v[at + channels + (BY_CHANNEL != 0 ? a.n_v * K_DIM + head : 2 * head + 1)];
}

// Returns the sums over the PARTS neighbouring lanes that share a row.
vec3 row_sums(vec3 x)
{
    for (uint mask = 1; mask < PARTS; mask <<= 1)
        x += vec3(subgroupShuffleXor(x.x, mask), subgroupShuffleXor(x.y, mask),
                  subgroupShuffleXor(x.z, mask));
    return x;
}

void main()
{
    uint head = gl_WorkGroupID.x, part = gl_SubgroupInvocationID % PARTS;
    uint key_head = TILED != 0 ? head % a.n_k : head / (a.n_v / a.n_k);
    uint mine = gl_WorkGroupID.y * (SUBGROUP / PARTS) + gl_SubgroupInvocationID / PARTS,
         row = min(mine, V_DIM - 1);
    uint at = (head * V_DIM + row) * K_DIM / 4;
    vec4 s[COLS4];
    // Rows that are not there are not read: the state may be written in place.
    [[unroll]] for (uint j = 0; j < COLS4; j++) {
        bool has_state = mine < V_DIM && j * PARTS + part < K_DIM / 4;
        s[j] = has_state ? F32x4s(a.state).v[at + j * PARTS + part] : vec4(0.0);
    }

    load(0, key_head, head, row, part);
    for (uint t = 0; t < a.n; t++) {
        vec4 q[COLS4], k[COLS4];
        float v = next_v, decay = next_decay, beta = next_beta;
        vec4 sk = vec4(0.0), sq = vec4(0.0), kq = vec4(0.0); // four sums each avoid a long chain of additions
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            q[j] = next_q[j];
            k[j] = next_k[j];
            if (BY_CHANNEL != 0)
                s[j] *= next_d[j];
        }
        load(min(t + 1, a.n - 1), key_head, head, row, part);
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            sk = fma(s[j], k[j], sk);
            sq = fma(s[j], q[j], sq);
            kq = fma(k[j], q[j], kq);
        }
        vec3 sums = row_sums(vec3(sk.x + sk.y + (sk.z + sk.w), sq.x + sq.y + (sq.z + sq.w),
                                  kq.x + kq.y + (kq.z + kq.w)));
        float update = beta * (v - decay * sums.x), o = fma(decay, sums.y, update * sums.z);
        [[unroll]] for (uint j = 0; j < COLS4; j++)
            s[j] = fma(vec4(update), k[j], decay * s[j]);
        if (part == 0 && mine < V_DIM)
            F32s(a.dst).v[(t * a.n_v + head) * V_DIM + row] = o;
    }

    [[unroll]] for (uint j = 0; j < COLS4; j++)
        if (mine < V_DIM && j * PARTS + part < K_DIM / 4)
            F32x4s(a.state_out).v[at + j * PARTS + part] = s[j];
}
