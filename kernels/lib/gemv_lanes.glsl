// gemv_lanes.glsl - the products of gemv.glsl with columns on lanes: a piece is 16 bytes of a row, 32, 16, 8 or 4
// columns by format; gemv_other.glsl has those of other formats than the usual ones. Lanes take neighbouring pieces, SPLIT
// subgroups a share each, and sums over the lanes end it.
//
// What a GPU waits for in a product of a few microseconds is memory and instructions, not arithmetic. So a lane has at
// least two steps (a piece of each of its rows) in flight, the first ones before the barrier that publishes the vector.
// Where a row is few steps (STEPS) all of them are, and everything is unrolled; else loops stay loops: a dispatch finds
// the instruction caches filled with the kernels before it. (On an H200 a product unrolled to 44 KB of code was slower
// than a plain loop with half as many loads in flight.)
//
// Codes become floats exactly, in one of two ways:
// - DENORM: masked into place they are float16 denormals, which the device preserves: q 2^-24, or q 2^-20 for the odd
//   columns of 4-bit codes, which have sums of their own. Then w = S v + bias with S = 2^24 scale. 2.6 instructions a
//   weight of 4 bits.
// - else a code is put into the mantissa of a half: v = 1 + q / 2^bits, w = scale q + bias = S v + B, S = 2^bits scale,
//   B = bias - S: 3 instructions. sum(v x) is about five times as large as the piece's true sum, so a product's rounding
//   errors grow as much, to about 1e-6 of the largest output.
// A piece lies in one group: it adds S sum(v x) + B sum(x). float32 sums: piece by piece, then lanes, then SPLIT. The
// order of a row's sum depends on SUBGROUP, SPLIT, TILE and nothing else.

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { uvec4 v[]; };

#ifdef DENORM
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require
// DenormPreserve for 16 bits
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4464], 4459, 16);
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
// One vec4 of padding per row of the transposed layout keeps both its writes and its reads free of bank conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint BLOCK_ROWS = ROWS; // of the SPLIT subgroups that share them

// Sums of a block; each lane ends with LANE_SUMS of them, EACH neighbouring lanes with the same.
const uint SUMS = MATRICES * ROWS * TOKENS;
const uint LANE_SUMS = SUMS > SUBGROUP ? SUMS / SUBGROUP : 1;
const uint EACH = SUMS > SUBGROUP ? 1 : SUBGROUP / SUMS;

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

// Where the block that should start at `row` does start. With IS_WHOLE a matrix has at least ROWS rows, and a block that would
// reach beyond the last one starts earlier: so its rows are at constant distances. Else every row is looked after alone.
uint block_start(uint row, uint rows)
{
    return IS_WHOLE ? min(row, rows - ROWS) : row;
}

// The number (matrix * ROWS + row) * TOKENS + token of the i-th sum that this lane ends with, i < LANE_SUMS.
uint lane_sum(uint i)
{
    return gl_SubgroupInvocationID / EACH * LANE_SUMS + i;
}

// Whether it is this lane's to store. With two matrices a lane of the first one's has the second one's sum as well.
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

#ifdef OTHER
#include "lib/gemv_other.glsl"
#else

// vec4s of columns in a piece
uint piece_vecs(const uint format)
{
    return 32 / format_bits(format);
}

// ... and those that take() gives at once.
uint take_vecs(const uint format)
{
    return format_code_bits(format) == 4 ? 2 : 1;
}

// Whether odd columns have sums of their own.
bool sums_odd_apart(const uint format)
{
    return HAS_DENORM && format_code_bits(format) == 4;
}

// A piece of each row as it lies in memory, with its group's scale and bias or, without DENORM, the words that hold them.
struct Step {
    uvec4 q[MAX_ROWS];
    uint scales[MAX_ROWS], biases[MAX_ROWS];
    uint odd; // bit r: the group's place in those words
};

void begin_step(out Step s)
{
    s.odd = 0;
}

// Piece `piece` counted from `weight` on as row r's, with what number `group` of the scales and biases is.
void load_at(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint piece, uint group)
{
    s.q[r] = Words4(weight).v[piece];
    if (format_is_affine(format)) {
#ifdef DENORM
        s.scales[r] = uint(Shorts(scales).v[group]);
        s.biases[r] = uint(Shorts(biases).v[group]);
#else
        s.scales[r] = Words(scales).v[group >> 1];
        s.biases[r] = Words(biases).v[group >> 1];
        s.odd |= (group & 1u) << r;
#endif
    }
}

// Piece i of row r's matrix, whose row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint row_at, uint i)
{
    uint cols = 4 * piece_vecs(format), shift = format_group_shift(format);
    load_at(s, r, format, weight, scales, biases, row_at / cols + i, (row_at >> shift) + (i * cols >> shift));
}

#ifdef DENORM
// What load_at counts from.
uvec2 piece_address(const uint format, uvec2 weight, uint piece)
{
    return addr_at(weight, piece, 4);
}

uvec2 group_address(const uint format, uvec2 scales, uint group)
{
    return addr_at(scales, group, 1);
}

void add_places(inout Step s, uint first, uint group)
{
}

uint group_shift(const uint format)
{
    return format_group_shift(format);
}

// Whether the next step's groups are whole groups away.
bool steps_by_groups(const uint format)
{
    return (piece_step() * 4 * piece_vecs(format)) % (1u << format_group_shift(format)) == 0;
}
#endif

float bf16_of(uint pair, bool odd)
{
    return uintBitsToFloat(odd ? pair & 0xffff0000u : pair << 16);
}

// The first columns of what is left of a piece, four or eight, as described above, or the weights themselves. What they are made of is rotated away.
void take(const uint format, inout uvec4 q, out vec4 low, out vec4 high)
{
    high = vec4(0.0);
    if (HAS_DENORM && format_code_bits(format) == 4) {
        uint later = q.x >> 8;
        vec2 a = codes_of(q.x & 0x000f000fu), b = codes_of(q.x & 0x00f000f0u);
        vec2 c = codes_of(later & 0x000f000fu), d = codes_of(later & 0x00f000f0u);
        low = vec4(a.x, b.x, c.x, d.x);
        high = vec4(a.y, b.y, c.y, d.y);
        q = q.yzwx;
    } else if (HAS_DENORM && format_code_bits(format) == 8) {
        vec2 a = codes_of(q.x & 0x00ff00ffu), b = codes_of((q.x >> 8) & 0x00ff00ffu);
        low = vec4(a.x, b.x, a.y, b.y);
        q = q.yzwx;
    } else if (format_code_bits(format) == 4) {
        vec2 a = unpackHalf2x16(((q.x << 6) & 0x03c003c0u) | 0x3c003c00u);
        vec2 b = unpackHalf2x16(((q.x << 2) & 0x03c003c0u) | 0x3c003c00u);
        vec2 c = unpackHalf2x16(((q.x >> 2) & 0x03c003c0u) | 0x3c003c00u);
        vec2 d = unpackHalf2x16(((q.x >> 6) & 0x03c003c0u) | 0x3c003c00u);
        low = vec4(a.x, b.x, c.x, d.x);
        high = vec4(a.y, b.y, c.y, d.y);
        q = q.yzwx;
    } else if (format_code_bits(format) == 8) {
        vec2 a = unpackHalf2x16(((q.x << 2) & 0x03fc03fcu) | 0x3c003c00u);
        vec2 b = unpackHalf2x16(((q.x >> 6) & 0x03fc03fcu) | 0x3c003c00u);
        low = vec4(a.x, b.x, a.y, b.y);
        q = q.yzwx;
    } else if (format == FORMAT_BF16) {
        low = vec4(bf16_of(q.x, false), bf16_of(q.x, true), bf16_of(q.y, false), bf16_of(q.y, true));
        q = q.zwxy;
    } else {
        low = uintBitsToFloat(q);
    }
}

// Four products, of the even and the odd columns.
void dot_on(const uint format, vec4 w, vec4 x, inout float even, inout float odd)
{
    if (sums_odd_apart(format)) {
        even = fma(w.z, x.z, fma(w.x, x.x, even));
        odd = fma(w.w, x.w, fma(w.y, x.y, odd));
    } else {
        even = fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, even))));
    }
}

// The sums of one step so far.
struct Parts {
    float even[MAX_ACC], odd[MAX_ACC], x[4];
};

// Adds what take() gives; `at`: where its columns are in xs.
void add_columns(inout Parts p, const uint format, inout Step s, uint at)
{
    const uint vecs = take_vecs(format);
    vec4 x[4], y[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        x[t] = xs[at + t * XS_STRIDE];
        p.x[t] = sum_on(x[t], p.x[t]);
        if (vecs == 2) {
            y[t] = xs[at + t * XS_STRIDE + UNITS + 1];
            p.x[t] = sum_on(y[t], p.x[t]);
        }
    }
    [[unroll]] for (uint r = 0; r < MATRICES * ROWS; r++) {
        vec4 low, high;
        take(format, s.q[r], low, high);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            dot_on(format, low, x[t], p.even[i], p.odd[i]);
            if (vecs == 2)
                dot_on(format, high, y[t], p.even[i], p.odd[i]);
        }
    }
}

// Adds one step: columns from 4 * c4 on of the tile.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    const uint n_rows = MATRICES * ROWS, vecs = take_vecs(format), pitch = vecs * (UNITS + 1);
    Parts p;
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        p.even[i] = p.odd[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        p.x[t] = 0.0;
    // All vec4s of a piece lie in different rows of the same column of the transposed layout.
    uint at = xs_index(0, c4);
    if (IS_WHOLE) {
        [[unroll]] for (uint k = 0; k < piece_vecs(format) / vecs; k++)
            add_columns(p, format, s, at + k * pitch);
    } else {
        [[dont_unroll]] for (uint end = at + piece_vecs(format) * (UNITS + 1); at < end; at += pitch)
            add_columns(p, format, s, at);
    }
    [[unroll]] for (uint r = 0; r < n_rows; r++) {
        float scale = 1.0, bias = 0.0;
        if (format_is_affine(format)) {
            bool odd = !HAS_DENORM && (s.odd >> r & 1u) != 0;
            scale = bf16_of(s.scales[r], odd);
            bias = bf16_of(s.biases[r], odd);
            scale *= HAS_DENORM ? 16777216.0 : float(1u << format_code_bits(format));
            bias -= HAS_DENORM ? 0.0 : scale;
        }
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            float part = sums_odd_apart(format) ? fma(p.odd[i], 0.0625, p.even[i]) : p.even[i];
            acc[i] = format_is_affine(format) ? fma(scale, part, fma(bias, p.x[t], acc[i])) : acc[i] + part;
        }
    }
}

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
// load_step with IS_WHOLE, of piece `first` + step * piece_step(): all of a matrix at constant distances from one address for
// the weights and one for each of scales and biases. With an address for each load they would be a tenth of all instructions.
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

// Rows beyond the last one are another block's as well: with STEPS no condition has to stand around these two.
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

// STREAM: the row and the part of it that are asked for next, into `now`. Other subgroups work while a lane waits: a second
// step under way costs registers, and with them subgroups.
uint ahead_row, ahead_part;

void ask_ahead(const uint format, Matrix m[MATRICES], uint end)
{
    const uint parts = TILE / (4 * piece_vecs(format)) / piece_step();
    uint piece = ahead_part * piece_step() + first_piece();
    if (ahead_row < end) {
        if (steps_by_groups(format))
            load_held(now, format, m, ahead_row, piece, 0);
        else
            load_step(now, format, m, ahead_row, 0, piece);
    }
    ahead_part++;
    if (ahead_part == parts) {
        ahead_part = 0;
        ahead_row += SUBGROUPS / SPLIT * ROWS;
    }
}

void add_stream_as(inout float acc[MAX_ACC], const uint format, Matrix m[MATRICES], uint end)
{
    const uint vecs = piece_vecs(format), parts = TILE / (4 * vecs) / piece_step();
    [[dont_unroll]] for (uint i = 0; i < parts; i++) {
        add_step(acc, format, now, (i * piece_step() + first_piece()) * vecs);
        ask_ahead(format, m, end);
    }
}

// STREAM: begins with the rows from `row` on of this subgroup's blocks, up to `end`; call it before the barrier that publishes
// the vector.
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

// Adds up SUMS values over the lanes. Of two lanes that add, each goes on with half of the values while there is more than
// one; so a sum costs two exchanges where one by one it would be five. The tree is the same for each value and for any SUMS.
void add_lanes(inout float v[MAX_ACC])
{
    uint n = SUMS;
    [[unroll]] for (uint bit = SUBGROUP / 2; bit > 0; bit /= 2) {
        bool is_high = (gl_SubgroupInvocationID & bit) != 0;
        if (n > 1) {
            n /= 2;
            [[unroll]] for (uint i = 0; i < MAX_ACC / 2; i++)
                if (i < n) {
                    float keep = is_high ? v[i + n] : v[i], give = is_high ? v[i] : v[i + n];
                    v[i] = keep + subgroupShuffleXor(give, bit);
                }
        } else {
            v[0] += subgroupShuffleXor(v[0], bit);
        }
    }
}

// Ends the sums: every lane that stores one has its total, the i-th of its own in acc[i], with two matrices the second one's
// in acc[ROWS + i]. All subgroups of the workgroup call it.
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
