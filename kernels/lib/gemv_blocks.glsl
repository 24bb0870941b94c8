// gemv_blocks.glsl - gemv_lanes.glsl's pieces for matrices that are all in one block format. A piece is a
// part of dequant_blocks.glsl: 32 columns of a row. The bytes of neighbouring lanes' blocks, a run, are loaded
// by these lanes together and are in flight until the pieces are added; then they go through shared memory. A half of a part adds scale * sum((byte - ZERO) x) + bias * sum(x). The order of the
// sums depends on the columns alone.

const uint MAX_RUN_LOADS = 4;
struct Step {
    Part parts[MAX_ROWS];
    uvec4 run[MAX_ROWS * MAX_RUN_LOADS]; // this lane's vectors of each row's run
    uint from[MAX_ROWS];                 // where its block begins, in bytes from the run's first vector
    uint place;                          // the part's place in its block, the same in all rows
    bool is_mine;                        // this lane has a piece; others help to load the run
};

void begin_step(out Step s)
{
    s.place = 0;
    s.is_mine = false;
}

uint piece_vecs(const uint format)
{
    return 8;
}

uint row_end; // pieces before the end of the columns that are loaded: runs end there

void begin_row(const uint format, uint end)
{
    row_end = end / 32;
}

// Returns this lane's place among those that share a run.
uint run_lane()
{
    return gl_SubgroupInvocationID % RUN_LANES;
}

// Returns whether the run that has this lane's piece i has any of `pieces`.
bool has_piece(uint i, uint pieces)
{
    return i - run_lane() < pieces;
}

// Loads the run that has piece i of row r's matrix; the row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    uint piece = i - run_lane(), first = piece / PARTS, last = (min(piece + RUN_LANES, row_end) - 1) / PARTS;
    uint high, low;
    umulExtended(row_at / BLOCK_COLS + first, BLOCK_BYTES, high, low);
    uvec2 at = addr_add(weight + uvec2(0, high), low);
    uint skip = at.x & 15u, last_vec = (skip + (last - first + 1) * BLOCK_BYTES - 1) / 16;
    [[unroll]] for (uint j = 0; j < RUN_LOADS; j++)
        s.run[r * MAX_RUN_LOADS + j] =
            Words4(uvec2(at.x - skip, at.y)).v[min(j * RUN_LANES + run_lane(), last_vec)];
    s.from[r] = skip + (i / PARTS - first) * BLOCK_BYTES;
    s.place = i % PARTS;
    s.is_mine = i < row_end;
}

// Puts the runs in shared memory and takes this lane's parts from there.
void take_parts(inout Step s)
{
    uint mine = (gl_SubgroupID * (SUBGROUP / RUN_LANES) + gl_SubgroupInvocationID / RUN_LANES) *
                RUN_ROWS * RUN_VECS;
    [[unroll]] for (uint r = 0; r < RUN_ROWS; r++)
        [[unroll]] for (uint j = 0; j < RUN_LOADS; j++) {
            uint i = j * RUN_LANES + run_lane();
            if (i < RUN_VECS)
                runs[mine + r * RUN_VECS + i] = s.run[r * MAX_RUN_LOADS + j];
        }
    subgroupBarrier();
    [[unroll]] for (uint r = 0; r < RUN_ROWS; r++) {
        uint words = 4 * (mine + r * RUN_VECS) + s.from[r] / 4;
        s.parts[r] = load_part_of(Block(uvec2(words, 0), s.from[r] & 3u), s.place);
    }
    subgroupBarrier(); // before the next step's runs
}

// Whether a half adds a product with sum(x).
#ifdef DENORM
const bool HAS_SUM = HAS_BIAS || ZERO > 0;
#else
const bool HAS_SUM = HAS_BIAS;
#endif

// Returns four bytes minus ZERO, or, as float16 denormals, the bytes times 2^-24.
vec4 numbers_in(uint bytes)
{
    if (!HAS_DENORM)
        return codes_in(bytes);
    vec2 even = codes_of(bytes & 0x00ff00ffu), odd = codes_of(bytes >> 8 & 0x00ff00ffu);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// Adds half k of a step. x_at: the place of the piece's first columns in the tile.
void add_half(inout float acc[MAX_ACC], Step s, uint x_at, uint k)
{
    const uint n_rows = MATRICES * ROWS;
    vec2 parts[MAX_ACC];
    float sum[4];
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        parts[i] = vec2(0.0);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        sum[t] = 0.0;
    [[unroll]] for (uint j = 2 * k; j < 2 * k + HALVES; j++) {
        vec4 x[4], y[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint at = x_at + t * XS_STRIDE + 2 * j * (UNITS + 1);
            x[t] = xs[at];
            y[t] = xs[at + UNITS + 1];
            if (HAS_SUM)
                sum[t] = sum_on(y[t], sum_on(x[t], sum[t]));
        }
        [[unroll]] for (uint r = 0; r < n_rows; r++) {
            uvec2 bytes = bytes_of(s.parts[r].head, s.parts[r].low[j], s.parts[r].high[j], s.place, j);
            vec4 v = numbers_in(bytes.x), w = numbers_in(bytes.y);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                uint i = r * TOKENS + t;
                parts[i] = fma(v.yw, x[t].yw, fma(v.xz, x[t].xz, parts[i]));
                parts[i] = fma(w.yw, y[t].yw, fma(w.xz, y[t].xz, parts[i]));
            }
        }
    }
    [[unroll]] for (uint r = 0; r < n_rows; r++) {
        vec2 scale = scales_of(s.parts[r].head, s.place, k);
        if (HAS_DENORM)
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
    take_parts(s);
    // The vec4s of a piece lie in different rows of one column of the transposed layout.
    uint at = xs_index(0, c4);
    if (s.is_mine)
        [[unroll]] for (uint k = 0; k < HALVES; k++)
            add_half(acc, s, at, k);
}
