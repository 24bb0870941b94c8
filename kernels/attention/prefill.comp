// attention/prefill.comp - attention/decode.comp's result for the many tokens of a chunk: a tile of queries
// meets one tile of positions at a time.
//
// The queries of a key/value head are rows (token, head): row r is token r / group, head kv_head * group + r
// % group. A workgroup has ROWS rows of one key/value head. For each tile of POSITIONS keys it computes
// scores, masked after each row's own position, then the row's new maximum; scales the row's sums down to it;
// adds the tile's values. Tiles past the last position of all rows are skipped.
// Grid: x = tiles of ROWS rows, y = n_kv_heads * n_splits: workgroups that run at about the same time read
// the same keys and values. The last tiles, which see the most positions, start first.
// Two mappings, chosen at build:
//   tiles (GPUs): 16 x 16 invocations, float32. Tolerance 1e-5 of the largest output after the merge.
//   matrices (COOP, attention_prefill_coop; attention/prefill_coop.glsl): queries, keys, values and weights
//     in float16, scores and sums in float32, 16 x 16 x 16 at a time (lib/matrices.glsl). KEY_DIM and
//     VALUE_DIM are multiples of 16. Tolerance 3e-3. RECORDS: a token of each of many sequences; z =
//     sequences, y is that of the one with the most splits. HALVES: tolerance 2e-5 with a float16 cache
// variants: plain coop eachcoop
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint KEY_DIM = 256;
layout(constant_id = 3) const uint VALUE_DIM = 256;
layout(constant_id = 5) const uint LATENT = 0; // a key's first VALUE_DIM channels are its value
layout(constant_id = 12) const uint WINDOW = 0; // positions that a token sees; 0: all
layout(constant_id = 13) const uint SINKS = 0;

ARGS(attention_prefill_args)

layout(constant_id = 9) const uint ROWS = 64; // matrices: 16 or 32 (queries in shared memory), 64 or 128
// 1 (matrices of the known layout, ROWS 16): rows 8 to 15 are what float16 drops of rows 0 to 7, of
// queries and of weights
layout(constant_id = 15) const uint HALVES = 0;
const uint TILE_ROWS = HALVES != 0 ? ROWS / 2 : ROWS; // rows of the chunk in a tile
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN
const float LOG2_E = 1.44269504;

// A workgroup's work; set by find_work.
uint kv_head, split, group, first_row, n_rows; // n_rows: rows of the whole chunk
uint from, to;                                 // positions

// Returns the first position that a token sees.
uint first_seen(uint token)
{
    uint n_pos = a.pos + token + 1;
    return WINDOW > 0 && n_pos > WINDOW ? n_pos - WINDOW : 0;
}

void find_work(uint positions)
{
    kv_head = gl_WorkGroupID.y / a.n_splits;
    split = gl_WorkGroupID.y % a.n_splits;
    group = a.n_heads / a.n_kv_heads;
    n_rows = a.n * group;
    first_row = ((n_rows - 1) / TILE_ROWS - gl_WorkGroupID.x) * TILE_ROWS;
    // All rows' splits begin at the same positions, each the first of a tile; with a window only the rows of
    // a workgroup do.
    uint last_token = min(first_row + TILE_ROWS - 1, n_rows - 1) / group;
    uint n_pos = a.pos + (WINDOW > 0 ? last_token + 1 : a.n);
    uint base = first_seen(first_row / group) / positions * positions;
    uint share = ((n_pos - base + a.n_splits - 1) / a.n_splits + positions - 1) / positions * positions;
    from = min(base + split * share, n_pos);
    to = max(from, min(from + share, a.pos + last_token + 1));
}

uint row_in_chunk(uint row)
{
    return min(first_row + row % TILE_ROWS, n_rows - 1);
}

uint row_token(uint row)
{
    return row_in_chunk(row) / group;
}

uint row_head(uint row)
{
    return kv_head * group + row_in_chunk(row) % group;
}

// Returns the start of a row's query, in groups of four channels.
uint query_row(uint row)
{
    return (row_token(row) * a.q_stride + row_head(row) * KEY_DIM) / 4;
}

// Returns the first position that is hidden from a row.
uint row_end(uint row)
{
    return min(to, a.pos + row_token(row) + 1);
}

// Returns the first position that a row sees.
uint row_begin(uint row)
{
    return first_seen(row_token(row));
}

// Positions past the last repeat it.
uvec2 key_row(uint p)
{
    p = min(p, max(to, 1) - 1);
    if (FLAT != 0)
        return flat_row(a.keys, p, kv_head, a.n_kv_heads, KEY_DIM);
    return key_cache_row(a.keys, a.layer_off, p, kv_head, a.n_kv_heads, KEY_DIM);
}

uvec2 value_row(uint p)
{
    p = min(p, max(to, 1) - 1);
    if (FLAT != 0)
        return flat_row(a.values, p, kv_head, a.n_kv_heads, VALUE_DIM);
    if (LATENT != 0)
        return key_cache_row(a.keys, a.layer_off, p, kv_head, a.n_kv_heads, KEY_DIM);
    return value_cache_row(a.keys, a.layer_off, p, kv_head, a.n_kv_heads, KEY_DIM, VALUE_DIM);
}

const uint VALUE_ROW_DIM = LATENT != 0 ? KEY_DIM : VALUE_DIM; // numbers of the row that has the value

// Returns a row's index among all tokens, heads and splits.
uint partial_index(uint row)
{
    return (row_token(row) * a.n_heads + row_head(row)) * a.n_splits + split;
}

// Returns the start of a row's result, in floats.
uint partial_row(uint row)
{
    if (a.is_whole != 0)
        return row_token(row) * a.dst_stride + row_head(row) * VALUE_DIM;
    return partial_index(row) * VALUE_DIM;
}

// top: in powers of two.
void store_stats(uint row, float top, float sum)
{
    uint at = a.n * a.n_heads * a.n_splits * VALUE_DIM + 2 * partial_index(row);
    F32s(a.partial).v[at] = top;
    F32s(a.partial).v[at + 1] = sum;
}

// Adds a row's sink to its sum, in the first split. top: in powers of two. Returns the factor that the row's
// results are scaled with.
float add_sink(uint row, inout float top, inout float sum)
{
    if (SINKS == 0 || split > 0)
        return 1.0;
    float sink = F32s(a.sinks).v[row_head(row)] * LOG2_E, high = max(top, sink), keep = exp2(top - high);
    sum = fma(sum, keep, exp2(sink - high));
    top = high;
    return keep;
}

#ifdef COOP
#include "attention/prefill_coop.glsl"
#else
// Invocation (x, y) of 16 x 16 has rows y + 16 i. Of the scores it has positions x + 16 j, of the sums every
// 16th group of four channels.
const uint SIDE = 16;
const uint POSITIONS = 64;
const uint EACH = ROWS / SIDE; // rows, and positions, of an invocation
const uint DEPTH = 4;          // groups of four channels in a step of the scores
const uint STRIDE = DEPTH + 1; // odd: neighbouring rows lie in different banks
const uint FOURS = KEY_DIM / 4, VALUE_FOURS = VALUE_DIM / 4;
const uint VALUES = VALUE_DIM > 256 ? 4 : 8; // positions in a step of the sums
const uint COLS = (VALUE_FOURS + SIDE - 1) / SIDE;
const uint Q_AND_K = (ROWS + POSITIONS) * STRIDE, V = VALUES * VALUE_FOURS;
shared vec4 stage[Q_AND_K > V ? Q_AND_K : V]; // a step's queries and keys; a step's values
shared float scores[ROWS * (POSITIONS + 1)];  // then weights
shared float parts[ROWS * 4];                 // results of the four invocations of each row
shared float tops[ROWS], sums[ROWS], keeps[ROWS];

uint x, y;
vec4 acc[EACH][COLS];

void stage_queries_and_keys(uint at, uint depth)
{
    for (uint u = gl_LocalInvocationID.x; u < (ROWS + POSITIONS) * DEPTH; u += WORKGROUP) {
        uint row = u / DEPTH, c4 = depth + u % DEPTH;
        vec4 v = vec4(0.0);
        if (c4 < FOURS && row < ROWS)
            v = F32x4s(a.q).v[query_row(row) + c4] * a.scale;
        else if (c4 < FOURS)
            v = cache_four(key_row(at + row - ROWS), KEY_DIM, c4);
        stage[row * STRIDE + u % DEPTH] = v;
    }
}

void score_tile(uint at)
{
    float s[EACH][EACH];
    [[unroll]] for (uint i = 0; i < EACH; i++)
        [[unroll]] for (uint j = 0; j < EACH; j++)
            s[i][j] = 0.0;
    for (uint depth = 0; depth < FOURS; depth += DEPTH) {
        barrier();
        stage_queries_and_keys(at, depth);
        barrier();
        [[unroll]] for (uint c = 0; c < DEPTH; c++) {
            vec4 k[EACH];
            [[unroll]] for (uint j = 0; j < EACH; j++)
                k[j] = stage[(ROWS + x + SIDE * j) * STRIDE + c];
            [[unroll]] for (uint i = 0; i < EACH; i++) {
                vec4 q = stage[(y + SIDE * i) * STRIDE + c];
                [[unroll]] for (uint j = 0; j < EACH; j++)
                    s[i][j] = fma(q.w, k[j].w, fma(q.z, k[j].z, fma(q.y, k[j].y, fma(q.x, k[j].x, s[i][j]))));
            }
        }
    }
    [[unroll]] for (uint i = 0; i < EACH; i++)
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            uint row = y + SIDE * i, p = x + SIDE * j;
            bool is_seen = at + p < row_end(row) && (WINDOW == 0 || at + p >= row_begin(row));
            scores[row * (POSITIONS + 1) + p] = is_seen ? s[i][j] : LOWEST;
        }
    barrier();
}

// Turns scores into weights, with four invocations for each row.
void weigh_tile()
{
    uint row = gl_LocalInvocationID.x / 4,
         mine = row * (POSITIONS + 1) + gl_LocalInvocationID.x % 4 * (POSITIONS / 4);
    float top = tops[row], high = top, sum = 0.0;
    for (uint i = 0; i < POSITIONS / 4; i++)
        high = max(high, scores[mine + i]);
    parts[gl_LocalInvocationID.x] = high;
    barrier();
    high = max(max(parts[4 * row], parts[4 * row + 1]), max(parts[4 * row + 2], parts[4 * row + 3]));
    barrier();
    for (uint i = 0; i < POSITIONS / 4; i++) {
        float s = scores[mine + i], w = s > LOWEST ? exp(s - high) : 0.0;
        scores[mine + i] = w;
        sum += w;
    }
    parts[gl_LocalInvocationID.x] = sum;
    barrier();
    if (gl_LocalInvocationID.x % 4 == 0) {
        float keep = exp(top - high);
        keeps[row] = keep;
        tops[row] = high;
        sums[row] = sums[row] * keep + parts[4 * row] + parts[4 * row + 1] + parts[4 * row + 2] +
            parts[4 * row + 3];
    }
    barrier();
}

void add_tile(uint at)
{
    [[unroll]] for (uint i = 0; i < EACH; i++)
        [[unroll]] for (uint j = 0; j < COLS; j++)
            acc[i][j] *= keeps[y + SIDE * i];
    for (uint p = 0; p < POSITIONS; p += VALUES) {
        barrier();
        for (uint u = gl_LocalInvocationID.x; u < V; u += WORKGROUP)
            stage[u] = cache_four(value_row(at + p + u / VALUE_FOURS), VALUE_ROW_DIM, u % VALUE_FOURS);
        barrier();
        [[unroll]] for (uint v = 0; v < VALUES; v++) {
            float w[EACH];
            [[unroll]] for (uint i = 0; i < EACH; i++)
                w[i] = scores[(y + SIDE * i) * (POSITIONS + 1) + p + v];
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                vec4 value = stage[v * VALUE_FOURS + min(x + SIDE * j, VALUE_FOURS - 1)];
                [[unroll]] for (uint i = 0; i < EACH; i++)
                    acc[i][j] = fma(vec4(w[i]), value, acc[i][j]);
            }
        }
    }
}

void store_results()
{
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        uint row = y + SIDE * i, dst = partial_row(row);
        if (first_row + row >= n_rows)
            continue;
        float top = tops[row] <= LOWEST ? LOWEST : tops[row] * LOG2_E, sum = sums[row];
        float factor = add_sink(row, top, sum);
        factor = a.is_whole != 0 ? factor / sum : factor;
        [[unroll]] for (uint j = 0; j < COLS; j++)
            [[unroll]] for (uint c = 0; c < 4; c++)
                if (x + SIDE * j < VALUE_FOURS)
                    F32s(a.partial).v[dst + 4 * (x + SIDE * j) + c] = acc[i][j][c] * factor;
        if (x == 0 && a.is_whole == 0)
            store_stats(row, top, sum);
    }
}

void main()
{
    take_args();
    x = gl_LocalInvocationID.x % SIDE;
    y = gl_LocalInvocationID.x / SIDE;
    find_work(POSITIONS);
    [[unroll]] for (uint i = 0; i < EACH; i++)
        [[unroll]] for (uint j = 0; j < COLS; j++)
            acc[i][j] = vec4(0.0);
    if (gl_LocalInvocationID.x < ROWS) {
        tops[gl_LocalInvocationID.x] = LOWEST;
        sums[gl_LocalInvocationID.x] = 0.0;
    }
    barrier();
    for (uint at = from; at < to; at += POSITIONS) {
        score_tile(at);
        weigh_tile();
        add_tile(at);
    }
    store_results();
}
#endif
