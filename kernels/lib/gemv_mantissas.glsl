// gemv_mantissas.glsl - products of gemv_extended.glsl's pieces on devices that may flush float16 denormals.
//
// Affine codes go to the top of a mantissa, v = 1 + code / 2^BITS, whatever their width. With m the weight
// for v = 1.5, a piece adds 2^BITS scale sum((v - 1.5) x) + m sum(x). The 1.5 is subtracted for two columns
// at a time: half an instruction a weight; otherwise the rounding errors of sum(v x) would be five times as
// large. Small floats go to the exponent and mantissa bits of a float: v = value / FACTOR
// (dequant_extended.glsl, float_of). The factor is applied to the sum of a piece.

// The bit above a number's highest one when it is in place.
const uint TOP = IS_AFFINE ? 23 : SCHEME == SCHEME_E2M1 ? 26 : 28;
const uint FACTOR = IS_AFFINE ? 1u << BITS : SCHEME == SCHEME_E2M1 ? 4 : SCHEME == SCHEME_E4M3 ? 256 : 1;

// Returns the number that begins at bit `from` of the first word and may continue in the next one. With 5
// bits and from = 10, code 2 (a digit is a bit of that code, a dot a zero):
//   word                      66555554 44443333 32222211 11100000
//   << 8                      44443333 32222211 11100000 ........    highest bit below TOP = 23
//   & 007c0000                ........ .22222.. ........ ........    | 3f800000: 1 + code / 32
float value_in(uint word, uint next_word, uint from)
{
    uint to = TOP - BITS, mask = (1u << BITS) - 1u << to, bits = word;
    if (from + BITS > 32) {
        bits = (word >> from | next_word << (32 - from & 31u)) << to;
    } else {
        bits = from > to ? word >> (from - to & 31u) : word << (to - from & 31u);
    }
    float v;
    if (IS_AFFINE) {
        v = uintBitsToFloat(bits & mask | 0x3f800000u);
    } else {
        // FACTOR's exponents leave the bits of the number free.
        const uint least = SCHEME == SCHEME_E2M1 ? 124 : 112, sign = 1u << TOP - 1;
        float f = uintBitsToFloat(bits & (mask ^ sign) | least << 23);
        v = with_sign(min(f, 2.0 * f - uintBitsToFloat(least + 1u << 23)), bits << 32 - TOP & 0x80000000u);
    }
    return v;
}

// Returns columns 4 * k .. of row r's piece.
vec4 four_of(Step s, uint r, uint k)
{
    vec4 v;
    if (BITS == 16) {
        v = vec4(unpackHalf2x16(s.q[r * MAX_WORDS + 2 * k]), unpackHalf2x16(s.q[r * MAX_WORDS + 2 * k + 1]));
    } else {
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint bit = (4 * k + j) * BITS, at = r * MAX_WORDS + bit / 32;
            v[j] = value_in(s.q[at], s.q[at + 1], bit % 32);
        }
    }
    return v;
}

// Adds one step, columns from 4 * c4 on of the tile. A row and token have one sum for the even pairs of
// columns and one for the odd ones.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    const uint n_rows = MATRICES * ROWS;
    vec2 parts[MAX_ACC];
    float sum[4];
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        parts[i] = vec2(0.0);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        sum[t] = 0.0;
    // The vec4s of a piece lie in different rows of one column of the transposed layout.
    uint at = xs_index(0, c4);
    [[unroll]] for (uint k = 0; k < PIECE_COLS / 4; k++) {
        vec4 x[4];
        vec2 middles[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            x[t] = xs[at + t * XS_STRIDE + k * (UNITS + 1)];
            vec2 pairs = x[t].xz + x[t].yw;
            middles[t] = -1.5 * pairs;
            sum[t] += pairs.x + pairs.y;
        }
        [[unroll]] for (uint r = 0; r < n_rows; r++) {
            vec4 w = four_of(s, r, k);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                uint i = r * TOKENS + t;
                vec2 before = IS_AFFINE ? middles[t] : parts[i];
                vec2 pairs = fma(w.yw, x[t].yw, fma(w.xz, x[t].xz, before));
                parts[i] = IS_AFFINE ? parts[i] + pairs : pairs;
            }
        }
    }
    float factor = float(FACTOR);
    [[unroll]] for (uint r = 0; r < n_rows; r++) {
        float scale = HAS_SCALES ? scale_in(s.scales[r], s.places >> 2 * r & 3u) : 1.0, middle = 0.0;
        if (HAS_FACTOR)
            scale *= uintBitsToFloat(s.biases[r]);
        if (IS_AFFINE) // the weight for v = 1.5
            middle = scale_in(s.biases[r], s.places >> 2 * r & 3u) + scale * (0.5 * factor);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            float part = factor * (parts[i].x + parts[i].y);
            acc[i] = fma(scale, part, IS_AFFINE ? fma(middle, sum[t], acc[i]) : acc[i]);
        }
    }
}
