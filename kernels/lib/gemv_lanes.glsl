// gemv_lanes.glsl - the products of gemv.glsl with columns on lanes: a piece is 16 bytes of a row, 32, 16, 8
// or 4 columns by format; gemv_usual.glsl has those of the usual formats, gemv_other.glsl those of others.
// Lanes take neighbouring pieces, SPLIT subgroups a share each, and sums over the lanes end it.
//
// What a GPU waits for in a product of a few microseconds is memory and instructions, not arithmetic. So a
// lane has at least two steps (a piece of each of its rows) in flight, the first ones before the barrier that
// publishes the vector. Where a row is few steps (STEPS) all of them are, and everything is unrolled; else
// loops stay loops: a dispatch finds the instruction caches filled with the kernels before it. (On an H200 a
// product unrolled to 44 KB of code was slower than a plain loop with half as many loads in flight. An H100
// holds 128 KB of code: where a layer's kernels are more, each takes 0.2 us longer for every kilobyte of its
// own.)
//
// Codes become floats exactly, in one of two ways:
// - DENORM: masked into place they are float16 denormals, which the device preserves: q 2^-24, or q 2^-20 for
//   the odd
//   columns of 4-bit codes, which have sums of their own. Then w = S v + bias with S = 2^24 scale. 2.6
//     instructions a
//   weight of 4 bits.
// - else a code is put into the mantissa of a half: v = 1 + q / 2^bits, w = scale q + bias = S v + B, S =
//   2^bits scale,
//   B = bias - S: 3 instructions. sum(v x) is about five times as large as the piece's true sum, so a
//     product's rounding
//   errors grow as much, to about 1e-6 of the largest output.
// A piece lies in one group: it adds S sum(v x) + B sum(x). float32 sums: piece by piece, then lanes, then
// SPLIT. The order of a row's sum depends on SUBGROUP, SPLIT, TILE and nothing else.

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { uvec4 v[]; };

#ifdef DENORM
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require
// DenormPreserve for 16 bits. Since SPIR-V 1.4 that needs no extension, and glslc 2023.2 clears no code away
// where there is this one.
spirv_execution_mode(capabilities = [4464], 4459, 16);
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer Shorts { uint16_t v[]; };
const bool HAS_DENORM = true;

// The address of element i of an array of 1 << shift bytes each.
uvec2 addr_at(uvec2 p, uint i, const uint shift)
{
    return addr_add(p + uvec2(0, i >> (32 - shift)), i << shift);
}

// The halves of a word of two codes of up to 10 bits, times 2^-24.
vec2 codes_of(uint word)
{
    return vec2(unpackFloat2x16(word));
}
#else
const bool HAS_DENORM = false;

vec2 codes_of(uint word)
{
    return vec2(0.0);
}
#endif

const uint UNITS = TILE / 32;
// One vec4 of padding per row of the transposed layout keeps both its writes and its reads free of bank
// conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint BLOCK_ROWS = ROWS; // of the SPLIT subgroups that share them

const uint SUMS = MATRICES * ROWS * TOKENS; // of a block
#include "lib/lane_sums.glsl"

shared vec4 xs[TOKENS * XS_STRIDE];
shared float split_sums[SPLIT > 1 ? SUBGROUPS * SUMS : 1];

// Columns 4 * c4 .. 4 * c4 + 3 of vector t in the tile: the eight vec4 of 32 columns lie in eight rows.
uint xs_index(uint t, uint c4)
{
    return t * XS_STRIDE + (c4 & 7u) * (UNITS + 1) + (c4 >> 3);
}

void xs_put(uint t, uint c4, vec4 v)
{
    xs[xs_index(t, c4)] = v;
}

uint block_row()
{
    return gl_SubgroupID / SPLIT * BLOCK_ROWS;
}

// Where the block that should start at `row` does start. With IS_WHOLE a matrix has at least ROWS rows, and a
// block that would reach beyond the last one starts earlier: so its rows are at constant distances. Else
// every row is looked after alone.
uint block_start(uint row, uint rows)
{
    return IS_WHOLE ? min(row, rows - ROWS) : row;
}

// Whether it is this lane's to store. With two matrices a lane of the first one's has the second one's sum as
// well.
bool lane_stores(uint i)
{
    return i < LANE_SUMS && gl_SubgroupID % SPLIT == 0 && gl_SubgroupInvocationID % EACH == 0 &&
           (MATRICES == 1 || gl_SubgroupInvocationID < SUBGROUP / 2);
}

// With one vector: the row of lane_sum(i).
uint lane_row(uint i)
{
    return lane_sum(i);
}

// The pieces of this lane: i, i + piece_step(), ...
uint first_piece()
{
    return gl_SubgroupID % SPLIT * SUBGROUP + gl_SubgroupInvocationID;
}

uint piece_step()
{
    return SPLIT * SUBGROUP;
}

float sum_on(vec4 x, float sum)
{
    return sum + ((x.x + x.y) + (x.z + x.w));
}

#ifdef WITH_Q4
#include "lib/gemv_both.glsl"
#elif defined(OTHER)
#include "lib/gemv_other.glsl"
#else
#include "lib/gemv_usual.glsl"
#endif

Step now, next;                       // of this lane, in a loop
Step held[STEPS > 0 ? STEPS : 1];     // or all of them

// Piece i of the tile that starts at column `from`.
void load_step(out Step s, const uint format, Matrix m[MATRICES], uint row, uint from, uint i)
{
    begin_step(s);
    [[unroll]] for (uint k = 0; k < MATRICES; k++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            load_piece(s, k * ROWS + r, format, m[k].weight, m[k].scales, m[k].biases,
                       IS_WHOLE ? (block_start(row, m[k].rows) + r) * TILE : min(row + r, m[k].rows - 1) * m[k].cols,
                       from / (4 * piece_vecs(format)) + i);
}

#ifdef DENORM
// load_step with IS_WHOLE, of piece `first` + step * piece_step(): all of a matrix at constant distances from
// one address for the weights and one for each of scales and biases. With an address for each load they would
// be a tenth of all instructions.
void load_held(out Step s, const uint format, Matrix m[MATRICES], uint row, uint first, const uint step)
{
    const uint cols = 4 * piece_vecs(format), row_pieces = TILE / cols, shift = group_shift(format);
    const uint row_groups = TILE >> shift;
    begin_step(s);
    [[unroll]] for (uint k = 0; k < MATRICES; k++) {
        uint start = block_start(row, m[k].rows), group = start * row_groups + (first * cols >> shift);
        uvec2 weight = piece_address(format, m[k].weight, start * row_pieces + first);
        uvec2 scales = group_address(format, m[k].scales, group), biases = group_address(format, m[k].biases, group);
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            load_at(s, k * ROWS + r, format, weight, scales, biases, r * row_pieces + step * piece_step(),
                    r * row_groups + (step * piece_step() * cols >> shift));
        add_places(s, k * ROWS, group);
    }
}
#else
bool steps_by_groups(const uint format)
{
    return false;
}

void load_held(out Step s, const uint format, Matrix m[MATRICES], uint row, uint first, const uint step)
{
    begin_step(s);
}
#endif

// With STEPS: whether this lane has a k-th piece; a constant where all lanes have as many.
bool has_step(const uint format, uint k)
{
    uint pieces = TILE / (4 * piece_vecs(format));
    return k * piece_step() < pieces &&
           (pieces % piece_step() == 0 || first_piece() + k * piece_step() < pieces);
}

// Rows beyond the last one are another block's as well: with STEPS no condition has to stand around these
// two.
void fetch_as(const uint format, Matrix m[MATRICES], uint row, uint from, uint n)
{
    uint pieces = n / (4 * piece_vecs(format)), i = first_piece();
    if (STEPS > 0) {
        [[unroll]] for (uint k = 0; k < STEPS; k++)
            if (has_step(format, k)) {
                if (steps_by_groups(format))
                    load_held(held[k], format, m, row, i, k);
                else
                    load_step(held[k], format, m, row, 0, i + k * piece_step());
            }
    } else {
        if (i < pieces)
            load_step(now, format, m, row, from, i);
        if (i + piece_step() < pieces)
            load_step(next, format, m, row, from, i + piece_step());
    }
}

void add_as(inout float acc[MAX_ACC], const uint format, Matrix m[MATRICES], uint row, uint from, uint n)
{
    uint vecs = piece_vecs(format), pieces = n / (4 * vecs);
    if (STEPS > 0) {
        [[unroll]] for (uint k = 0; k < STEPS; k++)
            if (has_step(format, k))
                add_step(acc, format, held[k], (first_piece() + k * piece_step()) * vecs);
    } else {
        [[dont_unroll]] for (uint i = first_piece(); i < pieces; i += piece_step()) {
            add_step(acc, format, now, i * vecs);
            now = next;
            if (i + 2 * piece_step() < pieces)
                load_step(next, format, m, row, from, i + 2 * piece_step());
        }
    }
}

// STREAM: the row and the part of it that are asked for next, into `now`. Other subgroups work while a lane
// waits: a second step under way costs registers, and with them subgroups.
uint ahead_row, ahead_part;

// The parts of a row, of the last of which some lanes may have no piece.
uint row_parts(const uint format)
{
    return (TILE / (4 * piece_vecs(format)) + piece_step() - 1) / piece_step();
}

bool has_part(const uint format, uint piece)
{
    uint pieces = TILE / (4 * piece_vecs(format));
    return pieces % piece_step() == 0 || piece < pieces;
}

void ask_ahead(const uint format, Matrix m[MATRICES], uint end)
{
    uint piece = ahead_part * piece_step() + first_piece();
    if (ahead_row < end && has_part(format, piece)) {
        if (steps_by_groups(format))
            load_held(now, format, m, ahead_row, piece, 0);
        else
            load_step(now, format, m, ahead_row, 0, piece);
    }
    ahead_part++;
    if (ahead_part == row_parts(format)) {
        ahead_part = 0;
        ahead_row += SUBGROUPS / SPLIT * ROWS;
    }
}

void add_stream_as(inout float acc[MAX_ACC], const uint format, Matrix m[MATRICES], uint end)
{
    const uint vecs = piece_vecs(format);
    [[dont_unroll]] for (uint i = 0; i < row_parts(format); i++) {
        uint piece = i * piece_step() + first_piece();
        if (has_part(format, piece))
            add_step(acc, format, now, piece * vecs);
        ask_ahead(format, m, end);
    }
}

// STREAM: begins with the rows from `row` on of this subgroup's blocks, up to `end`; call it before the
// barrier that publishes the vector.
void begin_stream(Matrix m[MATRICES], uint row, uint end)
{
    ahead_row = row;
    ahead_part = 0;
    BY_FORMAT(m[0].format, ask_ahead(FORMAT, m, end))
}

// Adds the next block's products.
void add_stream(inout float acc[MAX_ACC], Matrix m[MATRICES], uint end)
{
    BY_FORMAT(m[0].format, add_stream_as(acc, FORMAT, m, end))
}

void fetch_product(Matrix m[MATRICES], uint row, uint from, uint n)
{
    BY_FORMAT(m[0].format, fetch_as(FORMAT, m, row, from, n))
}

void add_product(inout float acc[MAX_ACC], Matrix m[MATRICES], uint row, uint from, uint n)
{
    BY_FORMAT(m[0].format, add_as(acc, FORMAT, m, row, from, n))
}

// Ends the sums: every lane that stores one has its total, the i-th of its own in acc[i], with two matrices
// the second one's in acc[ROWS + i]. All subgroups of the workgroup call it.
void finish_product(inout float acc[MAX_ACC])
{
    add_lanes(acc);
    if (SPLIT > 1) {
        if (gl_SubgroupInvocationID % EACH == 0)
            [[unroll]] for (uint i = 0; i < LANE_SUMS; i++)
                split_sums[gl_SubgroupID * SUMS + lane_sum(i)] = acc[i];
        barrier();
        uint first = (gl_SubgroupID - gl_SubgroupID % SPLIT) * SUMS;
        [[unroll]] for (uint i = 0; i < LANE_SUMS; i++) {
            acc[i] = split_sums[first + lane_sum(i)];
            [[unroll]] for (uint k = 1; k < SPLIT; k++)
                acc[i] += split_sums[first + k * SUMS + lane_sum(i)];
        }
    }
    if (MATRICES == 2)
        acc[ROWS] = subgroupShuffleXor(acc[0], SUBGROUP / 2);
}
