// gemv_lanes.glsl - the products of gemv.glsl with columns on lanes: a piece is 16 bytes of a row, 32, 16, 8 or 4
// columns by format, or eight codes where their width is neither 4 nor 8 bits. Lanes take neighbouring pieces, SPLIT
// subgroups a share each, and subgroup reductions end it.
//
// What a GPU waits for in a product of a few microseconds is memory and instructions, not arithmetic. So each lane has
// two steps (a piece of each of its rows) in flight, the first ones before the barrier that publishes the vector; and
// the code is small, loops stay loops: a dispatch finds the instruction caches filled with the kernels before it. (On
// an H200 the same product unrolled to 44 KB of code was slower than a plain loop with half as many loads in flight.)
//
// A code is put into the mantissa of a half: v = 1 + q / 2^bits. Then w = scale q + bias = S v + B, S = 2^bits scale,
// B = bias - S, and a piece (which lies in one group) is S sum(v x) + B sum(x): three instructions a weight, one of
// them an integer's. sum(v x) is about five times as large as the piece's true sum, so a product's rounding errors grow
// as much, to about 1e-6 of the largest output. float32 sums: piece by piece, then lanes, then SPLIT.

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { uvec4 v[]; };

const uint UNITS = TILE / 32;
// One vec4 of padding per row of the transposed layout keeps both its writes and its reads free of bank conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint BLOCK_ROWS = ROWS; // of the SPLIT subgroups that share them

shared vec4 xs[TOKENS * XS_STRIDE];
shared float split_sums[SPLIT > 1 ? SUBGROUPS * MATRICES * ROWS * TOKENS : 1];

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

uint lane_row(uint r)
{
    return r;
}

bool lane_stores(uint r)
{
    return gl_SubgroupID % SPLIT == 0 && gl_SubgroupInvocationID == r % SUBGROUP;
}

// Codes of 4 and 8 bits have a way of their own; others come eight at a time.
bool comes_in_eights(const uint format)
{
    return format_code_bits(format) % 4 != 0;
}

// vec4s of columns in a piece
uint piece_vecs(const uint format)
{
    return comes_in_eights(format) ? 2 : 32 / format_bits(format);
}

// ... and those that take() gives at once.
uint take_vecs(const uint format)
{
    return comes_in_eights(format) || format_code_bits(format) == 4 ? 2 : 1;
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

// A piece of each row as it lies in memory, with the words that hold its group's scale and bias.
struct Step {
    uvec4 q[MAX_ROWS];
    uint scales[MAX_ROWS], biases[MAX_ROWS];
    uint odd; // bit r: the group's place in those words
};

// Piece i of row r's matrix, whose row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint row_at, uint i)
{
    uint vecs = piece_vecs(format), shift = format_group_shift(format), group = (row_at >> shift) + (i * (4 * vecs) >> shift);
    if (comes_in_eights(format))
        s.q[r] = uvec4(load_codes(format, weight, row_at / 8 + i), 0, 0);
    else
        s.q[r] = Words4(weight).v[row_at / (4 * vecs) + i];
    if (format_is_affine(format)) {
        s.scales[r] = Words(scales).v[group >> 1];
        s.biases[r] = Words(biases).v[group >> 1];
        s.odd |= (group & 1u) << r;
    }
}

float bf16_of(uint pair, bool odd)
{
    return uintBitsToFloat(odd ? pair & 0xffff0000u : pair << 16);
}

// The first columns of what is left of a piece, four or eight, as 1 + q / 2^bits, as codes where they come in eights, or the
// weights themselves. What they are made of is rotated away.
void take(const uint format, inout uvec4 q, out vec4 low, out vec4 high)
{
    high = vec4(0.0);
    if (comes_in_eights(format)) {
        Eight e = affine_eight(format, q.xy, 1.0, 0.0);
        low = e.a;
        high = e.b;
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

float dot_on(vec4 w, vec4 x, float sum)
{
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

float sum_on(vec4 x, float sum)
{
    return sum + ((x.x + x.y) + (x.z + x.w));
}

// Adds one step: columns from 4 * c4 on of the tile.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    const uint n_rows = MATRICES * ROWS, vecs = take_vecs(format);
    float part[MAX_ACC], x_sum[4];
    [[unroll]] for (uint i = 0; i < n_rows * TOKENS; i++)
        part[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        x_sum[t] = 0.0;
    // All vec4s of a piece lie in different rows of the same column of the transposed layout.
    uint at = xs_index(0, c4), end = at + piece_vecs(format) * (UNITS + 1);
    [[dont_unroll]] for (; at < end; at += vecs * (UNITS + 1)) {
        vec4 x[4], y[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            x[t] = xs[at + t * XS_STRIDE];
            x_sum[t] = sum_on(x[t], x_sum[t]);
            if (vecs == 2) {
                y[t] = xs[at + t * XS_STRIDE + UNITS + 1];
                x_sum[t] = sum_on(y[t], x_sum[t]);
            }
        }
        [[unroll]] for (uint r = 0; r < n_rows; r++) {
            vec4 low, high;
            take(format, s.q[r], low, high);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                part[r * TOKENS + t] = dot_on(low, x[t], part[r * TOKENS + t]);
                if (vecs == 2)
                    part[r * TOKENS + t] = dot_on(high, y[t], part[r * TOKENS + t]);
            }
        }
    }
    [[unroll]] for (uint r = 0; r < n_rows; r++) {
        float scale = 1.0, bias = 0.0;
        if (format_is_affine(format)) {
            bool odd = (s.odd >> r & 1u) != 0;
            scale = bf16_of(s.scales[r], odd);
            bias = bf16_of(s.biases[r], odd);
            if (!comes_in_eights(format)) {
                scale *= float(1u << format_code_bits(format));
                bias -= scale;
            }
        }
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            acc[i] = format_is_affine(format) ? fma(scale, part[i], fma(bias, x_sum[t], acc[i])) : acc[i] + part[i];
        }
    }
}

Step now, next; // of this lane

// Piece i of the tile that starts at column `from`.
void load_step(out Step s, const uint format, Matrix m[MATRICES], uint row, uint from, uint i)
{
    s.odd = 0;
    [[unroll]] for (uint k = 0; k < MATRICES; k++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            load_piece(s, k * ROWS + r, format, m[k].weight, m[k].scales, m[k].biases,
                       min(row + r, m[k].rows - 1) * m[k].cols, from / (4 * piece_vecs(format)) + i);
}

void fetch_as(const uint format, Matrix m[MATRICES], uint row, uint from, uint n)
{
    uint pieces = n / (4 * piece_vecs(format)), i = first_piece();
    if (i < pieces)
        load_step(now, format, m, row, from, i);
    if (i + piece_step() < pieces)
        load_step(next, format, m, row, from, i + piece_step());
}

void add_as(inout float acc[MAX_ACC], const uint format, Matrix m[MATRICES], uint row, uint from, uint n)
{
    uint vecs = piece_vecs(format), pieces = n / (4 * vecs);
    [[dont_unroll]] for (uint i = first_piece(); i < pieces; i += piece_step()) {
        add_step(acc, format, now, i * vecs);
        now = next;
        if (i + 2 * piece_step() < pieces)
            load_step(next, format, m, row, from, i + 2 * piece_step());
    }
}

void fetch_product(Matrix m[MATRICES], uint row, uint from, uint n)
{
    BY_FORMAT(m[0].format, fetch_as(FORMAT, m, row, from, n))
}

void add_product(inout float acc[MAX_ACC], Matrix m[MATRICES], uint row, uint from, uint n)
{
    BY_FORMAT(m[0].format, add_as(acc, FORMAT, m, row, from, n))
}

// Ends the sums: every lane that stores one has its total. All subgroups of the workgroup call it.
void finish_product(inout float acc[MAX_ACC])
{
    const uint n = MATRICES * ROWS * TOKENS;
    [[unroll]] for (uint i = 0; i < n; i++)
        acc[i] = subgroupAdd(acc[i]);
    if (SPLIT == 1)
        return;
    if (gl_SubgroupInvocationID == 0)
        [[unroll]] for (uint i = 0; i < n; i++)
            split_sums[gl_SubgroupID * n + i] = acc[i];
    barrier();
    uint first = gl_SubgroupID - gl_SubgroupID % SPLIT;
    [[unroll]] for (uint i = 0; i < n; i++) {
        acc[i] = split_sums[first * n + i];
        [[unroll]] for (uint k = 1; k < SPLIT; k++)
            acc[i] += split_sums[(first + k) * n + i];
    }
}
