// gemv_extended.glsl - gemv_lanes.glsl's pieces for matrices that are all in one extended format. A piece is
// 32 columns of a row, 16 with 8-bit codes, 8 with 16-bit numbers: two to six whole words. With groups of 16
// a piece is two of them if DENORM, else one. gemv_pairs.glsl and gemv_mantissas.glsl compute with the
// pieces.

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Words2 { uvec2 v[]; };

#ifdef DENORM
const bool HAS_TWO_GROUPS = GROUP_SHIFT == 4;
const uint PIECE_COLS = BITS == 16 ? 8 : BITS == 8 ? 16 : 32;
#else
const bool HAS_TWO_GROUPS = false;
const uint PIECE_COLS = BITS == 16 ? 8 : BITS == 8 || GROUP_SHIFT == 4 ? 16 : 32;
#endif
const uint PIECE_WORDS = PIECE_COLS * BITS / 32;
const uint MAX_WORDS = 6;

// A piece of each row as it lies in memory, with its group's scale and bias or the words that contain them.
// The factor of scales that have one is in `biases`.
struct Step {
    uint q[MAX_ROWS * MAX_WORDS + 1];
    uint scales[MAX_ROWS], biases[MAX_ROWS];
    uint places; // two bits a row: the group's place in those words
#ifdef WITH_Q4
    uint odd; // used by gemv_basic.glsl
#endif
};

void begin_step(out Step s)
{
    s.places = 0;
#ifdef WITH_Q4
    s.odd = 0;
#endif
}

uint piece_vecs(const uint format)
{
    return PIECE_COLS / 4;
}

// Returns the word that contains number i of an array of scales or biases, or the number itself; with two
// groups in a piece, if both fit a word, also the next number.
uint scale_at(uvec2 p, uint i)
{
#ifdef DENORM
    if (SCALE_SHIFT == 1 || SCALE_SHIFT == 0 && HAS_TWO_GROUPS)
        return uint(int(Shorts(p).v[HAS_TWO_GROUPS ? i >> 1 : i]));
#endif
    return scale_word(p, i);
}

// Loads piece `piece`, counted from `weight` on, as row r's, with scale and bias `group`, counted from
// `scales` and `biases` on.
void load_at(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint piece,
             uint group)
{
    uint to = r * MAX_WORDS;
    if (PIECE_WORDS == 4) {
        uvec4 v = Words4(weight).v[piece];
        [[unroll]] for (uint j = 0; j < 4; j++)
            s.q[to + j] = v[j];
    } else if (PIECE_WORDS % 2 == 0) {
        [[unroll]] for (uint j = 0; j < PIECE_WORDS / 2; j++) {
            uvec2 v = Words2(weight).v[piece * (PIECE_WORDS / 2) + j];
            s.q[to + 2 * j] = v.x;
            s.q[to + 2 * j + 1] = v.y;
        }
    } else {
        [[unroll]] for (uint j = 0; j < PIECE_WORDS; j++)
            s.q[to + j] = Words(weight).v[piece * PIECE_WORDS + j];
    }
    s.places |= (group & 3u) << 2 * r;
    if (HAS_SCALES)
        s.scales[r] = scale_at(scales, group);
    if (IS_AFFINE)
        s.biases[r] = scale_at(biases, group);
    else if (HAS_FACTOR)
        s.biases[r] = Words(biases).v[0];
}

// Loads piece i of row r's matrix; the row starts at element `row_at`.
void load_piece(inout Step s, uint r, const uint format, uvec2 weight, uvec2 scales, uvec2 biases,
                uint row_at, uint i)
{
    load_at(s, r, format, weight, scales, biases, row_at / PIECE_COLS + i,
            (row_at >> GROUP_SHIFT) + (i * PIECE_COLS >> GROUP_SHIFT));
}

#ifdef DENORM
// Both return what load_at counts from. Groups are counted from the word that contains the first one's scale.
uvec2 piece_address(const uint format, uvec2 weight, uint piece)
{
    return addr_at(weight, piece * PIECE_WORDS, 2);
}

uvec2 group_address(const uint format, uvec2 scales, uint group)
{
    if (SCALE_SHIFT == 0)
        return addr_add(scales, HAS_TWO_GROUPS ? group : group & ~3u);
    return addr_at(scales, group, SCALE_SHIFT);
}

// Sets the first group's place in that word, for the rows of a matrix from the first-th on.
void add_places(inout Step s, uint first, uint group)
{
    if (SCALE_SHIFT == 0 && !HAS_TWO_GROUPS)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            s.places |= (group & 3u) << 2 * (first + r);
}

uint group_shift(const uint format)
{
    return GROUP_SHIFT;
}

// Returns whether the next step's groups are whole groups away, and other rows' scales whole words.
bool steps_by_groups(const uint format)
{
    const uint cols = piece_step() * PIECE_COLS;
    return cols % (1u << GROUP_SHIFT) == 0 &&
           (SCALE_SHIFT > 0 || HAS_TWO_GROUPS || ((cols | TILE) >> GROUP_SHIFT) % 4 == 0);
}

#include "lib/gemv_pairs.glsl"
#else
#include "lib/gemv_mantissas.glsl"
#endif
