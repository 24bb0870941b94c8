// attention/decode.comp - causal attention of few queries over the cache, with an online softmax:
//   partial[t][h][split] = sum_p 2^(s_p - m) v_p,  stats = (m, l = sum_p 2^(s_p - m)),
//   s_p = log2(e) scale q . k_p,  p <= pos + t, over the split's positions
// A single whole split writes sum_p 2^(s_p - m) v_p / l.
//   WINDOW   only positions p > pos + t - WINDOW are read
//   RATIO    only the positions of the blocks in the token's list are read (ops/attention/choice.h). p counts
//            them in the order of the list. With LISTS each key head has a list
//   SINKS    a head's sink is one more score of the first split, with a value of zero
//   LATENT   a position has one row for all heads: the key; its first VALUE_DIM channels are the value
//   STREAMS  lanes have no registers for queries, keys and values: queries are in shared memory, and a row is
//            loaded where it is used
//   PREPARE  (one token) queries, key and value come as they are projected. Every workgroup norms and turns
//            its queries like gqa/prepare.comp. The one with the last position does so with the new key, too,
//            and writes the position's row of the cache. Other workgroups see that row only in the next
//            dispatch; one member of each of its teams begins with key and value in shared memory
//   STORES,  (PREPARE) tokens of one sequence at once: a dispatch stores the rows of all, then another one
//   STORED   reads them
//   merged   (PREPARE, not whole) the workgroup that finishes last of its heads' does what merge.comp does,
//            so no other dispatch follows. The order of the sum over the splits is fixed
//
// Grid: x = blocks of TEAMS * HEADS query heads of one key/value head, times n_splits; y = tokens. RECORDS:
// z = sequences, x is that of the sequence with the most splits. The subgroups of a workgroup form TEAMS of
// MEMBERS; each team has HEADS heads of its own. Teams walk the same rows at about the same time, so that
// the nearest caches load them once. Members take STEP positions alternately. LANES lanes share a position's
// row, 16 bytes of it at a time; a subgroup has ROWS = SUBGROUP / LANES rows at once.
// A lane multiplies its channels of BLOCK keys with those of HEADS queries. A reduction that halves the
// number of sums with the number of lanes leaves it with OWN scores, so that each exponential is computed
// once. m grows only when a score exceeds it by more than SLACK; then the sums are scaled down. Members are
// added up in a fixed tree. A split without positions writes l = 0.
// float32; the device's exp2. Tolerance 1e-5 of the largest output after the merge.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/kv_store.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint KEY_DIM = 256;
layout(constant_id = 3) const uint VALUE_DIM = 256;
layout(constant_id = 4) const uint HEADS = 4; // query heads of a team: 1, 2 or 4
layout(constant_id = 5) const uint LATENT = 0;
layout(constant_id = 6) const uint TEAMS = 1;
layout(constant_id = 9) const uint LANES = 32; // a power of two
// groups of four channels in a unit: 2 if they are 16 bytes and rows are whole units, else 1
layout(constant_id = 10) const uint FOURS = 1;
layout(constant_id = 11) const uint PREPARE = 0;
// most splits that the last workgroup merges; 1: it never does
layout(constant_id = 12) const uint MERGED = 1;
layout(constant_id = 13) const uint NORM = NORM_HEADS; // PREPARE only, like BIASED: see gqa/prepare.comp
layout(constant_id = 14) const uint BIASED = 0;
layout(constant_id = 15) const uint WINDOW = 0; // 0: no window
layout(constant_id = 16) const uint SINKS = 0;
layout(constant_id = 17) const uint RATIO = 0; // positions of a block in the list; 0: there is no list
layout(constant_id = 18) const uint BUDGET = 0; // finished blocks in the list
layout(constant_id = 19) const uint LISTS = 0;  // key heads with lists of their own; 0: one list for all
layout(constant_id = 20) const float VALUE_SCALE = 1.0; // PREPARE: factor of the new value
layout(constant_id = 21) const uint BLOCK = 4; // rows that a lane takes at once: 1, 2 or 4
// PREPARE: pairs of channels that a lane takes at once; 0: all
layout(constant_id = 22) const uint AT_ONCE = 0;
layout(constant_id = 23) const uint STREAMS = 0;

ARGS(attention_decode_args)

// Memory that other workgroups of this dispatch write.
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Parts { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer PartStats { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters { uint v[]; };

const uint SUBGROUPS = WORKGROUP / SUBGROUP, MEMBERS = SUBGROUPS / TEAMS;
const uint ROWS = SUBGROUP / LANES, STEP = BLOCK * ROWS;
const uint KEY_ROW = KEY_DIM / (4 * FOURS), VALUE_ROW = VALUE_DIM / (4 * FOURS);        // units of a row
// units of a lane
const uint KEY_UNITS = (KEY_ROW + LANES - 1) / LANES, VALUE_UNITS = (VALUE_ROW + LANES - 1) / LANES;
// STREAMS: units of a key that a lane takes at once; they are a divisor of all
const uint PART = KEY_UNITS % 8 == 0 ? 8 : KEY_UNITS % 6 == 0 ? 6 : KEY_UNITS;
const uint KEY_VECS = KEY_UNITS * FOURS, VALUE_VECS = VALUE_UNITS * FOURS;
// A lane's scores after the reduction: OWN of them, the same on COPIES neighbouring lanes, for MINE heads.
// HEAD_LANES neighbouring lanes have all heads.
const uint SCORES = BLOCK * HEADS;
const uint OWN = SCORES > LANES ? SCORES / LANES : 1, COPIES = LANES > SCORES ? LANES / SCORES : 1;
const uint MINE = OWN < HEADS ? OWN : HEADS, HEAD_LANES = COPIES * HEADS / MINE;

const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN
const float LOG2_E = 1.44269504;
const float SLACK = 8.0;

// The sums of half of the members, in groups of four channels. Before that, what PREPARE makes: the block's
// queries, key, value. STREAMS: the queries.
const uint NEW_KEY = TEAMS * HEADS * KEY_DIM / 4, NEW_VALUE = NEW_KEY + KEY_DIM / 4;
const uint PREPARED = PREPARE != 0 ? NEW_VALUE + VALUE_DIM / 4 : STREAMS != 0 ? NEW_KEY : 1;
const uint TREE = MEMBERS > 1 ? TEAMS * (MEMBERS / 2) * HEADS * VALUE_VECS * LANES : 1;
shared vec4 stage[TREE > PREPARED ? TREE : PREPARED];
shared vec2 stats[SUBGROUPS * HEADS];
shared float split_weights[PREPARE != 0 ? TEAMS * HEADS * MERGED : 1];
shared uint is_last;

vec4 q[HEADS][KEY_VECS], acc[HEADS][VALUE_VECS]; // this lane's channels
float m[MINE], l[MINE];                          // those of this lane's heads; l only over its own positions
float s[SCORES];                                 // scores of BLOCK rows; after the reduction OWN of them
uvec4 keys[BLOCK][KEY_UNITS], values[BLOCK][VALUE_UNITS];

// A subgroup's work; set by find_work.
uint lane, team, member, split, token, kv_head, group;
uint first;    // first of the team's heads, in the group
uint from, to; // positions in the cache
uint begin;    // first position that the token sees
bool has_new;  // PREPARE: the split ends with the last position, which is not in the cache yet

void find_work()
{
    lane = gl_SubgroupInvocationID % LANES;
    team = gl_SubgroupID % TEAMS;
    member = gl_SubgroupID / TEAMS;
    group = a.n_heads / a.n_kv_heads;
    uint blocks = (group + TEAMS * HEADS - 1) / (TEAMS * HEADS), block = gl_WorkGroupID.x / a.n_splits;
    split = gl_WorkGroupID.x % a.n_splits;
    kv_head = block / blocks;
    first = (block % blocks * TEAMS + team) * HEADS;
    token = gl_WorkGroupID.y;
    uint n_pos = a.pos + token + 1;
    if (RATIO != 0)
        n_pos = BUDGET * RATIO + (LISTS > 0 ? (n_pos - 1) % RATIO + 1 : n_pos % RATIO);
    begin = WINDOW > 0 && n_pos > WINDOW ? n_pos - WINDOW : 0;
    uint base = begin / STEP * STEP, n = n_pos - base;
    uint share = ((n + a.n_splits - 1) / a.n_splits + STEP - 1) / STEP * STEP;
    from = min(base + split * share, n_pos);
    to = min(from + share, n_pos);
    has_new = PREPARE != 0 && from < to && to == n_pos;
    to -= has_new ? 1 : 0;
}

// Heads past the group's last repeat it; their results are dropped.
uint head_of(uint in_group)
{
    return kv_head * group + min(in_group, group - 1);
}

uvec2 key_row(uint p)
{
    if (FLAT != 0)
        return flat_row(a.keys, p, kv_head, a.n_kv_heads, KEY_DIM);
    return key_cache_row(a.keys, a.layer_off, p, kv_head, a.n_kv_heads, KEY_DIM);
}

uvec2 value_row(uint p)
{
    if (FLAT != 0)
        return flat_row(a.values, p, kv_head, a.n_kv_heads, VALUE_DIM);
    return value_cache_row(a.keys, a.layer_off, p, kv_head, a.n_kv_heads, KEY_DIM, VALUE_DIM);
}

// Returns unit u of a row of dim numbers as it is stored.
uvec4 unit_at(uvec2 row, uint dim, uint u)
{
    if (KV_TYPE == KV_F32)
        return floatBitsToUint(four_at(row, u));
    if (FOURS == 2)
        return stored_eight(row, dim, u);
    if (KV_TYPE == KV_Q8_0)
        return uvec4(U32s(row).v[u], 0, floatBitsToUint(q8_scale(row, dim, 4 * u)), 0);
    return uvec4(two_at(row, u), 0, 0);
}

vec4 four_of(uvec4 unit, uint i)
{
    return KV_TYPE == KV_F32 ? uintBitsToFloat(unit) : stored_four(unit, i);
}

// Returns the position in the cache of the p-th one that the token sees; RATIO only.
uint listed(uint p)
{
    uint list = LISTS > 0 ? token * LISTS + kv_head : token;
    return U32s(a.q_norm).v[list * a.rotary_dim + p / max(RATIO, 1)] * RATIO + p % max(RATIO, 1);
}

// Return a lane's j-th unit of a row.
uvec4 key_unit(uvec2 row, uint j)
{
    uint u = j * LANES + lane;
    return KEY_ROW % LANES == 0 || u < KEY_ROW ? unit_at(row, KEY_DIM, u) : uvec4(0);
}

uvec4 value_unit(uvec2 row, uint j)
{
    uint u = j * LANES + lane;
    return VALUE_ROW % LANES == 0 || u < VALUE_ROW ? unit_at(row, VALUE_DIM, u) : uvec4(0);
}

// STREAMS: return this lane's b-th row of the STEP rows from p on; the last one instead of rows past it.
uint streamed(uint p, uint b)
{
    return min(p + b * ROWS + gl_SubgroupInvocationID / LANES, to - 1);
}

uvec2 streamed_key(uint p, uint b)
{
    return key_row(RATIO != 0 ? listed(streamed(p, b)) : streamed(p, b));
}

uvec2 streamed_value(uint p, uint b)
{
    return value_row(RATIO != 0 ? listed(streamed(p, b)) : streamed(p, b));
}

// Start loading this lane's part of the STEP rows from p on. p is a multiple of STEP, so the rows lie in one
// block of the cache, except with RATIO. Rows past the last repeat it.
void fetch_keys(uint p)
{
    uint last = to - 1, base = min(p, last) / STEP * STEP, mine = gl_SubgroupInvocationID / LANES;
    uvec2 rows = RATIO != 0 ? uvec2(0) : key_row(base);
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        uint i = min(base + b * ROWS + mine, last) - base;
        uvec2 row = addr_add(rows, i * row_bytes(KEY_DIM) * a.n_kv_heads);
        if (RATIO != 0)
            row = key_row(listed(base + i));
        [[unroll]] for (uint j = 0; j < KEY_UNITS; j++)
            keys[b][j] = key_unit(row, j);
    }
}

void fetch_values(uint p)
{
    uint last = to - 1, base = min(p, last) / STEP * STEP, mine = gl_SubgroupInvocationID / LANES;
    uvec2 rows = RATIO != 0 ? uvec2(0) : value_row(base);
    [[unroll]] for (uint b = 0; b < BLOCK; b++) {
        uint i = min(base + b * ROWS + mine, last) - base;
        uvec2 row = addr_add(rows, i * row_bytes(VALUE_DIM) * a.n_kv_heads);
        if (RATIO != 0)
            row = value_row(listed(base + i));
        [[unroll]] for (uint j = 0; j < VALUE_UNITS; j++)
            values[b][j] = value_unit(row, j);
    }
}

// --- PREPARE ---

const uint PAIRS = (KEY_DIM / 2 + SUBGROUP - 1) / SUBGROUP; // pairs of neighbouring channels of a lane
// Lanes of small subgroups have no registers for all of their channels and load them again for the norm.
const bool RELOADS = SUBGROUP < 32;

// A channel, and the other channel that RoPE turns it with.
struct Channel {
    float v, norm, other, other_norm, co, si;
};

float projected(uint i)
{
    return BIASED != 0 ? F32s(a.q).v[i] + F32s(a.values).v[i] : F32s(a.q).v[i];
}

float norm_at(uvec2 norm, uint c)
{
    return NORM != NORM_NONE ? F32s(norm).v[c] : 1.0;
}

// norms: index of the head's first channel in the norm. turns: RoPE turns the head.
Channel load_channel(uint src, uvec2 norm, uint norms, uint c, bool turns)
{
    uint pairs = a.rotary_dim / 2, pair = c < pairs ? c : c - pairs;
    Channel ch = Channel(projected(src + c), norm_at(norm, norms + c), 0.0, 0.0, 1.0, 0.0);
    if (turns && c < a.rotary_dim) {
        uint other = c < pairs ? c + pairs : pair;
        ch.other = projected(src + other);
        ch.other_norm = norm_at(norm, norms + other);
        ch.co = F32s(a.rope).v[2 * pair];
        ch.si = c < pairs ? -F32s(a.rope).v[2 * pair + 1] : F32s(a.rope).v[2 * pair + 1];
    }
    return ch;
}

// Stores channels 2 * i and 2 * i + 1 of a row of the cache, except of q8_0. Returns them as they are stored.
vec2 store_two(uvec2 row, uint i, vec2 v, bool is_mine)
{
    if (KV_TYPE == KV_Q8_0)
        return v;
    if (KV_TYPE == KV_F16) {
        uint two = halves2(v);
        if (is_mine)
            U32s(row).v[i] = two;
        return halves_read(two, a.n_heads >> 31);
    }
    if (is_mine) {
        F32s(row).v[2 * i] = v.x;
        F32s(row).v[2 * i + 1] = v.y;
    }
    return v;
}

vec4 staged_four(uint at)
{
    return stage[at];
}

// Stores the q8_0 row of dim numbers at `at` in shared memory, and replaces them by those that are stored.
void store_row(uvec2 row, uint at, uint dim, bool is_mine)
{
    const uint EACH = (KEY_DIM / 4 + SUBGROUP - 1) / SUBGROUP; // groups of four channels of a lane
    vec4 stored[EACH];
    subgroupBarrier();
    [[unroll]] for (uint j = 0; j < EACH; j++) {
        uint i = min(j * SUBGROUP + gl_SubgroupInvocationID, dim / 4 - 1);
        float scale = halves_read(stored_scale(staged_most(at, dim, 4 * i)), a.n_heads >> 31).x;
        stored[j] = q8_codes(staged_codes(at, dim, i)) * scale;
    }
    if (is_mine)
        store_staged(row, at, dim, gl_SubgroupInvocationID, SUBGROUP);
    subgroupBarrier();
    [[unroll]] for (uint j = 0; j < EACH; j++)
        if (j * SUBGROUP + gl_SubgroupInvocationID < dim / 4)
            stage[at + j * SUBGROUP + gl_SubgroupInvocationID] = stored[j];
}

// Returns a channel after norm and RoPE. factor: 1 / rms of the head.
float turned(Channel c, float factor)
{
    return c.v * (factor * c.norm) * c.co + c.other * (factor * c.other_norm) * c.si;
}

// Returns whether the workgroup stores the new position's row.
bool stores_row()
{
    return first == team * HEADS && (a.is & ATTENTION_STORED) == 0;
}

// Stores a pair of channels of row i in shared memory, and in the cache unless the row is a query.
void store_pair(uint i, uint pair, vec2 v, uvec2 row)
{
    if (i < TEAMS * HEADS)
        v *= a.scale * LOG2_E;
    else
        v = store_two(row, pair, v, stores_row());
    uint at = i * KEY_DIM / 4 + pair / 2;
    if (pair % 2 == 0)
        stage[at].xy = v;
    else
        stage[at].zw = v;
}

// AT_ONCE: returns this lane's share of a row's squares, in the order of all at once.
float squares_by_parts(uint src, uint dim)
{
    float squares = 0.0;
    [[dont_unroll]] for (uint from = 0; from < PAIRS; from += AT_ONCE)
        [[unroll]] for (uint j = 0; j < AT_ONCE; j++)
            [[unroll]] for (uint k = 0; k < 2; k++) {
                uint c = 2 * ((from + j) * SUBGROUP + gl_SubgroupInvocationID) + k;
                float v = projected(src + min(c, dim - 1));
                squares += c < dim ? v * v : 0.0;
            }
    return squares;
}

// Prepares row i of the workgroup's block: its queries, then the new key and the new value. One subgroup
// makes a row.
void prepare_row(uint i, vec2 factors)
{
    bool is_query = i < TEAMS * HEADS, is_value = i == TEAMS * HEADS + 1;
    uint step = 1 + (a.is & ATTENTION_GATED) / ATTENTION_GATED, head = head_of(first - team * HEADS + i);
    uint dim = is_value ? VALUE_DIM : KEY_DIM; // VALUE_DIM is at most KEY_DIM
    uint src = (is_query ? step * head : step * a.n_heads + (is_value ? a.n_kv_heads : 0)) * KEY_DIM +
        (is_query ? 0 : kv_head * dim);
    uvec2 norm = is_query ? a.q_norm : a.k_norm, row = is_value ? value_row(a.pos) : key_row(a.pos);
    uint norms = NORM != NORM_ALL || is_value ? 0 : (is_query ? head : kv_head) * KEY_DIM;
    Channel ch[PAIRS][2];
    float squares = 0.0;
    if (AT_ONCE > 0)
        squares = squares_by_parts(src, dim);
    else
        [[unroll]] for (uint j = 0; j < PAIRS; j++)
            [[unroll]] for (uint k = 0; k < 2; k++) {
                uint c = 2 * (j * SUBGROUP + gl_SubgroupInvocationID) + k;
                ch[j][k] = load_channel(src, norm, norms, min(c, dim - 1), !is_value);
                squares += c < dim ? ch[j][k].v * ch[j][k].v : 0.0;
            }
    float factor = is_query ? factors.x : factors.y, value_factor = VALUE_SCALE;
    if (is_value && (a.is & ATTENTION_VALUES) != 0)
        value_factor *= inversesqrt(subgroupAdd(squares) / float(VALUE_DIM) + a.eps);
    if (NORM == NORM_HEADS)
        factor = inversesqrt(subgroupAdd(squares) / float(KEY_DIM) + a.eps);
    if (RELOADS)
        subgroupMemoryBarrier();
    [[unroll]] for (uint j = 0; j < PAIRS && AT_ONCE == 0; j++) {
        uint pair = j * SUBGROUP + gl_SubgroupInvocationID;
        vec2 v;
        [[unroll]] for (uint k = 0; k < 2; k++) {
            Channel c = ch[j][k];
            if (RELOADS)
                c = load_channel(src, norm, norms, min(2 * pair + k, dim - 1), !is_value);
            v[k] = turned(c, factor);
            v[k] = is_value ? c.v * value_factor : v[k];
        }
        if (2 * pair < dim)
            store_pair(i, pair, v, row);
    }
    [[dont_unroll]] for (uint from = 0; from < PAIRS && AT_ONCE > 0; from += AT_ONCE)
        [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
            uint pair = (from + j) * SUBGROUP + gl_SubgroupInvocationID;
            vec2 v;
            [[unroll]] for (uint k = 0; k < 2; k++) {
                Channel c = load_channel(src, norm, norms, min(2 * pair + k, dim - 1), !is_value);
                v[k] = turned(c, factor);
                v[k] = is_value ? c.v * value_factor : v[k];
            }
            if (2 * pair < dim)
                store_pair(i, pair, v, row);
        }
    if (KV_TYPE == KV_Q8_0 && !is_query)
        store_row(row, i * KEY_DIM / 4, dim, stores_row());
}

// Returns this invocation's share of the squares of the n4 vec4s from `at` on.
float squares_of(uint at, uint n4)
{
    float squares = 0.0;
    for (uint i = at + gl_LocalInvocationID.x; i < at + n4; i += WORKGROUP) {
        vec4 v = four_at(a.q, i);
        if (BIASED != 0)
            v += four_at(a.values, i);
        squares += dot(v, v);
    }
    return squares;
}

// Returns 1 / rms of all queries and of all keys.
vec2 all_factors()
{
    uint n_q4 = a.n_heads * (KEY_DIM / 4), n_k4 = a.n_kv_heads * (KEY_DIM / 4);
    vec2 sums = vec2(subgroupAdd(squares_of(0, n_q4)), subgroupAdd(squares_of(n_q4, n_k4)));
    if (gl_SubgroupInvocationID == 0)
        stats[gl_SubgroupID] = sums;
    barrier();
    sums = vec2(0.0);
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++)
        sums += stats[i];
    return inversesqrt(sums / (4.0 * vec2(n_q4, n_k4)) + a.eps);
}

// only_row: not the queries.
void prepare(bool only_row)
{
    vec2 factors = vec2(1.0);
    if (NORM == NORM_ALL)
        factors = all_factors();
    uint end = TEAMS * HEADS + (has_new ? 2 : 0);
    for (uint i = gl_SubgroupID + (only_row ? TEAMS * HEADS : 0); i < end; i += SUBGROUPS)
        prepare_row(i, factors);
    barrier();
}

// --- scores and sums ---

// Returns the index of a lane's i-th group of four channels.
uint four_at_lane(uint i)
{
    return (i / FOURS * LANES + lane) * FOURS + i % FOURS;
}

void load_queries()
{
    [[unroll]] for (uint g = 0; g < HEADS; g++) {
        uint row = (token * a.q_stride + head_of(first + g) * KEY_DIM) / 4;
        [[unroll]] for (uint i = 0; i < KEY_VECS; i++) {
            uint c4 = four_at_lane(i);
            q[g][i] = vec4(0.0);
            if (c4 < KEY_DIM / 4 && STREAMS == 0)
                q[g][i] = PREPARE != 0 ? stage[(team * HEADS + g) * KEY_DIM / 4 + c4]
                                       : four_at(a.q, row + c4) * (a.scale * LOG2_E);
        }
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            acc[g][i] = vec4(0.0);
    }
    [[unroll]] for (uint h = 0; h < MINE; h++) {
        m[h] = LOWEST;
        l[h] = 0.0;
    }
}

// STREAMS: puts the queries of the workgroup's block into shared memory.
void stage_queries()
{
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < NEW_KEY; i += WORKGROUP) {
        uint head = head_of(first - team * HEADS + i / (KEY_DIM / 4));
        uint row = (token * a.q_stride + head * KEY_DIM) / 4;
        stage[i] = four_at(a.q, row + i % (KEY_DIM / 4)) * (a.scale * LOG2_E);
    }
    barrier();
}

// Returns this lane's i-th group of four channels of query g.
vec4 query_four(uint g, uint i)
{
    if (STREAMS == 0)
        return q[g][i];
    uint c4 = four_at_lane(i), at = (team * HEADS + g) * KEY_DIM / 4 + c4;
    return KEY_ROW % LANES == 0 || c4 < KEY_DIM / 4 ? stage[at] : vec4(0.0);
}

float dot_on(vec4 x, vec4 y, float sum)
{
    return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum))));
}

// Begins with the new position's row: its score is m, its weight 1.
void begin_with_new()
{
    [[unroll]] for (uint g = 0; g < HEADS; g++) {
        float dot = 0.0;
        [[unroll]] for (uint i = 0; i < KEY_VECS; i++)
            if (four_at_lane(i) < KEY_DIM / 4)
                dot = dot_on(query_four(g, i), stage[NEW_KEY + four_at_lane(i)], dot);
        [[unroll]] for (uint j = 1; j <= 7; j++)
            if (LANES >> j > 0)
                dot += subgroupShuffleXor(dot, LANES >> j);
        [[unroll]] for (uint h = 0; h < MINE; h++)
            m[h] = (lane / COPIES * OWN + h) % HEADS == g ? dot : m[h];
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            if (gl_SubgroupInvocationID < LANES && four_at_lane(i) < VALUE_DIM / 4)
                acc[g][i] = stage[NEW_VALUE + four_at_lane(i)];
    }
    [[unroll]] for (uint h = 0; h < MINE; h++)
        l[h] = gl_SubgroupInvocationID < HEAD_LANES ? 1.0 : 0.0;
}

// One step of the reduction: two lanes `bit` apart divide the SCORES >> j sums that each has left.
#define HALVE(j)                                                                                            \
    if (LANES >> j > 0 && SCORES >> j > 0) {                                                                \
        bool high = (lane & (LANES >> j)) != 0;                                                             \
        [[unroll]] for (uint i = 0; i < SCORES >> j; i++) {                                                 \
            float keep = high ? s[i + (SCORES >> j)] : s[i], give = high ? s[i] : s[i + (SCORES >> j)];     \
            s[i] = keep + subgroupShuffleXor(give, LANES >> j);                                             \
        }                                                                                                   \
    } else if (LANES >> j > 0) {                                                                            \
        s[0] += subgroupShuffleXor(s[0], LANES >> j);                                                       \
    }

// Adds up s over the LANES lanes of a row. Afterwards s[o] is the score of (key, head) = (i / HEADS, i %
// HEADS), i = lane / COPIES * OWN + o.
void reduce()
{
    HALVE(1) HALVE(2) HALVE(3) HALVE(4) HALVE(5) HALVE(6) HALVE(7)
}

// STREAMS: adds this lane's products of row b to s. It takes PART units at once.
void score_streamed(uint p, uint b)
{
    uvec2 row = streamed_key(p, b);
    [[dont_unroll]] for (uint from = 0; from < KEY_UNITS; from += PART)
        [[unroll]] for (uint j = 0; j < PART; j++) {
            uvec4 unit = key_unit(row, from + j);
            [[unroll]] for (uint i = 0; i < FOURS; i++)
                [[unroll]] for (uint g = 0; g < HEADS; g++) {
                    vec4 query = query_four(g, (from + j) * FOURS + i);
                    s[b * HEADS + g] = dot_on(query, four_of(unit, i), s[b * HEADS + g]);
                }
        }
}

// Computes this lane's scores of the STEP rows from p on; LOWEST for hidden positions. m stays above LOWEST:
// a split's first step has other positions, or the new position's score came before it.
void score(uint p)
{
    [[unroll]] for (uint i = 0; i < SCORES; i++)
        s[i] = 0.0;
    [[unroll]] for (uint b = 0; b < BLOCK && STREAMS != 0; b++)
        score_streamed(p, b);
    [[unroll]] for (uint b = 0; b < BLOCK && STREAMS == 0; b++)
        [[unroll]] for (uint i = 0; i < KEY_VECS; i++) {
            vec4 k = four_of(keys[b][i / FOURS], i % FOURS);
            [[unroll]] for (uint g = 0; g < HEADS; g++)
                s[b * HEADS + g] = dot_on(q[g][i], k, s[b * HEADS + g]);
        }
    reduce();
    [[unroll]] for (uint o = 0; o < OWN; o++) {
        uint b = (lane / COPIES * OWN + o) / HEADS;
        uint at = p + b * ROWS + gl_SubgroupInvocationID / LANES;
        s[o] = at < to && (WINDOW == 0 || at >= begin) ? s[o] : LOWEST;
    }
}

// Raises m to the largest score of each head. All lanes of a head have the same m.
void raise_top()
{
    float keep[MINE];
    [[unroll]] for (uint h = 0; h < MINE; h++) {
        float top = m[h];
        [[unroll]] for (uint o = 0; o < OWN; o++)
            top = o % MINE == h ? max(top, s[o]) : top;
        [[unroll]] for (uint j = 0; j < 7; j++)
            if (HEAD_LANES << j < SUBGROUP)
                top = max(top, subgroupShuffleXor(top, HEAD_LANES << j));
        keep[h] = exp2(m[h] - top);
        m[h] = top;
        l[h] *= keep[h];
    }
    [[unroll]] for (uint g = 0; g < HEADS; g++) {
        float f = subgroupShuffle(keep[g % MINE], g / OWN * COPIES);
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            acc[g][i] *= f;
    }
}

// STREAMS: adds row b to acc. LATENT loads it a second time; without a barrier it would stay in registers.
void fold_streamed(uint p, uint b)
{
    if (LATENT != 0)
        subgroupMemoryBarrier();
    uvec2 row = LATENT != 0 ? streamed_key(p, b) : streamed_value(p, b);
    uint lanes = gl_SubgroupInvocationID - lane;
    float w[HEADS];
    [[unroll]] for (uint g = 0; g < HEADS; g++)
        w[g] = subgroupShuffle(s[(b * HEADS + g) % OWN], lanes + (b * HEADS + g) / OWN * COPIES);
    [[unroll]] for (uint j = 0; j < VALUE_UNITS; j++) {
        uvec4 unit = LATENT != 0 ? key_unit(row, j) : value_unit(row, j);
        [[unroll]] for (uint i = 0; i < FOURS; i++)
            [[unroll]] for (uint g = 0; g < HEADS; g++)
                acc[g][j * FOURS + i] = fma(vec4(w[g]), four_of(unit, i), acc[g][j * FOURS + i]);
    }
}

// Adds the rows from p on to m, l and acc.
void fold(uint p)
{
    bool grows = false;
    [[unroll]] for (uint o = 0; o < OWN; o++)
        grows = grows || s[o] > m[o % MINE] + SLACK;
    if (subgroupBallotBitCount(subgroupBallot(grows)) != 0)
        raise_top();
    [[unroll]] for (uint o = 0; o < OWN; o++) {
        s[o] = exp2(s[o] - m[o % MINE]);
        l[o % MINE] += s[o];
    }
    uint row = gl_SubgroupInvocationID - lane;
    [[unroll]] for (uint b = 0; b < BLOCK && STREAMS != 0; b++)
        fold_streamed(p, b);
    [[unroll]] for (uint b = 0; b < BLOCK && STREAMS == 0; b++)
        [[unroll]] for (uint g = 0; g < HEADS; g++) {
            float w = subgroupShuffle(s[(b * HEADS + g) % OWN], row + (b * HEADS + g) / OWN * COPIES);
            [[unroll]] for (uint i = 0; i < VALUE_VECS; i++) {
                uvec4 unit = LATENT != 0 ? keys[b][i / FOURS] : values[b][i / FOURS];
                acc[g][i] = fma(vec4(w), four_of(unit, i % FOURS), acc[g][i]);
            }
        }
}

// --- results ---

// Adds up l and acc over the rows that the subgroup had at once.
void join_rows()
{
    [[unroll]] for (uint h = 0; h < MINE; h++)
        [[unroll]] for (uint j = 0; j < 7; j++)
            if (HEAD_LANES << j < SUBGROUP)
                l[h] += subgroupShuffleXor(l[h], HEAD_LANES << j);
    [[unroll]] for (uint g = 0; g < HEADS; g++)
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            [[unroll]] for (uint j = 0; j < 7; j++)
                if (LANES << j < SUBGROUP)
                    acc[g][i] += subgroupShuffleXor(acc[g][i], LANES << j);
}

uint result_row(uint head)
{
    if ((a.is & ATTENTION_WHOLE) != 0)
        return token * a.dst_stride + head * VALUE_DIM;
    return ((token * a.n_heads + head) * a.n_splits + split) * VALUE_DIM;
}

// Scales acc to the m that the members of the team have in common, and writes m and l.
void join_stats()
{
    if (gl_SubgroupInvocationID < HEAD_LANES && lane % COPIES == 0)
        [[unroll]] for (uint h = 0; h < MINE; h++)
            stats[gl_SubgroupID * HEADS + lane / COPIES * OWN + h] = vec2(m[h], l[h]);
    barrier();
    uint g = gl_SubgroupInvocationID % HEADS;
    float top = LOWEST, sum = 0.0;
    [[unroll]] for (uint i = 0; i < MEMBERS; i++)
        top = max(top, stats[(i * TEAMS + team) * HEADS + g].x);
    if (SINKS != 0 && split == 0) {
        float sink = F32s(a.sinks).v[head_of(first + g)] * LOG2_E;
        top = max(top, sink);
        sum = exp2(sink - top);
    }
    [[unroll]] for (uint i = 0; i < MEMBERS; i++) {
        vec2 of = stats[(i * TEAMS + team) * HEADS + g];
        sum = fma(of.y, exp2(of.x - top), sum);
    }
    if ((a.is & ATTENTION_WHOLE) == 0 && member == 0 && gl_SubgroupInvocationID < HEADS &&
        first + g < group) {
        uint at = a.n * a.n_heads * a.n_splits * (VALUE_DIM / 2) + result_row(head_of(first + g)) / VALUE_DIM;
        PartStats(a.partial).v[at] = vec2(top, sum);
    }
    float factor =
        exp2(stats[gl_SubgroupID * HEADS + g].x - top) / ((a.is & ATTENTION_WHOLE) != 0 ? sum : 1.0);
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        float f = subgroupShuffle(factor, h);
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
            acc[h][i] *= f;
    }
}

// Adds up acc over the team's members: again and again the second half to the first.
void join_members()
{
    [[unroll]] for (uint j = 1; j <= 4; j++) {
        uint n = MEMBERS >> j, at = ((member % max(n, 1) * TEAMS + team) * HEADS * VALUE_VECS) * LANES + lane;
        if (n > 0) {
            if (member >= n && member < 2 * n && gl_SubgroupInvocationID < LANES)
                [[unroll]] for (uint g = 0; g < HEADS; g++)
                    [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
                        stage[at + (g * VALUE_VECS + i) * LANES] = acc[g][i];
            barrier();
            if (member < n)
                [[unroll]] for (uint g = 0; g < HEADS; g++)
                    [[unroll]] for (uint i = 0; i < VALUE_VECS; i++)
                        acc[g][i] += stage[at + (g * VALUE_VECS + i) * LANES];
            barrier();
        }
    }
}

void store_results()
{
    if (member != 0 || gl_SubgroupInvocationID >= LANES)
        return;
    [[unroll]] for (uint g = 0; g < HEADS; g++) {
        uint row = result_row(head_of(first + g)) / 4;
        [[unroll]] for (uint i = 0; i < VALUE_VECS; i++) {
            uint c4 = four_at_lane(i);
            if (first + g < group && c4 < VALUE_DIM / 4)
                Parts(a.partial).v[row + c4] = acc[g][i];
        }
    }
}

// --- merging ---

// Computes the weights of the splits for the block's heads, one head a subgroup. head: the block's first.
void weigh_splits(uint head)
{
    const uint EACH = (MERGED + SUBGROUP - 1) / SUBGROUP; // splits of a lane
    uint stats_at = a.n_heads * a.n_splits * (VALUE_DIM / 2);
    for (uint h = gl_SubgroupID; h < TEAMS * HEADS; h += SUBGROUPS) {
        vec2 of[EACH];
        float top = LOWEST, total = 0.0;
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            uint n = i * SUBGROUP + gl_SubgroupInvocationID;
            of[i] = PartStats(a.partial).v[stats_at + head_of(head + h) * a.n_splits +
                                           min(n, a.n_splits - 1)];
            top = max(top, of[i].x);
        }
        top = subgroupMax(top);
        [[unroll]] for (uint i = 0; i < EACH; i++)
            total += i * SUBGROUP + gl_SubgroupInvocationID < a.n_splits ? of[i].y * exp2(of[i].x - top) :
                                                                           0.0;
        total = subgroupAdd(total);
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            uint n = i * SUBGROUP + gl_SubgroupInvocationID;
            if (n < MERGED)
                split_weights[h * MERGED + n] = n < a.n_splits ? exp2(of[i].x - top) / total : 0.0;
        }
    }
}

const uint BATCH = 8; // splits that are loaded at once

// Loads four channels of a head from the splits `from` on.
void fetch_parts(uint head, uint c4, uint from, out vec4 part[BATCH])
{
    uint at = head * a.n_splits * (VALUE_DIM / 4) + c4;
    [[unroll]] for (uint i = 0; i < BATCH; i++)
        part[i] = Parts(a.partial).v[at + min(from + i, a.n_splits - 1) * (VALUE_DIM / 4)];
}

void merge()
{
    uint counter = gl_WorkGroupID.x / a.n_splits, head = first - team * HEADS, id = gl_LocalInvocationID.x;
    memoryBarrierBuffer();
    barrier();
    if (id == 0)
        is_last = atomicAdd(Counters(a.counters).v[counter], 1) == a.n_splits - 1 ? 1 : 0;
    barrier();
    if (is_last == 0)
        return;
    memoryBarrierBuffer();
    vec4 part[BATCH];
    uint h = id / (VALUE_DIM / 4), c4 = id % (VALUE_DIM / 4);
    fetch_parts(head_of(head + h), c4, 0, part);
    weigh_splits(head);
    barrier();
    for (uint i = id; i < TEAMS * HEADS * (VALUE_DIM / 4); i += WORKGROUP) {
        h = i / (VALUE_DIM / 4);
        c4 = i % (VALUE_DIM / 4);
        if (i != id)
            fetch_parts(head_of(head + h), c4, 0, part);
        vec4 sum = vec4(0.0);
        for (uint from = 0; from < a.n_splits; from += BATCH) {
            if (from > 0)
                fetch_parts(head_of(head + h), c4, from, part);
            [[unroll]] for (uint k = 0; k < BATCH; k++)
                if (from + k < MERGED) // weights past the last split are 0
                    sum = fma(vec4(split_weights[h * MERGED + from + k]), part[k], sum);
        }
        uint row = head_of(head + h) * (VALUE_DIM / 4);
        if ((a.is & ATTENTION_GATED) != 0) {
            vec4 gate = four_at(a.q, 2 * row + VALUE_DIM / 4 + c4);
            sum *= vec4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
        }
        if (head + h < group)
            F32x4s(a.dst).v[row + c4] = sum;
    }
    if (id == 0)
        Counters(a.counters).v[counter] = 0; // zero for the next dispatch
}

void main()
{
    take_args();
#ifdef RECORDS
    uint blocks = (a.n_heads / a.n_kv_heads + TEAMS * HEADS - 1) / (TEAMS * HEADS);
    if (gl_WorkGroupID.x >= a.n_kv_heads * blocks * a.n_splits)
        return;
#endif
    find_work();
    bool only_row = PREPARE != 0 && (a.is & ATTENTION_STORES) != 0;
    if (from < to && STREAMS == 0 && !only_row)
        fetch_keys(from + member * STEP);
    if (PREPARE != 0)
        prepare(only_row);
    else if (STREAMS != 0)
        stage_queries();
    if (only_row)
        return;
    load_queries();
    if (PREPARE != 0)
        // the loop would lose time by reading the queries again and again, so they stay in registers
        barrier();
    if (has_new && member == 0)
        begin_with_new();
    for (uint p = from + member * STEP; p < to; p += MEMBERS * STEP) {
        if (LATENT == 0 && STREAMS == 0)
            fetch_values(p);
        score(p);
        if (LATENT == 0 && STREAMS == 0)
            fetch_keys(p + MEMBERS * STEP);
        fold(p);
        if (LATENT != 0 && STREAMS == 0)
            fetch_keys(p + MEMBERS * STEP);
    }
    join_rows();
    join_stats();
    join_members();
    store_results();
    if (PREPARE != 0 && MERGED > 1 && (a.is & ATTENTION_MERGED) != 0)
        merge();
}
