// attention/prefill_coop.glsl - attention/prefill.comp's tiles on cooperative matrices.
//
// ROWS rows meet POSITIONS positions at a time. A group of SHARE subgroups has 16 rows: each subgroup
// computes its part of the positions' scores and of the values' channels, and all of them compute the
// softmax. While a tile is computed, the next one is loaded into registers. Queries are in registers or, with
// QUERIES_SHARED, in shared memory: the numbers are the same. Softmax runs over shared memory or, with
// KNOWN_LAYOUT, in the registers of the matrices (prefill_frag.glsl).
//
// One token's heads seldom fill the 16 rows of a matrix. With HALVES the rows that are left make the
// results as exact as float32: a query is the sum of two rows' halves, and so is a weight. A float16
// cache has no more.
#ifndef ATTENTION_COOP_GLSL
#define ATTENTION_COOP_GLSL

#include "lib/matrices.glsl"

// 1: matrices have the known fragment layout (lib/fragment_layout.glsl)
layout(constant_id = 10) const uint KNOWN_LAYOUT = 0;
layout(constant_id = 11) const uint POSITIONS = 32; // positions of a tile: 32 or 64
layout(constant_id = 14) const uint QUERIES_SHARED = 0;

const uint ROW_GROUPS = ROWS / 16, SHARE = WORKGROUP / 32 / ROW_GROUPS; // 1 or 2
const uint KEY_UNITS = KEY_DIM / 8, VALUE_UNITS = VALUE_DIM / 8; // units of eight channels
const uint KEY_BLOCKS = KEY_DIM / 16, VALUE_BLOCKS = VALUE_DIM / 16;
// A subgroup's matrices of scores, and of sums; the last subgroup of a group may have fewer.
const uint MY_SCORES = POSITIONS / 16 / SHARE, MY_VALUES = (VALUE_BLOCKS + SHARE - 1) / SHARE;
// An invocation's units.
const uint MY_KEY_UNITS = (POSITIONS * KEY_UNITS + WORKGROUP - 1) / WORKGROUP;
const uint MY_VALUE_UNITS = (POSITIONS * VALUE_UNITS + WORKGROUP - 1) / WORKGROUP;
// Strides in uvec4 of eight halves or four floats: odd, so that neighbouring rows lie in different banks.
const uint K_STRIDE = KEY_UNITS + 1, V_STRIDE = VALUE_UNITS + 1;
const uint S_STRIDE = POSITIONS / 4 + 1;
const uint P_STRIDE = POSITIONS / 8 + 1;
const uint V_TILE = POSITIONS * K_STRIDE; // start of the values
const uint Q_ROWS = ROWS < 64 ? ROWS : 64; // queries that go through shared memory at a time
const uint Q_SIZE = Q_ROWS * K_STRIDE, KV_SIZE = V_TILE + POSITIONS * V_STRIDE;
const uint TILE_SIZE = QUERIES_SHARED != 0 ? KV_SIZE + ROWS * K_STRIDE : Q_SIZE > KV_SIZE ? Q_SIZE : KV_SIZE;
const uint Q_TILE = QUERIES_SHARED != 0 ? KV_SIZE : 0; // start of the queries
shared uvec4 tile[TILE_SIZE]; // keys, values, queries; or the queries first, which keys and values overwrite
shared uvec4 scores[KNOWN_LAYOUT != 0 ? 1 : ROWS * S_STRIDE];  // also 16 x 16 numbers of each subgroup
shared uvec4 weights[KNOWN_LAYOUT != 0 ? 1 : ROWS * P_STRIDE];

// A row's sums are scaled down only when its maximum has grown by more than this power of two, which keeps
// weights in float16's range.
const float SLACK = 8.0;

uint group_row, member; // this subgroup's first row, its place in the group
MatrixA q[KEY_BLOCKS];
MatrixC acc[MY_VALUES];
float top, sum; // this lane's row, top in powers of two; two lanes share a row, each has half of its sum
uvec4 next_keys[MY_KEY_UNITS], next_values[MY_VALUE_UNITS];

// Makes what the subgroups of a group wrote visible to all of them.
void sync_group()
{
    if (SHARE > 1)
        barrier();
    else
        subgroupBarrier();
}

// Returns the start of this subgroup's 16 x 16 numbers in `scores`; its rows are S_STRIDE apart.
uint own_square()
{
    return group_row * S_STRIDE + 4 * member;
}

// Returns four halves as numbers, see halves_read.
vec4 halves_four(uvec2 halves)
{
    uint zero = a.n_heads >> 31;
    return vec4(halves_read(halves.x, zero), halves_read(halves.y, zero));
}

void load_queries()
{
    float scale = a.scale * LOG2_E;
    [[unroll]] for (uint from = 0; from < ROWS; from += Q_ROWS) {
        if (from > 0)
            barrier();
        for (uint u = gl_LocalInvocationID.x; u < Q_ROWS * KEY_UNITS; u += WORKGROUP) {
            uint row = u / KEY_UNITS, unit = u % KEY_UNITS, at = query_row(from + row) + 2 * unit;
            vec4 low = F32x4s(a.q).v[at] * scale, high = F32x4s(a.q).v[at + 1] * scale;
            uvec4 halves = halves8(low, high);
            if (HALVES != 0 && row >= TILE_ROWS)
                halves = halves8(low - halves_four(halves.xy), high - halves_four(halves.zw));
            tile[Q_TILE + row * K_STRIDE + unit] = halves;
        }
        barrier();
        if (QUERIES_SHARED == 0 && (ROWS == Q_ROWS || group_row / Q_ROWS * Q_ROWS == from))
            [[unroll]] for (uint d = 0; d < KEY_BLOCKS; d++)
                matrix_load(q[d], tile, group_row % Q_ROWS * K_STRIDE + 2 * d, K_STRIDE, BY_ROWS);
    }
    [[unroll]] for (uint d = 0; d < MY_VALUES; d++)
        acc[d] = MatrixC(0.0);
    top = LOWEST;
    sum = 0.0;
}

// Returns channels 8 * unit .. of a row of dim numbers, as they are stored or, of float32, as halves.
uvec4 load_eight(uvec2 row, uint dim, uint unit)
{
    if (KV_TYPE == KV_F32)
        return halves8(F32x4s(row).v[2 * unit], F32x4s(row).v[2 * unit + 1]);
    return stored_eight(row, dim, unit);
}

// Starts loading a tile. Its rows are contiguous, because a tile lies in one block of the cache. Rows past
// the last repeat it.
void fetch_tile(uint at)
{
    uvec2 keys = key_row(at), values = value_row(at);
    uint key_step = a.n_kv_heads * row_bytes(KEY_DIM), value_step = a.n_kv_heads * row_bytes(VALUE_DIM);
    uint last = min(POSITIONS, to - at) - 1;
    [[unroll]] for (uint i = 0; i < MY_KEY_UNITS; i++) {
        uint u = gl_LocalInvocationID.x + i * WORKGROUP;
        next_keys[i] = load_eight(addr_add(keys, min(u / KEY_UNITS, last) * key_step), KEY_DIM,
                                  u % KEY_UNITS);
    }
    [[unroll]] for (uint i = 0; i < MY_VALUE_UNITS; i++) {
        uint u = gl_LocalInvocationID.x + i * WORKGROUP;
        next_values[i] = load_eight(addr_add(values, min(u / VALUE_UNITS, last) * value_step), VALUE_DIM,
                                    u % VALUE_UNITS);
    }
}

// Stores the loaded tile in shared memory.
void keep_tile()
{
    [[unroll]] for (uint i = 0; i < MY_KEY_UNITS; i++) {
        uint u = gl_LocalInvocationID.x + i * WORKGROUP;
        if (u < POSITIONS * KEY_UNITS)
            tile[u / KEY_UNITS * K_STRIDE + u % KEY_UNITS] = stored_halves(next_keys[i]);
    }
    [[unroll]] for (uint i = 0; i < MY_VALUE_UNITS; i++) {
        uint u = gl_LocalInvocationID.x + i * WORKGROUP;
        if (u < POSITIONS * VALUE_UNITS)
            tile[V_TILE + u / VALUE_UNITS * V_STRIDE + u % VALUE_UNITS] = stored_halves(next_values[i]);
    }
}

// Computes this subgroup's scores of the tile, from position `first` on.
void score(out MatrixC s[MY_SCORES], uint first)
{
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        s[j] = MatrixC(0.0);
    [[unroll]] for (uint d = 0; d < KEY_BLOCKS; d++) {
        if (QUERIES_SHARED != 0)
            matrix_load(q[d], tile, Q_TILE + group_row * K_STRIDE + 2 * d, K_STRIDE, BY_ROWS);
        [[unroll]] for (uint j = 0; j < MY_SCORES; j++) {
            MatrixB k;
            matrix_load(k, tile, (first + 16 * j) * K_STRIDE + 2 * d, K_STRIDE, BY_COLUMNS);
            s[j] = matrix_muladd(q[d], k, s[j]);
        }
    }
}

// Adds the values of 16 positions, from 16 * block of the tile on, times the weights of this subgroup's rows.
void add_values(MatrixA w, uint block)
{
    uint first = MY_VALUES * member;
    [[unroll]] for (uint d = 0; d < MY_VALUES; d++)
        if (VALUE_BLOCKS % SHARE == 0 || first + d < VALUE_BLOCKS) {
            MatrixB v;
            matrix_load(v, tile, V_TILE + 16 * block * V_STRIDE + 2 * (first + d), V_STRIDE, BY_ROWS);
            acc[d] = matrix_muladd(w, v, acc[d]);
        }
}

#include "attention/prefill_frag.glsl"

void score_tile()
{
    MatrixC s[MY_SCORES];
    uint first = 16 * MY_SCORES * member; // first position
    score(s, first);
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        matrix_store(s[j], scores, group_row * S_STRIDE + first / 4 + 4 * j, S_STRIDE, BY_ROWS);
}

// Multiplies acc with the factor `keep` that each row's lanes have.
void scale_sums(float keep)
{
    uint row = own_square() + gl_SubgroupInvocationID / 2 * S_STRIDE, part = gl_SubgroupInvocationID % 2;
    subgroupBarrier();
    scores[row + 2 * part] = uvec4(floatBitsToUint(keep));
    scores[row + 2 * part + 1] = uvec4(floatBitsToUint(keep));
    subgroupBarrier();
    MatrixC f;
    matrix_load(f, scores, own_square(), S_STRIDE, BY_ROWS);
    [[unroll]] for (uint d = 0; d < MY_VALUES; d++)
        for (uint i = 0; i < f.length(); i++)
            acc[d][i] *= f[i];
}

// Turns scores into weights. Two lanes share a row; each has half of its positions.
void weigh_tile(uint at)
{
    const uint FOURS = POSITIONS / 8;
    uint part = gl_SubgroupInvocationID % 2 * FOURS;
    uint mine = group_row + gl_SubgroupInvocationID / 2, end = row_end(mine);
    vec4 s[FOURS];
    float high = LOWEST;
    sync_group();
    [[unroll]] for (uint i = 0; i < FOURS; i++) {
        uint p = at + 4 * (part + i);
        s[i] = uintBitsToFloat(scores[mine * S_STRIDE + part + i]);
        uvec4 at4 = uvec4(p, p + 1, p + 2, p + 3);
        s[i] = mix(vec4(LOWEST), s[i], lessThan(at4, uvec4(end)));
        if (WINDOW > 0)
            s[i] = mix(vec4(LOWEST), s[i], greaterThanEqual(at4, uvec4(row_begin(mine))));
        high = max(high, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)));
    }
    high = max(high, subgroupShuffleXor(high, 1));
    bool grows = high > top + SLACK;
    if (SHARE > 1)
        barrier(); // the next step uses the scores' memory
    if (subgroupMax(grows ? 1u : 0u) != 0u) {
        float keep = grows ? exp2(top - high) : 1.0;
        top = grows ? high : top;
        sum *= keep;
        scale_sums(keep);
    }
    [[unroll]] for (uint i = 0; i < FOURS; i++) {
        bvec4 seen = greaterThan(s[i], vec4(LOWEST));
        s[i] = mix(vec4(0.0), exp2(s[i] - top), seen);
        sum += s[i].x + s[i].y + s[i].z + s[i].w;
    }
    if (member == 0)
        [[unroll]] for (uint i = 0; i < FOURS / 2; i++)
            weights[mine * P_STRIDE + part / 2 + i] = halves8(s[2 * i], s[2 * i + 1]);
    sync_group();
}

void add_tile()
{
    [[unroll]] for (uint j = 0; j < POSITIONS / 16; j++) {
        MatrixA w;
        matrix_load(w, weights, group_row * P_STRIDE + 2 * j, P_STRIDE, BY_ROWS);
        add_values(w, j);
    }
}

void store_results()
{
    uint part = gl_SubgroupInvocationID % 2 * 2, first = MY_VALUES * member;
    uint mine = group_row + gl_SubgroupInvocationID / 2, dst = partial_row(mine);
    uint row = own_square() + gl_SubgroupInvocationID / 2 * S_STRIDE;
    bool is_real = first_row + mine < n_rows;
    float both = sum + subgroupShuffleXor(sum, 1), factor = add_sink(mine, top, both);
    factor = a.is_whole != 0 ? factor / both : factor;
    [[unroll]] for (uint d = 0; d < MY_VALUES; d++) {
        subgroupBarrier();
        matrix_store(acc[d], scores, own_square(), S_STRIDE, BY_ROWS);
        subgroupBarrier();
        [[unroll]] for (uint i = 0; i < 8; i++)
            if (is_real && first + d < VALUE_BLOCKS)
                F32s(a.partial).v[dst + 16 * (first + d) + 4 * part + i] =
                    uintBitsToFloat(scores[row + part + i / 4][i % 4]) * factor;
    }
    if (is_real && part == 0 && member == 0 && a.is_whole == 0)
        store_stats(mine, top, both);
}

void main()
{
    take_args();
#ifdef RECORDS
    if (gl_WorkGroupID.y >= a.n_kv_heads * a.n_splits)
        return;
#endif
    find_work(POSITIONS);
    group_row = gl_SubgroupID % ROW_GROUPS * 16;
    member = gl_SubgroupID / ROW_GROUPS;
    if (from < to)
        fetch_tile(from);
    load_queries();
    begin_frag();
    for (uint at = from; at < to; at += POSITIONS) {
        barrier();
        keep_tile();
        barrier();
        if (at + POSITIONS < to)
            fetch_tile(at + POSITIONS);
        if (KNOWN_LAYOUT != 0) {
            run_frag(at);
        } else {
            score_tile();
            weigh_tile(at);
            add_tile();
        }
    }
    if (KNOWN_LAYOUT != 0)
        store_frag();
    else
        store_results();
}

#endif
