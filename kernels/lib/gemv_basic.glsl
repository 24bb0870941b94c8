// gemv_basic.glsl - gemv_lanes.glsl's pieces of matrices in the basic formats: 16 bytes.

// vec4s of columns in a piece
uint piece_vecs(const uint format)
{
    return 32 / format_bits(format);
}

// vec4s of columns that one take() gives
uint take_vecs(const uint format)
{
    return format_code_bits(format) == 4 ? 2 : 1;
}

// Returns whether odd columns have sums of their own.
bool sums_odd_apart(const uint format)
{
    return HAS_DENORM && format_code_bits(format) == 4;
}

// A piece of each row as it lies in memory, with its group's scale and bias or, without DENORM, the words
// that contain them. WITH_Q4 uses the step of gemv_extended.glsl instead.
#ifndef WITH_Q4
struct Step {
    uvec4 q[MAX_ROWS];
    uint scales[MAX_ROWS], biases[MAX_ROWS];
    uint odd; // bit r: the group's place in row r's words
};

void begin_step(out Step s)
{
    s.odd = 0;
}
#endif

// Loads piece `piece`, counted from `weight` on, as row r's, with scale and bias `group`, counted from
// `scales` and `biases` on.
void load_at(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint piece,
             uint group)
{
#ifdef WITH_Q4
    put_words(s, r, Words4(weight).v[piece]);
#else
    s.q[r] = Words4(weight).v[piece];
#endif
    if (format_is_affine(format)) {
#ifdef DENORM
        s.scales[r] = uint(int(Shorts(scales).v[group]));
        s.biases[r] = uint(int(Shorts(biases).v[group]));
#else
        s.scales[r] = Words(scales).v[group >> 1];
        s.biases[r] = Words(biases).v[group >> 1];
        s.odd |= (group & 1u) << r;
#endif
    }
}

// Loads piece i of row r's matrix; the row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    uint cols = 4 * piece_vecs(format), shift = format_group_shift(format);
    load_at(s, r, format, weight, scales, biases, row_at / cols + i, (row_at >> shift) + (i * cols >> shift));
}

#ifdef DENORM
// Both return what load_at counts from.
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

// Returns whether the next step's groups are whole groups away.
bool steps_by_groups(const uint format)
{
    return (piece_step() * 4 * piece_vecs(format)) % (1u << format_group_shift(format)) == 0;
}
#endif

float bf16_of(uint pair, bool odd)
{
    uint first = pair << 16, second = pair & 0xffff0000u;
    return uintBitsToFloat(odd ? second : first);
}

// Returns the next four or eight columns of a piece: codes as described in gemv_lanes.glsl, or the weights
// themselves. Rotates the piece, so that the following columns come first.
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

// Adds four products to the sums of even and odd columns.
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

// Adds the columns of one take(); at: their place in xs.
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
#ifdef WITH_Q4
        uvec4 q = words_of(s, r);
        take(format, q, low, high);
        put_words(s, r, q);
#else
        take(format, s.q[r], low, high);
#endif
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            dot_on(format, low, x[t], p.even[i], p.odd[i]);
            if (vecs == 2)
                dot_on(format, high, y[t], p.even[i], p.odd[i]);
        }
    }
}

// Whether a loop takes the two halves of a piece: a sixth less code for one more instruction in forty. It
// pays for long rows: a model with such rows (DeepSeek-V3) has more code in a layer than the instruction
// cache holds. With short ones (35B-A3B) it costs 1 %.
const bool IN_HALVES = STREAM > 0;

// Moves on after the first half, which take() has rotated to the end of the piece: the second half takes its
// place.
void next_half(inout Step s)
{
    [[unroll]] for (uint r = 0; r < MATRICES * ROWS; r++) {
#ifdef WITH_Q4
        uvec4 q = words_of(s, r);
        put_words(s, r, q.xyxy);
#else
        s.q[r].zw = s.q[r].xy;
#endif
    }
}

// Adds one step, columns from 4 * c4 on of the tile.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    const uint n_rows = MATRICES * ROWS, vecs = take_vecs(format), pitch = vecs * (UNITS + 1);
    const uint takes = piece_vecs(format) / vecs;
    Parts p;
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        p.even[i] = p.odd[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        p.x[t] = 0.0;
    // The vec4s of a piece lie in different rows of one column of the transposed layout.
    uint at = xs_index(0, c4);
    if (IN_HALVES && takes % 2 == 0) {
        [[dont_unroll]] for (uint half_piece = 0; half_piece < 2; half_piece++) {
            [[unroll]] for (uint k = 0; k < takes / 2; k++)
                add_columns(p, format, s, at + k * pitch);
            at += takes / 2 * pitch;
            next_half(s);
        }
    } else if (IS_WHOLE) {
        [[unroll]] for (uint k = 0; k < takes; k++)
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
