// gemv_pairs.glsl - products of gemv_extended.glsl's pieces on devices that keep float16 denormals.
//
// Numbers are taken in pairs, the two halves of a word. 2, 4, 8 and 16 bits divide a word, so pairs lie 16
// bits apart in the row's own words. Other widths are taken as two streams, the first and the second half of
// the piece; the same 16 bits of both form a word. Shifted and masked, such a word is two float16 numbers:
// - A code that ends below bit 10 is the denormal code 2^(k - 24), k being its lowest bit. One shift serves
//   CODES pairs; the i-th of them has k = i BITS and a sum of its own.
// - A small float has its sign in bit 15, and its exponent and mantissa around bit 10. Its value is right
//   except for a power of two (FACTOR), also for its denormals.
// A piece adds FACTOR scale sum(v x) + bias sum(x).
// In the pictures below a digit is a bit of the code with that number, a dot a zero, x any bit; the highest
// bit comes first. With 4 bits:
//   word                  77776666 55554444 33332222 11110000    seconds above firsts
//   n = 0: & 000f000f     ........ ....4444 ........ ....0000    codes 0 and 4, times 2^-24
//   n = 1: & 00f000f0     ........ 5555.... ........ 1111....    codes 1 and 5, times 2^-20
//   n = 2, 3: >> 8, then the same

const uint HALF = PIECE_COLS / 2;
const bool IS_STREAMS = 32 % BITS != 0;
const uint APART = IS_STREAMS ? HALF : 16 / BITS; // columns between the numbers of a pair
const uint CODES = !IS_AFFINE || BITS > 5 ? 1 : BITS == 2 ? 4 : BITS == 3 ? 3 : 2;
// CODES = 1: one sum for the first numbers of the pairs and one for the second, or one for each group
const uint N_SUMS = CODES > 1 ? CODES : 2;
const float FACTOR = IS_AFFINE ? 16777216.0 : SCHEME == SCHEME_E2M1 ? 16384.0 : SCHEME == SCHEME_E4M3 ? 256.0
    : 1.0;

// Returns bits 16 * j .. of the first numbers of all pairs, and above them those of the second numbers, for
// row r's piece.
uint sixteen(Step s, uint r, uint j)
{
    uint v = s.q[r * MAX_WORDS + (IS_STREAMS ? j / 2 : j)];
    if (IS_STREAMS) {
        uint k = j + HALF * BITS / 16, second = s.q[r * MAX_WORDS + k / 2];
        v = (j % 2 == 0 ? v & 0xffffu : v >> 16) | (k % 2 == 0 ? second << 16 : second & 0xffff0000u);
    }
    return v;
}

// Returns the codes of pair n. One that continues in the next 16 bits is put together. One half, 5 bits, n =
// 3 (k = 5, by = 10):
//   16 bits j + 1, then j                  66555554 44443333    32222211 11100000
//   j >> 10                                xxxxxxxx xx322222
//   & mask 03e0 & here 003f                ........ ..3.....
//   (j + 1) << 6                           54444433 33xxxxxx
//   & mask 03e0 & ~here                    ......33 33......
//   together                               ......33 333.....    code 3, times 2^(5 - 24)
uint two_codes(Step s, uint r, uint n)
{
    uint bit = n * BITS % 16, k = bit / BITS % CODES * BITS, by = bit - k, j = n * BITS / 16;
    uint mask = ((1u << BITS) - 1u << k) * 0x10001u, v = sixteen(s, r, j) >> by & mask;
    if (bit + BITS > 16) {
        uint here = ((1u << 16 - by) - 1u) * 0x10001u;
        v = v & here | sixteen(s, r, j + 1) << 16 - by & mask & ~here;
    }
    return v;
}

// Returns the E4M3 number in byte 0 or 1 of each half of a word as float16, value / 256:
//   byte       seeeemmm
//   float16    s.eeeemm m.......
uint two_e4m3(uint two, uint byte)
{
    return byte == 1 ? two & 0x80008000u | two >> 1 & 0x3f803f80u
        : two << 8 & 0x80008000u | two << 7 & 0x3f803f80u;
}

// Returns the bits of a where mask has ones (b ^ a ^ b = a), else those of b (b ^ 0). Compilers make one
// instruction of this form.
uint choose_bits(uint mask, uint a, uint b)
{
    return b ^ (a ^ b) & mask;
}

// Returns the i-th of the four E2M1 numbers in each half of a word as float16. All numbers of one parity are
// moved at once (seem: sign, two bits of exponent, mantissa):
//   a byte, two numbers               SEEMseem
//   i even: bit 7 of << 4, else << 1  sxxxeemx              the lower number
//   i odd: bit 7 of it, else >> 3     SxxxEEMx              the upper one
//   as the upper byte, & 8e00         s...eem. ........     value 2^-14
uint two_e2m1(uint two, uint i)
{
    uint high = i % 2 == 0 ? choose_bits(0x80808080u, two << 4, two << 1)
        : choose_bits(0x80808080u, two, two >> 3);
    return (i < 2 ? high << 8 : high) & 0x8e008e00u;
}

// Returns the numbers of pair n.
vec2 two_numbers(Step s, uint r, uint n)
{
    uint v;
    if (IS_AFFINE)
        v = two_codes(s, r, n);
    else if (SCHEME == SCHEME_E2M1)
        v = two_e2m1(sixteen(s, r, n / 4), n % 4);
    else if (SCHEME == SCHEME_E4M3)
        v = two_e4m3(sixteen(s, r, n / 2), n % 2);
    else
        v = sixteen(s, r, n);
    return codes_of(v);
}

// Returns the sums that they belong to.
uvec2 sums_of(uint n)
{
    if (HAS_TWO_GROUPS)
        return uvec2(n / (HALF / 2));
    return CODES > 1 ? uvec2(n * BITS % 16 / BITS % CODES) : uvec2(0, 1);
}

// The sums of one step so far.
struct Parts {
    float of[4 * MAX_ACC], x[4];
};

// Returns the columns of pairs 4 * k .. of a piece that begins at `at` in xs: those of the first numbers,
// those of the second.
void columns_of(uint at, uint k, out vec4 first, out vec4 second)
{
    if (APART >= 4) {
        uint col = 4 * k / APART * 2 * APART + 4 * k % APART;
        first = xs[at + col / 4 * (UNITS + 1)];
        second = xs[at + (col + APART) / 4 * (UNITS + 1)];
    } else {
        vec4 a = xs[at + 2 * k * (UNITS + 1)], b = xs[at + (2 * k + 1) * (UNITS + 1)];
        first = APART == 2 ? vec4(a.xy, b.xy) : vec4(a.xz, b.xz);
        second = APART == 2 ? vec4(a.zw, b.zw) : vec4(a.yw, b.yw);
    }
}

// Adds pairs 4 * k ..; at: place of the piece in xs.
void add_columns(inout Parts p, Step s, uint at, uint k)
{
    vec4 x[4], y[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        columns_of(at + t * XS_STRIDE, k, x[t], y[t]);
        if (IS_AFFINE)
            p.x[t] = sum_on(y[t], sum_on(x[t], p.x[t]));
    }
    [[unroll]] for (uint r = 0; r < MATRICES * ROWS; r++)
        [[unroll]] for (uint j = 0; j < 4; j++) {
            vec2 w = two_numbers(s, r, 4 * k + j);
            uvec2 to = sums_of(4 * k + j) * MAX_ACC + r * TOKENS;
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                p.of[to.x + t] = fma(w.x, x[t][j], p.of[to.x + t]);
                p.of[to.y + t] = fma(w.y, y[t][j], p.of[to.y + t]);
            }
        }
}

// Returns row r's scale twice, or its two scales.
vec2 scales_of(Step s, uint r)
{
    if (HAS_TWO_GROUPS) {
        uint both = s.scales[r];
        vec2 scales = codes_of(two_e4m3((both | both << 8) & 0x00ff00ffu, 0)) * 256.0;
        return HAS_FACTOR ? scales * uintBitsToFloat(s.biases[r]) : scales;
    }
    return vec2(HAS_SCALES ? scale_in(s.scales[r], SCALE_SHIFT == 1 ? 0 : s.places >> 2 * r & 3u) : 1.0);
}

// Adds one step, columns from 4 * c4 on of the tile.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    Parts p;
    [[unroll]] for (uint i = 0; i < N_SUMS * MAX_ACC; i++)
        p.of[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        p.x[t] = 0.0;
    // The vec4s of a piece lie in different rows of one column of the transposed layout.
    [[unroll]] for (uint k = 0; k < HALF / 4; k++)
        add_columns(p, s, xs_index(0, c4), k);
    [[unroll]] for (uint r = 0; r < MATRICES * ROWS; r++) {
        vec2 scales = scales_of(s, r) * FACTOR;
        float bias = IS_AFFINE ? scale_in(s.biases[r], SCALE_SHIFT == 1 ? 0 : s.places >> 2 * r & 3u) : 0.0;
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            float first = p.of[i], second = p.of[MAX_ACC + i];
            if (CODES > 1) {
                first = second = 0.0;
                [[unroll]] for (uint k = CODES; k > 0; k--)
                    first = fma(first, 1.0 / float(1u << BITS), p.of[(k - 1) * MAX_ACC + i]);
            }
            acc[i] = IS_AFFINE ? fma(bias, p.x[t], acc[i]) : acc[i];
            if (HAS_TWO_GROUPS)
                acc[i] = fma(scales.x, first, fma(scales.y, second, acc[i]));
            else
                acc[i] = fma(scales.x, first + second, acc[i]);
        }
    }
}
