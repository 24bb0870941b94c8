// gemv_blocks.glsl - gemv_lanes.glsl's pieces for matrices that are all in one block format: 32 columns
// of a row (dequant_blocks.glsl). A piece's loads are in flight until it is added; its bytes and scales
// are made then. Quarters with one scale add scale * sum((byte - ZERO) x) + bias * sum(x); with DENORM,
// 2^24 scale * sum(byte 2^-24 x) + (bias - ZERO scale) * sum(x). The order of the sums depends on the
// columns alone. (On an H200 it was slower by a quarter to load the bytes of neighbouring lanes' blocks
// as one run of vectors and to take the parts from shared memory.)

struct Step {
    Part parts[MAX_ROWS];
    uint place; // the piece's place in its block, the same in all rows
};

void begin_step(out Step s)
{
    s.place = 0;
}

uint piece_vecs(const uint format)
{
    return 8;
}

// Loads piece i of row r's matrix; the row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    s.place = i % PARTS;
    s.parts[r] = load_piece_of(block_at(weight, row_at / BLOCK_COLS + i / PARTS), s.place);
}

// Whether quarters add a product with sum(x).
#ifdef DENORM
const bool HAS_SUM = HAS_BIAS || ZERO > 0;
#else
const bool HAS_SUM = HAS_BIAS;
#endif

// Returns four bytes minus ZERO, as float16 denormals times 2^-24, or the numbers of four codes.
vec4 numbers_in(uint bytes)
{
    if (HAS_NUMBERS)
        return book_numbers(bytes);
    if (!HAS_DENORM)
        return codes_in(bytes);
    vec2 even = codes_of(bytes & 0x00ff00ffu), odd = codes_of(bytes >> 8 & 0x00ff00ffu);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Adds the quarters of a step, from `first` on, that have a scale in common. x_at: the place of the
// piece's first columns in the tile.
void add_quarters(inout float acc[MAX_ACC], Step s, uint x_at, uint first)
{
    const uint n_rows = MATRICES * ROWS;
    vec2 parts[MAX_ACC];
    float sum[4];
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        parts[i] = vec2(0.0);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        sum[t] = 0.0;
    // Mesa unrolls a loop inside another one only if it begins at a constant. Otherwise it keeps the pieces
    // in memory.
    [[unroll]] for (uint k = 0; k < SCALED; k++) {
        uint j = first + k;
        vec4 x[4], y[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint at = x_at + t * XS_STRIDE + 2 * j * (UNITS + 1);
            x[t] = xs[at];
            y[t] = xs[at + UNITS + 1];
            if (HAS_SUM)
                sum[t] = sum_on(y[t], sum_on(x[t], sum[t]));
        }
        [[unroll]] for (uint r = 0; r < n_rows; r++) {
            uvec2 bytes = bytes_of(s.parts[r].head, s.parts[r].low[j], s.parts[r].high[j],
                                   piece_part(s.place, j), piece_quarter(s.place, j));
            vec4 v = numbers_in(bytes.x), w = numbers_in(bytes.y);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                uint i = r * TOKENS + t;
                parts[i] = fma(v.yw, x[t].yw, fma(v.xz, x[t].xz, parts[i]));
                parts[i] = fma(w.yw, y[t].yw, fma(w.xz, y[t].xz, parts[i]));
            }
        }
    }
    [[unroll]] for (uint r = 0; r < n_rows; r++) {
        vec2 scale = piece_scales(s.parts[r].head, s.place, first);
        if (HAS_DENORM && !HAS_NUMBERS)
            scale = vec2(16777216.0 * scale.x, scale.y - float(ZERO) * scale.x);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint i = r * TOKENS + t;
            acc[i] = fma(scale.x, parts[i].x + parts[i].y, HAS_SUM ? fma(scale.y, sum[t], acc[i]) : acc[i]);
        }
    }
}

// Adds one step, columns from 4 * c4 on of the tile.
void add_step(inout float acc[MAX_ACC], const uint format, Step s, uint c4)
{
    // The vec4s of a piece lie in different rows of one column of the transposed layout.
    uint at = xs_index(0, c4);
    [[unroll]] for (uint j = 0; j < QUARTERS; j += SCALED)
        add_quarters(acc, s, at, j);
}
