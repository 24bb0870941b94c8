// delta/prefill_blocks.comp - how the four tokens of a block interact in the delta rule: the products of
// their keys and queries and the decays between them, in the layout of args.h for delta/prefill_walk.comp.
// Decays between tokens are products of decays, never quotients, so a decay of 0 is allowed.
//
// Grid: x = blocks of tokens, y = n_k key heads, BY_CHANNEL: n_v value heads; one subgroup a workgroup.
// float32, tolerance 1e-5.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint K_DIM = 128; // a multiple of 4
layout(constant_id = 2) const uint TILED = 0;   // 1: the value heads of key head k are k, k + n_k, ...

layout(constant_id = 3) const uint BY_CHANNEL = 0; // each key channel has a decay of its own

layout(push_constant, std430) uniform Args { delta_prefill_blocks_args a; };

const uint FOURS = K_DIM / 4;

uint first; // first token of the block

// Products for tokens j and i: k_j k_i with j < i; k_j q_i with j <= i. BY_CHANNEL: weighted by the decays of
// the channels from token j to token i.
float kk[DELTA_BLOCK][DELTA_BLOCK], kq[DELTA_BLOCK][DELTA_BLOCK];

void multiply(uint key_head, uint head)
{
    [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++)
        [[unroll]] for (uint j = 0; j < DELTA_BLOCK; j++)
            kk[i][j] = kq[i][j] = 0.0;
    for (uint c = gl_SubgroupInvocationID; c < FOURS; c += SUBGROUP) {
        vec4 k[DELTA_BLOCK]; // BY_CHANNEL: decayed up to token i
        [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++) {
            uint at = min(first + i, a.n - 1) * a.row / 4;
            vec4 q = F32x4s(a.prepared).v[at + key_head * FOURS + c];
            k[i] = F32x4s(a.prepared).v[at + (a.n_k + key_head) * FOURS + c];
            if (BY_CHANNEL != 0) {
                vec4 d = F32x4s(a.prepared).v[at + (2 * a.n_k + head) * FOURS + a.n_v * a.v_dim / 4 + c];
                [[unroll]] for (uint j = 0; j < i; j++)
                    k[j] *= d;
            }
            [[unroll]] for (uint j = 0; j <= i; j++) {
                kq[i][j] += dot(k[j], q);
                if (j < i)
                    kk[i][j] += dot(k[j], k[i]);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++)
        [[unroll]] for (uint j = 0; j <= i; j++) {
            kq[i][j] = subgroupAdd(kq[i][j]);
            if (j < i)
                kk[i][j] = subgroupAdd(kk[i][j]);
        }
}

void weigh(uint head)
{
    uint to = ((gl_WorkGroupID.x * a.n_v) + head) * (DELTA_COEFS / 4);
    float lower[DELTA_BLOCK][DELTA_BLOCK];
    vec4 between = vec4(0.0); // decays from each token to token i
    vec2 factors[2 * DELTA_BLOCK];
    float since = 1.0; // decay since the block's beginning
    [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++) {
        uint gates = min(first + i, a.n - 1) * a.row + 2 * a.n_k * K_DIM + a.n_v * a.v_dim,
             decay_at = gates + 2 * head,
             beta_at = BY_CHANNEL != 0 ? gates + a.n_v * K_DIM + head : decay_at + 1;
        bool there = first + i < a.n; // tokens past the last change nothing
        float decay = there && BY_CHANNEL == 0 ? F32s(a.prepared).v[decay_at] : 1.0,
              beta = there ? F32s(a.prepared).v[beta_at] : 0.0;
        since *= decay;
        between *= decay;
        between[i] = 1.0;
        vec4 seen = vec4(0.0);
        [[unroll]] for (uint j = 0; j <= i; j++) {
            seen[j] = between[j] * kq[i][j];
            lower[i][j] = beta * between[j] * kk[i][j];
        }
        F32x4s(a.coefs).v[to + i] = seen;
        factors[i] = vec2(beta, -beta * since);
        factors[DELTA_BLOCK + i] = vec2(0.0, since);
    }
    F32x4s(a.coefs).v[to + 4] = vec4(lower[1][0], lower[2][0], lower[2][1], since);
    F32x4s(a.coefs).v[to + 5] = vec4(lower[3][0], lower[3][1], lower[3][2], 0.0);
    F32x4s(a.coefs).v[to + 6] = between;
    [[unroll]] for (uint i = 0; i < DELTA_BLOCK; i++)
        F32x4s(a.coefs).v[to + 7 + i] = vec4(factors[2 * i], factors[2 * i + 1]);
}

void main()
{
    uint key_head = gl_WorkGroupID.y, heads = a.n_v / a.n_k;
    first = gl_WorkGroupID.x * DELTA_BLOCK;
    if (BY_CHANNEL != 0) {
        uint head = gl_WorkGroupID.y;
        multiply(TILED != 0 ? head % a.n_k : head / heads, head);
        if (gl_SubgroupInvocationID == 0)
            weigh(head);
        return;
    }
    multiply(key_head, 0);
    for (uint h = gl_SubgroupInvocationID; h < heads; h += SUBGROUP)
        weigh(TILED != 0 ? h * a.n_k + key_head : key_head * heads + h);
}
