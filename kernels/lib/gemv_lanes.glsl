// gemv_lanes.glsl - the products of gemv.glsl with columns on lanes. A piece is 16 bytes of a row: 32, 16, 8
// or 4 columns, by format; 32 columns of a block format. gemv_basic.glsl has the pieces of the basic formats,
// gemv_extended.glsl those of the extended ones, gemv_blocks.glsl those of block formats. Lanes take
// neighbouring pieces, SPLIT subgroups a share each. The sums over the lanes come last.
//
// A product of a few microseconds waits for memory and instructions, not for arithmetic. So a lane has at
// least two steps (a step is a piece of each of its rows) in flight, the first ones before the barrier that
// publishes the vector. If a row is few steps (STEPS) all of them are in flight, and everything is unrolled.
// Otherwise loops stay loops, because the kernels before a dispatch have filled the instruction caches. (On
// an H200 a product unrolled to 44 KB of code was slower than a plain loop with half as many loads in flight.
// An H100 holds 128 KB of code; if a layer's kernels exceed that, each takes 0.2 us longer for every kilobyte
// of its own.)
//
// Codes become floats exactly, in one of two ways:
//   DENORM     a code masked in place is a float16 denormal, which the device preserves: q 2^-24, or q 2^-20
//              for the odd columns of 4-bit codes, which have sums of their own. Then w = S v + bias, S =
//              2^24 scale. 2.6 instructions for a weight of 4 bits
//   otherwise  a code is put into the mantissa of a half: v = 1 + q / 2^bits, w = scale q + bias = S v + B, S
//              = 2^bits scale, B = bias - S. 3 instructions. sum(v x) is about five times as large as the
//              piece's true sum, so rounding errors grow to about 1e-6 of the largest output
// With 4-bit codes (a digit is a bit of that column's code, a dot a zero):
//   word                       77776666 55554444 33332222 11110000
//   DENORM: & 000f000f         ........ ....4444 ........ ....0000    columns 0 and 4, q 2^-24
//   DENORM: & 00f000f0         ........ 5555.... ........ 1111....    columns 1 and 5, q 2^-20
//   << 6, & 03c003c0           ......44 44...... ......00 00......    | 3c003c00: 1 + q / 16
// A piece lies in one group, so it adds S sum(v x) + B sum(x). float32 sums: piece by piece, then lanes, then
// SPLIT. The order of a row's sum depends on SUBGROUP, SPLIT, TILE and nothing else.

#ifdef DENORM
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require
// DenormPreserve for 16 bits. SPIR-V 1.4 needs no extension for it; if one is named, glslc 2023.2 removes no
// unused code.
spirv_execution_mode(capabilities = [4464], 4459, 16);
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer Shorts { int16_t v[]; };
const bool HAS_DENORM = true;

// Returns the address of element i of an array of elements of 1 << shift bytes.
uvec2 addr_at(uvec2 p, uint i, const uint shift)
{
    return addr_add(p + uvec2(0, i >> (32 - shift)), i << shift);
}

// Returns both halves of a word, two codes of up to 10 bits, times 2^-24.
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
// One vec4 of padding for each row of the transposed layout keeps both writes and reads free of bank
// conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint BLOCK_ROWS = ROWS; // rows of the SPLIT subgroups that share them

const uint SUMS = MATRICES * ROWS * TOKENS; // sums of a block
#include "lib/lane_sums.glsl"

shared vec4 xs[TOKENS * XS_STRIDE];
shared float split_sums[SPLIT > 1 ? SUBGROUPS * SUMS : 1];

// Returns the place of columns 4 * c4 .. 4 * c4 + 3 of vector t in the tile, counted in the order of
// pieces. The eight vec4 of 32 columns lie in eight rows.
uint xs_index(uint t, uint c4)
{
    return t * XS_STRIDE + (c4 & 7u) * (UNITS + 1) + (c4 >> 3);
}

#ifndef BLOCKS
uint piece_vec(uint c4)
{
    return c4;
}
#endif

// c4: in the order of columns.
void xs_put(uint t, uint c4, vec4 v)
{
    xs[xs_index(t, piece_vec(c4))] = v;
}

uint block_row()
{
    return gl_SubgroupID / SPLIT * BLOCK_ROWS;
}

// Returns where the block for `row` really starts. With IS_WHOLE a matrix has at least ROWS rows, and a block
// that would exceed the last row starts earlier, so that its rows are at constant distances. Otherwise each
// row is checked by itself.
uint block_start(uint row, uint rows)
{
    return IS_WHOLE ? min(row, rows - ROWS) : row;
}

// Returns whether this lane stores its i-th sum. With two matrices a lane of the first one has the second
// one's sum as well.
bool lane_stores(uint i)
{
    return i < LANE_SUMS && gl_SubgroupID % SPLIT == 0 && gl_SubgroupInvocationID % EACH == 0 &&
           (MATRICES == 1 || gl_SubgroupInvocationID < SUBGROUP / 2);
}

// Returns the row of lane_sum(i); one vector only.
uint lane_row(uint i)
{
    return lane_sum(i);
}

// This lane's pieces are i, i + piece_step(), ...
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
#elif defined(EXTENDED)
#include "lib/gemv_extended.glsl"
#elif defined(BLOCKS)
#include "lib/gemv_blocks.glsl"
#else
#include "lib/gemv_basic.glsl"
#endif

#ifdef BLOCKS
const bool LOADS_IN_LOOP = true; // a load is so much code that each copy of it is a third of glslc's time
#else
const bool LOADS_IN_LOOP = false;
#endif

Step now, next;                       // this lane's steps, in a loop
Step held[STEPS > 0 ? STEPS : 1];     // or all of them at once

// Loads piece i of the tile that starts at column `from`.
void load_step(out Step s, const uint format, Matrix m[MATRICES], uint row, uint from, uint i)
{
    begin_step(s);
    [[unroll]] for (uint k = 0; k < MATRICES; k++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            load_piece(s, k * ROWS + r, format, m[k].weight, m[k].scales, m[k].biases,
                       IS_WHOLE ? (block_start(row, m[k].rows) + r) * TILE
                           : min(row + r, m[k].rows - 1) * m[k].cols,
                       from / (4 * piece_vecs(format)) + i);
}

#if defined(DENORM) && !defined(BLOCKS)
// Returns what load_at counts biases from: their address, or that of the matrix's factor.
uvec2 bias_address(const uint format, uvec2 biases, uint group)
{
#ifdef EXTENDED
    if (HAS_FACTOR && format == FORMAT_NONE)
        return biases;
#endif
    return group_address(format, biases, group);
}

// Does load_step for piece `first` + step * piece_step(), with IS_WHOLE. All loads of a matrix are at
// constant distances from one address for the weights and one each for scales and biases. With an address for
// each load, addresses would be a tenth of all instructions.
void load_held(out Step s, const uint format, Matrix m[MATRICES], uint row, uint first, const uint step)
{
    const uint cols = 4 * piece_vecs(format), row_pieces = TILE / cols, shift = group_shift(format);
    const uint row_groups = TILE >> shift;
    begin_step(s);
    [[unroll]] for (uint k = 0; k < MATRICES; k++) {
        uint start = block_start(row, m[k].rows), group = start * row_groups + (first * cols >> shift);
        uvec2 weight = piece_address(format, m[k].weight, start * row_pieces + first);
        uvec2 scales = group_address(format, m[k].scales, group),
              biases = bias_address(format, m[k].biases, group);
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

// STEPS only: returns whether this lane has a k-th piece; a constant if all lanes have equally many.
bool has_step(const uint format, uint k)
{
    uint pieces = TILE / (4 * piece_vecs(format));
    return k * piece_step() < pieces &&
           (pieces % piece_step() == 0 || first_piece() + k * piece_step() < pieces);
}

// Rows past the last also belong to another block, so with STEPS these two functions need no condition around
// them.
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
    } else if (LOADS_IN_LOOP) {
        [[dont_unroll]] for (uint k = 0; k < 2; k++) {
            now = next;
            if (i + k * piece_step() < pieces)
                load_step(next, format, m, row, from, i + k * piece_step());
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
            load_step(next, format, m, row, from, min(i + 2 * piece_step(), pieces - 1));
        }
    }
}

// STREAM: the row and its part that are loaded next, into `next`, while the lane multiplies the part before.
// Loads are unconditional and numbers of 16 bits signed: a device that joins two ways of loading, or clears
// the upper bits, waits for the load where it starts.
uint ahead_row, ahead_part;

// Returns the parts of a row. In the last part some lanes may have no piece.
uint row_parts(const uint format)
{
    return (TILE / (4 * piece_vecs(format)) + piece_step() - 1) / piece_step();
}

bool has_part(const uint format, uint piece)
{
    uint pieces = TILE / (4 * piece_vecs(format));
    return pieces % piece_step() == 0 || piece < pieces;
}

// Past the workgroup's last row it loads rows that are in the caches.
void fetch_ahead(const uint format, Matrix m[MATRICES], uint end)
{
    const uint step = SUBGROUPS / SPLIT * ROWS;
    uint pieces = TILE / (4 * piece_vecs(format)), piece = ahead_part * piece_step() + first_piece();
    uint row = ahead_row < end ? ahead_row : ahead_row - step;
    if (pieces % piece_step() != 0)
        piece = min(piece, pieces - 1);
    if (steps_by_groups(format))
        load_held(next, format, m, row, piece, 0);
    else
        load_step(next, format, m, row, 0, piece);
    ahead_part++;
    if (ahead_part == row_parts(format)) {
        ahead_part = 0;
        ahead_row += step;
    }
}

void add_stream_as(inout float acc[MAX_ACC], const uint format, Matrix m[MATRICES], uint end)
{
    const uint vecs = piece_vecs(format);
    [[dont_unroll]] for (uint i = 0; i < row_parts(format); i++) {
        uint piece = i * piece_step() + first_piece();
        now = next;
        fetch_ahead(format, m, end);
        if (has_part(format, piece))
            add_step(acc, format, now, piece * vecs);
    }
}

// STREAM: starts loading this subgroup's blocks, from row `row` up to `end`. Call it before the barrier that
// publishes the vector.
void begin_stream(Matrix m[MATRICES], uint row, uint end)
{
    ahead_row = row;
    ahead_part = 0;
    BY_FORMAT(m[0].format, fetch_ahead(FORMAT, m, end))
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

// Ends the sums. Every lane that stores sums has their totals: the i-th in acc[i], with two matrices the
// second one's in acc[ROWS + i]. All subgroups of the workgroup must call it.
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
