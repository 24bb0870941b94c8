// gemm_frag.glsl - gemm.glsl on cooperative matrices for few tokens and 4-bit weights (FORMAT_Q4). Weights go
// from memory straight into the registers of the matrices, without shared memory. ALONG subgroups share the
// columns of their rows, because with few rows a processor would wait otherwise.
//
// For devices whose matrices have the known fragment layout (lib/fragment_layout.glsl). Weights are first
// factors [row][k], inputs second factors [k][token]. The order of a product's columns does not matter if
// both factors use the same one. Of each 128 columns lane q takes 32 q .. 32 q + 31, one piece of 16 bytes of
// 4-bit codes: four columns for each of eight matrices. The inputs are stored to match (stored_col): the
// groups of eight columns 0, 4, 8, 12, then 1, 5, 9, 13 and so on; each group in the order 0, 4, 1, 5, 2, 6,
// 3, 7, in which a word of codes gives two at a time:
//   word                    77776666 55554444 33332222 11110000    codes 7 .. 0
//   & 000f000f              ........ ....4444 ........ ....0000    columns 0 and 4
//   >> 4, & 000f000f        ........ ....5555 ........ ....1111    columns 1 and 5; then >> 8, >> 12
#ifndef GEMM_FRAG_GLSL
#define GEMM_FRAG_GLSL

#include "lib/halves.glsl"
#include "lib/matrices.glsl"
#include "lib/fragment_layout.glsl"

const uint STEP = 128;          // columns of a step
const uint FRAGS = ROWS / 4;    // matrices of a subgroup along the rows, in each half of the block
const uint ACROSS = TOKENS / 4; // matrices along the tokens
const uint SUBGROUPS = WORKGROUP / 32 / ALONG; // subgroups along the rows
const uint BLOCK_ROWS = 32 * FRAGS * SUBGROUPS;
const uint TILE_TOKENS = 16 * ACROSS;
const uint NUMBERS = 2 * FRAGS * ACROSS * 8; // sums of a lane
shared float parts[ALONG > 1 ? ALONG / 2 * SUBGROUPS * 32 * NUMBERS : 1];

// Returns which of the subgroups that share rows this is. The first one gets the sums in the end.
uint part()
{
    return gl_SubgroupID / SUBGROUPS;
}

bool has_sums()
{
    return part() == 0;
}

uint half_row(uint r)
{
    uint i = r % (ROWS / 2);
    return gl_SubgroupID % SUBGROUPS * (16 * FRAGS) + i * 8 + frag_line();
}

// Returns what the lane with the next row has; for even rows.
float next_row(float v)
{
    return subgroupShuffleXor(v, 4);
}

// Returns the value of the row that is stored after this lane's row, if this one is stored at an even place.
float next_stored(float v)
{
    return subgroupShuffleXor(v, 16);
}

uint tile_token(uint t)
{
    return t / 4 * 16 + frag_col(t);
}

MatrixC sum_of[2 * FRAGS][ACROSS];
Matrix matrix_of[2]; // matrix of the first half of the rows, of the second
uint row_of[ROWS];
Run run[ROWS], next_run[ROWS];
vec2 group[ROWS]; // scale and bias of a step
uint at[2 * ACROSS]; // start of the lane's tokens, in groups of eight numbers
// Whether inputs are loaded eight columns ahead. Tiles of more tokens have enough to multiply meanwhile, and
// no registers for it.
const bool AHEAD = ACROSS <= 2;
uvec4 next_x[2 * ACROSS];
// Each row's words with the scales and biases of four steps, one in each lane of a quad; and those of
// the next four steps.
uint scales[ROWS], biases[ROWS], next_scales[ROWS], next_biases[ROWS];

// Starts loading the groups of steps `step` .. step + 3.
void fetch_groups(uint step, uint last)
{
    uint mine = min(step + frag_lane(), last);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        Matrix m = matrix_of[r / (ROWS / 2)];
        uint word = row_of[r] * (m.cols >> 7) + mine;
        next_scales[r] = Words(m.scales).v[word];
        next_biases[r] = Words(m.biases).v[word];
    }
}

void fetch_rows(uint step)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        next_run[r] =
            load_run(FORMAT_Q4, matrix_of[r / (ROWS / 2)], row_of[r], 4 * step + frag_lane());
}

// Returns eight codes as weights, columns 0, 4, 1, 5, 2, 6, 3, 7.
uvec4 stored_halves(uint word, vec2 group)
{
    f16vec2 s = f16vec2(group.x), b = f16vec2(group.y);
    uvec4 e;
    [[unroll]] for (uint i = 0; i < 4; i++)
        e[i] = packFloat2x16(two_of((word >> (4 * i)) & 0x000f000fu, s, b));
    return e;
}

// Returns scale and bias of this lane's columns of a row in the i-th of four steps. A word has two groups:
// lanes 0 and 1 use the lower half, 2 and 3 the upper.
vec2 group_of(uint r, uint i)
{
    uint from = gl_SubgroupInvocationID & ~3u | i, shift = (~gl_SubgroupInvocationID & 2u) * 8;
    return vec2(uintBitsToFloat(subgroupShuffle(scales[r], from) << shift & 0xffff0000u),
                uintBitsToFloat(subgroupShuffle(biases[r], from) << shift & 0xffff0000u));
}

// Starts loading a group of eight of the lane's columns; a step has four such groups.
void fetch_x(uint eight, const uint across, uvec2 x)
{
    [[unroll]] for (uint j = 0; j < 2 * across; j++)
        next_x[j] = Halves(x).v[at[j] + 4 * eight];
}

// Adds the products of the c-th eight of a lane's columns for `across` matrices along the tokens. c and
// across are constants.
void multiply_eight(uint step, const uint c, const uint across, uvec2 x, uint last)
{
    uvec4 v[2 * ACROSS];
    if (!AHEAD)
        fetch_x(4 * step + c, across, x);
    [[unroll]] for (uint j = 0; j < 2 * across; j++)
        v[j] = next_x[j];
    if (AHEAD)
        fetch_x(c < 3 ? 4 * step + c + 1 : 4 * min(step + 1, last), across, x);
    uvec4 w[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        w[r] = stored_halves(run[r].v[0][c], group[r]);
    [[unroll]] for (uint k = 0; k < 2; k++) {
        MatrixB b[ACROSS];
        [[unroll]] for (uint j = 0; j < 2 * across; j++)
            [[unroll]] for (uint i = 0; i < 2; i++) {
                f16vec2 two = unpackFloat2x16(v[j][2 * k + i]);
                b[j / 2][4 * (j % 2) + 2 * i] = two.x;
                b[j / 2][4 * (j % 2) + 2 * i + 1] = two.y;
            }
        [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++) {
            MatrixA rows;
            [[unroll]] for (uint j = 0; j < 2; j++)
                [[unroll]] for (uint i = 0; i < 2; i++) {
                    f16vec2 two = unpackFloat2x16(w[2 * f + j][2 * k + i]);
                    rows[4 * j + 2 * i] = two.x;
                    rows[4 * j + 2 * i + 1] = two.y;
                }
            [[unroll]] for (uint j = 0; j < across; j++)
                sum_of[f][j] = matrix_muladd(rows, b[j], sum_of[f][j]);
        }
    }
}

void multiply_across(const uint across, uint cols, Input x)
{
    uint n_steps = cols / STEP, last = n_steps - 1, each = (n_steps + ALONG - 1) / ALONG;
    uint from = min(part() * each, last), to = min(part() * each + each, n_steps);
    [[unroll]] for (uint j = 0; j < 2 * across; j++)
        at[j] = input_row(8 * j + frag_line()) / 8 + frag_lane();
    fetch_groups(from, last);
    fetch_rows(from);
    if (AHEAD)
        fetch_x(4 * from, across, x.x);
    for (uint step = part() * each; step < to; step++) {
        uint i = (step - from) % 4;
        if (i == 0) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                scales[r] = next_scales[r];
                biases[r] = next_biases[r];
            }
            fetch_groups(step + 4, last);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            group[r] = group_of(r, i);
            run[r] = next_run[r];
        }
        fetch_rows(min(step + 1, last));
        [[unroll]] for (uint c = 0; c < 4; c++)
            multiply_eight(step, c, across, x.x, last);
    }
}

// Adds up the sums of the subgroups that share rows: again and again the second half to the first.
void add_parts()
{
    [[unroll]] for (uint n = ALONG / 2; n > 0; n /= 2) {
        uint mine = ((part() % n) * SUBGROUPS + gl_SubgroupID % SUBGROUPS) * NUMBERS * 32 +
            gl_SubgroupInvocationID;
        barrier();
        if (part() / n == 1)
            [[unroll]] for (uint i = 0; i < NUMBERS; i++)
                parts[mine + 32 * i] = sum_of[i / 8 / ACROSS][i / 8 % ACROSS][i % 8];
        barrier();
        if (part() < n)
            [[unroll]] for (uint i = 0; i < NUMBERS; i++)
                sum_of[i / 8 / ACROSS][i / 8 % ACROSS][i % 8] += parts[mine + 32 * i];
    }
}

void multiply(out float factors[16], Matrix first, Matrix second, uint row, uint second_row, Input x,
              float eps)
{
    [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++)
        [[unroll]] for (uint j = 0; j < ACROSS; j++)
            sum_of[f][j] = MatrixC(0.0);
    matrix_of[0] = first;
    matrix_of[1] = second;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        row_of[r] = min((r < ROWS / 2 ? row : second_row) + half_row(r), matrix_of[r / (ROWS / 2)].rows - 1);
    // Half of the matrices suffices for half of the tokens or fewer.
    if (ACROSS == 1 || input_tokens() > 8 * ACROSS)
        multiply_across(ACROSS, first.cols, x);
    else
        multiply_across(ACROSS / 2, first.cols, x);
    add_parts();
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factors[t] = 1.0;
}

const uint PART = 4;

void take(uint j)
{
    [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++)
        [[unroll]] for (uint i = 0; i < 8; i++)
            acc[(2 * f + i / 4) * PART + i % 4] = sum_of[f][j][i];
}

#endif
