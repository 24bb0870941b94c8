// compressed/attend.comp - attention over the rows of a window and over compressed rows, which are key and
// value of all heads (ops/compressed/compressed.h); the outputs' last ROTARY channels are turned back.
// Grid: x = blocks of HEADS query heads, y = tokens. The subgroups of a workgroup take BLOCK rows
// alternately, with an online softmax each, and are added up in a fixed tree. A subgroup's lanes share a row,
// four channels at a time. float32; the device's exp2. Tolerance 1e-5 of the largest output.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint DIM = 512;
layout(constant_id = 3) const uint ROTARY = 64;
layout(constant_id = 4) const uint RATIO = 0; // positions of a compressed row; 0: there are none
layout(constant_id = 5) const uint WINDOW = 128;
layout(constant_id = 6) const uint BUDGET = 0; // most compressed rows of a token; 0: all
layout(constant_id = 9) const uint HEADS = 2;
// 1: lanes have no registers for queries and rows: queries stay in shared memory, and a row is loaded for its
// score and again for the sums
layout(constant_id = 10) const uint STREAMS = 0;

layout(push_constant, std430) uniform Args { compressed_attend_args a; };
#include "compressed/far.glsl"

const uint SUBGROUPS = WORKGROUP / SUBGROUP, BLOCK = 4;
// groups of four channels: all, a lane's
const uint FOURS = DIM / 4, UNITS = (FOURS + SUBGROUP - 1) / SUBGROUP;
// STREAMS: units of a row that a lane takes at once for a score; they are a divisor of all
const uint PART = UNITS % 8 == 0 ? 8 : UNITS;
const bool ALL_LANES = STREAMS != 0 && FOURS % SUBGROUP == 0; // every lane has UNITS of them
const float LOWEST = -3.0e38, LOG2_E = 1.44269504;

// The queries, STREAMS only; afterwards the sums of half of the subgroups.
shared vec4 stage[(SUBGROUPS + 1) / 2 * HEADS * UNITS * SUBGROUP];
shared vec2 stats[SUBGROUPS * HEADS];

vec4 q[HEADS][UNITS], acc[HEADS][UNITS], rows[BLOCK][UNITS];
float m[HEADS], l[HEADS];
uint token, first, n_near, n_seen;
bool has_list;

uint head_of(uint h)
{
    return min(first + h, a.n_heads - 1);
}

// Returns channels 4 * i ... of query h; 0 past the last.
vec4 query_four(uint h, uint i)
{
    vec4 four = i < FOURS ? four_at(a.q, token * (a.q_stride / 4) + head_of(h) * FOURS + i) : vec4(0.0);
    return four * (a.scale * LOG2_E);
}

void stage_queries()
{
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < HEADS * UNITS * SUBGROUP; i += WORKGROUP)
        stage[i] = query_four(i / (UNITS * SUBGROUP), i % (UNITS * SUBGROUP));
    barrier();
}

uvec2 row_of(uint r)
{
    uint pos = a.pos + token;
    if (r < n_near)
        return key_cache_row(a.ring, a.ring_off, pos + 1 - n_near + r, 0, 1, DIM);
    r -= n_near;
    return far_row(a.blocks, a.layer_off, has_list ? U32s(a.chosen).v[token * (BUDGET + 1) + r] : r);
}

// Returns a lane's u-th group of four channels of a row.
vec4 row_four(uvec2 row, uint u)
{
    uint i = u * SUBGROUP + gl_SubgroupInvocationID;
    return ALL_LANES || i < FOURS ? cache_four(row, DIM, i) : vec4(0.0);
}

// Loads the rows from r on; rows past the last repeat it.
void load_rows(uint r)
{
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        uvec2 row = row_of(min(r + b, n_seen - 1));
        [[unroll]] for (uint u = 0; u < UNITS; u++)
            rows[b][u] = row_four(row, u);
    }
}

// Returns the product of a lane's part of a row with query h.
float product(uint h, uint b, uvec2 row)
{
    float sum = 0.0;
    [[unroll]] for (uint u = 0; u < UNITS && STREAMS == 0; u++)
        sum += dot(q[h][u], rows[b][u]);
    [[dont_unroll]] for (uint from = 0; from < UNITS && STREAMS != 0; from += PART)
        [[unroll]] for (uint u = 0; u < PART; u++) {
            uint i = (h * UNITS + from + u) * SUBGROUP + gl_SubgroupInvocationID;
            sum += dot(stage[i], row_four(row, from + u));
        }
    return sum;
}

// STREAMS: adds a row with its weight to acc. Without a barrier the compiler would keep the row in registers
// from the first time that it is loaded.
void add_streamed(uint h, uvec2 row, float w)
{
    subgroupMemoryBarrier();
    [[unroll]] for (uint u = 0; u < UNITS; u++)
        acc[h][u] = fma(vec4(w), row_four(row, u), acc[h][u]);
}

void fold(uint h, uint r)
{
    float s[BLOCK], top = m[h];
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        s[b] = subgroupAdd(product(h, b, STREAMS != 0 ? row_of(min(r + b, n_seen - 1)) : uvec2(0)));
        s[b] = r + b < n_seen ? s[b] : LOWEST;
        top = max(top, s[b]);
    }
    float keep = exp2(m[h] - top);
    m[h] = top;
    l[h] *= keep;
    [[unroll]] for (uint u = 0; u < UNITS; u++)
        acc[h][u] *= keep;
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        float w = exp2(s[b] - top);
        l[h] += w;
        s[b] = w;
        [[unroll]] for (uint u = 0; u < UNITS && STREAMS == 0; u++)
            acc[h][u] = fma(vec4(w), rows[b][u], acc[h][u]);
    }
    [[dont_unroll]] for (uint b = 0; b < BLOCK && STREAMS != 0; b++)
        add_streamed(h, row_of(min(r + b, n_seen - 1)), s[b]);
}

// Scales acc to the largest score of all subgroups and the sink, and divides it by the sum of the weights.
void join_stats()
{
    if (gl_SubgroupInvocationID == 0)
        [[unroll]] for (uint h = 0; h < HEADS; h++)
            stats[gl_SubgroupID * HEADS + h] = vec2(m[h], l[h]);
    barrier();
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        float sink = F32s(a.sinks).v[head_of(h)] * LOG2_E, top = sink, sum;
        for (uint i = 0; i < SUBGROUPS; i++)
            top = max(top, stats[i * HEADS + h].x);
        sum = exp2(sink - top);
        for (uint i = 0; i < SUBGROUPS; i++)
            sum = fma(stats[i * HEADS + h].y, exp2(stats[i * HEADS + h].x - top), sum);
        float factor = exp2(m[h] - top) / sum;
        [[unroll]] for (uint u = 0; u < UNITS; u++)
            acc[h][u] *= factor;
    }
}

// Adds up acc over the subgroups: again and again the upper half to the lower one.
void join_subgroups()
{
    for (uint n = SUBGROUPS; n > 1; n = (n + 1) / 2) {
        uint half_n = (n + 1) / 2, id = gl_SubgroupID;
        uint at = (id >= half_n ? id - half_n : id) * HEADS * UNITS * SUBGROUP + gl_SubgroupInvocationID;
        if (id >= half_n && id < n)
            [[unroll]] for (uint h = 0; h < HEADS; h++)
                [[unroll]] for (uint u = 0; u < UNITS; u++)
                    stage[at + (h * UNITS + u) * SUBGROUP] = acc[h][u];
        barrier();
        if (id + half_n < n)
            [[unroll]] for (uint h = 0; h < HEADS; h++)
                [[unroll]] for (uint u = 0; u < UNITS; u++)
                    acc[h][u] += stage[at + (h * UNITS + u) * SUBGROUP];
        barrier();
    }
}

// Returns channels c and c + 1, turned back.
vec2 turned_back(vec2 v, uint c)
{
    if (c < DIM - ROTARY)
        return v;
    uint at = token * ROTARY + c - (DIM - ROTARY);
    float co = F32s(a.rope).v[at], si = F32s(a.rope).v[at + 1], across = v.y * si, along = v.x * si;
    return vec2(fma(v.x, co, across), fma(v.y, co, -along));
}

void store_results()
{
    [[unroll]] for (uint h = 0; h < HEADS; h++)
        [[unroll]] for (uint u = 0; u < UNITS; u++) {
            uint i = u * SUBGROUP + gl_SubgroupInvocationID;
            if (i < FOURS && first + h < a.n_heads)
                F32x4s(a.dst).v[(token * a.n_heads + first + h) * FOURS + i] =
                    vec4(turned_back(acc[h][u].xy, 4 * i), turned_back(acc[h][u].zw, 4 * i + 2));
        }
}

void main()
{
    first = gl_WorkGroupID.x * HEADS;
    token = gl_WorkGroupID.y;
    uint pos = a.pos + token, n_far = RATIO > 0 ? (pos + 1) / max(RATIO, 1) : 0;
    has_list = BUDGET > 0 && n_far > BUDGET;
    n_near = min(pos + 1, WINDOW);
    n_seen = n_near + (has_list ? BUDGET : n_far);
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        m[h] = LOWEST;
        l[h] = 0.0;
        [[unroll]] for (uint u = 0; u < UNITS; u++) {
            uint i = u * SUBGROUP + gl_SubgroupInvocationID;
            acc[h][u] = vec4(0.0);
            if (STREAMS == 0)
                q[h][u] = query_four(h, i);
        }
    }
    if (STREAMS != 0)
        stage_queries();
    for (uint r = gl_SubgroupID * BLOCK; r < n_seen; r += SUBGROUPS * BLOCK) {
        if (STREAMS == 0)
            load_rows(r);
        [[unroll]] for (uint h = 0; h < HEADS; h++)
            fold(h, r);
    }
    join_stats();
    join_subgroups();
    if (gl_SubgroupID == 0)
        store_results();
}
