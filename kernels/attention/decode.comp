// attention/decode.comp - causal attention of the chunk's queries over the cache, with an online softmax:
//   partial[t][h][split] = (sum_p e^(s_p - m) v_p, m, l = sum_p e^(s_p - m)),  s_p = scale q . k_p,  p <= pos + t
// over the split's share of the positions; is_whole: sum_p e^(s_p - m) v_p / l. A key/value head is loaded once for
// GROUP of its query heads. LATENT: a position has one row for all heads; the row is the key, and its first value_dim
// channels are the value.
//
// Grid: x = n_heads / (GROUP * TEAMS) * n_splits, y = tokens. The subgroups of a workgroup form TEAMS, each for GROUP
// heads of its own; they walk the same rows at about the same time, so that one load serves all (caches near the
// processors do it). The MEMBERS of a team take blocks of BLOCK positions in turn, each with its own (m, l, sums) per
// query head, merged through shared memory at the end, in subgroup order. A lane holds 4 * KEY_VECS channels of every
// head's query, 4 * VALUE_VECS of its sums, and m and l of the heads that are its own (head g: lane g % SUBGROUP), so
// that exponentials are computed once, not by every lane. A split without positions writes l = 0.
// Code that stands once and loads of 16 bytes keep the kernel short: see gemv_lanes.glsl. float32; the device's exp.
// Tolerance 1e-5 of the largest output after the merge.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint GROUP = 4; // query heads of a team, all of one key/value head
layout(constant_id = 3) const uint KEY_VECS = 2;   // ceil(key_dim / (4 * SUBGROUP))
layout(constant_id = 4) const uint VALUE_VECS = 2; // ceil(value_dim / (4 * SUBGROUP))
layout(constant_id = 5) const uint LATENT = 0;
layout(constant_id = 6) const uint TEAMS = 1;

const uint BLOCK = 4;
const uint MEMBERS = WORKGROUP / SUBGROUP / TEAMS;
const uint OWN = (GROUP + SUBGROUP - 1) / SUBGROUP; // heads of a lane
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN

layout(push_constant, std430) uniform Args { attention_args a; };

shared vec4 merged[MEMBERS > 1 ? TEAMS * MEMBERS * GROUP * VALUE_VECS * SUBGROUP : 1];
shared float part_max[TEAMS * MEMBERS * OWN * SUBGROUP], part_sum[TEAMS * MEMBERS * OWN * SUBGROUP];

vec4 q[GROUP][KEY_VECS], acc[GROUP][VALUE_VECS]; // this lane's channels
float m[OWN], l[OWN];                            // of this lane's heads

uvec2 key_row(uint p, uint kv_head)
{
    if (FLAT != 0)
        return flat_row(a.keys, p, kv_head, a.n_kv_heads, a.key_dim);
    return cache_row(a.keys, a.layer_off, p, 0, kv_head, a.n_kv_heads, a.key_dim);
}

uvec2 value_row(uint p, uint kv_head)
{
    if (FLAT != 0)
        return flat_row(a.values, p, kv_head, a.n_kv_heads, a.value_dim);
    return cache_row(a.keys, a.layer_off, p, 1, kv_head, a.n_kv_heads, a.key_dim);
}

// This lane's channels of the block's rows; rows past the last position repeat it.
void load_keys(uint from, uint last, uint kv_head, out vec4 k[BLOCK][KEY_VECS])
{
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        uvec2 row = key_row(min(from + b, last), kv_head);
        [[unroll]] for (uint i = 0; i < KEY_VECS; i++) {
            uint c4 = i * SUBGROUP + gl_SubgroupInvocationID;
            k[b][i] = 4 * c4 < a.key_dim ? cache_four(row, c4) : vec4(0.0);
        }
    }
}

void load_values(uint from, uint last, uint kv_head, vec4 k[BLOCK][KEY_VECS], out vec4 v[BLOCK][VALUE_VECS])
{
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        uvec2 row = value_row(min(from + b, last), kv_head);
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++) {
            uint c4 = i * SUBGROUP + gl_SubgroupInvocationID;
            if (LATENT != 0)
                v[b][i] = k[b][i]; // what is behind value_dim is never stored
            else
                v[b][i] = 4 * c4 < a.value_dim ? cache_four(row, c4) : vec4(0.0);
        }
    }
}

void load_queries(uint token, uint head)
{
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        uint row = (token * a.q_stride + (head + g) * a.key_dim) / 4;
        [[unroll]] for (uint i = 0; i < KEY_VECS; i++) {
            uint c4 = i * SUBGROUP + gl_SubgroupInvocationID;
            q[g][i] = 4 * c4 < a.key_dim ? four_at(a.q, row + c4) * a.scale : vec4(0.0);
        }
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            acc[g][i] = vec4(0.0);
    }
    [[unroll]] for (uint h = 0; h < OWN; h++) {
        m[h] = LOWEST;
        l[h] = 0.0;
    }
}

float dot_on(vec4 a, vec4 b, float sum)
{
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Scores of the block for this lane's heads; positions from `to` on get LOWEST.
void score_block(uint from, uint to, vec4 k[BLOCK][KEY_VECS], inout float own[OWN][BLOCK])
{
    [[unroll]] for (uint g = 0; g < GROUP; g++)
        [[unroll]] for (uint b = 0; b < BLOCK; b++) {
            float s = 0.0;
            [[unroll]] for (uint i = 0; i < KEY_VECS; i++)
                s = dot_on(q[g][i], k[b][i], s);
            s = subgroupAdd(s);
            if (g % SUBGROUP == gl_SubgroupInvocationID)
                own[g / SUBGROUP][b] = from + b < to ? s : LOWEST;
        }
}

// Folds the block into m, l and acc.
void fold_block(float own[OWN][BLOCK], vec4 v[BLOCK][VALUE_VECS])
{
    float old[OWN], weight[OWN][BLOCK];
    [[unroll]] for (uint h = 0; h < OWN; h++) {
        float top = m[h];
        [[unroll]] for (uint b = 0; b < BLOCK; b++)
            top = max(top, own[h][b]);
        old[h] = exp(m[h] - top);
        m[h] = top;
        l[h] *= old[h];
        [[unroll]] for (uint b = 0; b < BLOCK; b++) {
            weight[h][b] = exp(own[h][b] - top);
            l[h] += weight[h][b];
        }
    }
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        float keep = subgroupBroadcast(old[g / SUBGROUP], g % SUBGROUP);
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            acc[g][i] *= keep;
        [[unroll]] for (uint b = 0; b < BLOCK; b++) {
            float w = subgroupBroadcast(weight[g / SUBGROUP][b], g % SUBGROUP);
            [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
                acc[g][i] = fma(vec4(w), v[b][i], acc[g][i]);
        }
    }
}

// This lane's share of the results joined over the team: its heads' largest score and sum, and the factor of its own
// sums.
void join_heads(uint out_row, uint head_stride, out float factor[OWN])
{
    uint lane = gl_SubgroupInvocationID, team = gl_SubgroupID / MEMBERS * MEMBERS;
    [[unroll]] for (uint h = 0; h < OWN; h++) {
        part_max[(gl_SubgroupID * OWN + h) * SUBGROUP + lane] = m[h];
        part_sum[(gl_SubgroupID * OWN + h) * SUBGROUP + lane] = l[h];
    }
    if (MEMBERS > 1)
        barrier();
    [[unroll]] for (uint h = 0; h < OWN; h++) {
        float top = LOWEST, sum = 0.0;
        for (uint i = team; i < team + MEMBERS; i++)
            top = max(top, part_max[(i * OWN + h) * SUBGROUP + lane]);
        for (uint i = team; i < team + MEMBERS; i++)
            sum += part_sum[(i * OWN + h) * SUBGROUP + lane] *
                   exp(part_max[(i * OWN + h) * SUBGROUP + lane] - top);
        factor[h] = a.is_whole != 0 ? exp(m[h] - top) / sum : exp(m[h] - top);
        uint g = h * SUBGROUP + lane;
        if (a.is_whole == 0 && gl_SubgroupID == team && g < GROUP) {
            F32s(a.partial).v[out_row + g * head_stride + a.value_dim] = top;
            F32s(a.partial).v[out_row + g * head_stride + a.value_dim + 1] = sum;
        }
    }
}

void store_partial(uint row, uint c4, vec4 v)
{
    if (4 * c4 < a.value_dim)
        [[unroll]] for (uint j = 0; j < 4; j++)
            F32s(a.partial).v[row + 4 * c4 + j] = v[j];
}

// Joins the team's results and writes them. `out_row`: of its first head; heads lie `head_stride` apart.
void merge(uint out_row, uint head_stride)
{
    const uint head_size = VALUE_VECS * SUBGROUP;
    uint team = gl_SubgroupID / MEMBERS, member = gl_SubgroupID % MEMBERS;
    float factor[OWN];
    join_heads(out_row, head_stride, factor);
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        float f = subgroupBroadcast(factor[g / SUBGROUP], g % SUBGROUP);
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++) {
            uint c4 = i * SUBGROUP + gl_SubgroupInvocationID;
            if (MEMBERS > 1)
                merged[(gl_SubgroupID * GROUP + g) * head_size + c4] = acc[g][i] * f;
            else
                store_partial(out_row + g * head_stride, c4, acc[g][i] * f);
        }
    }
    if (MEMBERS == 1)
        return;
    barrier();
    uint lane = member * SUBGROUP + gl_SubgroupInvocationID;
    for (uint at = lane; at < GROUP * head_size; at += MEMBERS * SUBGROUP) {
        vec4 sum = vec4(0.0);
        for (uint i = 0; i < MEMBERS; i++)
            sum += merged[(team * MEMBERS + i) * GROUP * head_size + at];
        store_partial(out_row + at / head_size * head_stride, at % head_size, sum);
    }
}

void main()
{
    uint team = gl_SubgroupID / MEMBERS, member = gl_SubgroupID % MEMBERS;
    uint split = gl_WorkGroupID.x % a.n_splits, head = (gl_WorkGroupID.x / a.n_splits * TEAMS + team) * GROUP;
    uint kv_head = head / (a.n_heads / a.n_kv_heads);
    uint token = gl_WorkGroupID.y;
    uint n_pos = a.pos + token + 1;
    uint share = (n_pos + a.n_splits - 1) / a.n_splits;
    uint from = min(split * share, n_pos), to = min(from + share, n_pos);

    load_queries(token, head);
    for (uint p = from + member * BLOCK; p < to; p += MEMBERS * BLOCK) {
        vec4 k[BLOCK][KEY_VECS], v[BLOCK][VALUE_VECS];
        float own[OWN][BLOCK];
        load_keys(p, to - 1, kv_head, k);
        load_values(p, to - 1, kv_head, k, v);
        [[unroll]] for (uint h = 0; h < OWN; h++)
            [[unroll]] for (uint b = 0; b < BLOCK; b++)
                own[h][b] = LOWEST;
        score_block(p, to, k, own);
        fold_block(own, v);
    }
    uint part = a.value_dim + 2;
    if (a.is_whole != 0)
        merge(token * a.dst_stride + head * a.value_dim, a.value_dim);
    else
        merge(((token * a.n_heads + head) * a.n_splits + split) * part, a.n_splits * part);
}
