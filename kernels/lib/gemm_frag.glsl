// gemm_frag.glsl - gemm.glsl on cooperative matrices, for few tokens and 4-bit weights (FORMAT_Q4): they go
// from memory into the lanes' registers, where the matrices lie, without shared memory. ALONG subgroups share
// the columns of their rows: few rows leave a processor waiting else.
//
// For devices whose matrices have the layout of lib/fragment_layout.glsl. Weights are first factors [row][k],
// inputs second factors [k][token]. Which columns of a product meet in one k does not matter: lane q takes
// columns 32 q .. 32 q + 31 of each 128, which is one piece of 16 bytes of 4-bit codes, four columns for each
// of eight matrices. The inputs are stored as the lanes take them (stored_col): of each 128 columns the
// eights 0, 4, 8, 12, then 1, 5, 9, 13 and so on, of each eight the columns 0, 4, 1, 5, 2, 6, 3, 7, which a
// word of codes gives two at a time.
#ifndef GEMM_FRAG_GLSL
#define GEMM_FRAG_GLSL

#include "lib/halves.glsl"
#include "lib/matrices.glsl"
#include "lib/fragment_layout.glsl"

const uint STEP = 128;          // columns
const uint FRAGS = ROWS / 4;    // matrices of a subgroup along the rows, of each half of the block
const uint ACROSS = TOKENS / 4; // along the tokens
const uint SUBGROUPS = WORKGROUP / 32 / ALONG; // along the rows
const uint BLOCK_ROWS = 32 * FRAGS * SUBGROUPS;
const uint TILE_TOKENS = 16 * ACROSS;
const uint NUMBERS = 2 * FRAGS * ACROSS * 8; // sums of a lane
shared float parts[ALONG > 1 ? ALONG / 2 * SUBGROUPS * 32 * NUMBERS : 1];

// Which of those that share rows this subgroup is. The first one has the sums in the end.
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

// What the lane with the next row has, for even rows.
float next_row(float v)
{
    return subgroupShuffleXor(v, 4);
}

// What the lane has whose row is stored behind this one's, where that is stored at an even place.
float next_stored(float v)
{
    return subgroupShuffleXor(v, 16);
}

uint tile_token(uint t)
{
    return t / 4 * 16 + frag_col(t);
}

MatrixC sum_of[2 * FRAGS][ACROSS];
Matrix matrix_of[2]; // of the first half of the rows, of the second
uint row_of[ROWS];
Run run[ROWS], next_run[ROWS];
vec2 group[ROWS]; // scale and bias, of a step
uint at[2 * ACROSS]; // where the lane's tokens lie, in eights
// Whether they are asked for eight columns ahead: tiles of more tokens have enough to multiply meanwhile, and
// no registers for it.
const bool AHEAD = ACROSS <= 2;
uvec4 next_x[2 * ACROSS];
// Of each row the words of the scales and biases of four steps, each in one lane of four; those of the next
// four.
uint scales[ROWS], biases[ROWS], next_scales[ROWS], next_biases[ROWS];

// Asks for the groups of steps `step` .. step + 3.
void ask_groups(uint step, uint last)
{
    uint mine = min(step + frag_lane(), last);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        Matrix m = matrix_of[r / (ROWS / 2)];
        uint word = row_of[r] * (m.cols >> 7) + mine;
        next_scales[r] = Words(m.scales).v[word];
        next_biases[r] = Words(m.biases).v[word];
    }
}

void ask_rows(uint step)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        next_run[r] =
            load_run(FORMAT_Q4, matrix_of[r / (ROWS / 2)], row_of[r], 4 * step + frag_lane());
}

// Eight codes as weights, of columns 0, 4, 1, 5, 2, 6, 3, 7.
uvec4 stored_halves(uint word, vec2 group)
{
    f16vec2 s = f16vec2(group.x), b = f16vec2(group.y);
    uvec4 e;
    [[unroll]] for (uint i = 0; i < 4; i++)
        e[i] = packFloat2x16(two_of((word >> (4 * i)) & 0x000f000fu, s, b));
    return e;
}

// Scale and bias of this lane's columns of a row in the i-th of four steps.
vec2 group_of(uint r, uint i)
{
    uint from = gl_SubgroupInvocationID & ~3u | i, shift = (~gl_SubgroupInvocationID & 2u) * 8;
    return vec2(uintBitsToFloat(subgroupShuffle(scales[r], from) << shift & 0xffff0000u),
                uintBitsToFloat(subgroupShuffle(biases[r], from) << shift & 0xffff0000u));
}

// Asks for the eight-th of the lane's eights of columns, four of which are a step's.
void ask_x(uint eight, const uint across, uvec2 x)
{
    [[unroll]] for (uint j = 0; j < 2 * across; j++)
        next_x[j] = Halves(x).v[at[j] + 4 * eight];
}

// Adds the products of eight of a lane's columns, the c-th, for `across` matrices along the tokens, a
// constant.
void multiply_eight(uint step, const uint c, const uint across, uvec2 x, uint last)
{
    uvec4 v[2 * ACROSS];
    if (!AHEAD)
        ask_x(4 * step + c, across, x);
    [[unroll]] for (uint j = 0; j < 2 * across; j++)
        v[j] = next_x[j];
    if (AHEAD)
        ask_x(c < 3 ? 4 * step + c + 1 : 4 * min(step + 1, last), across, x);
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
    ask_groups(from, last);
    ask_rows(from);
    if (AHEAD)
        ask_x(4 * from, across, x.x);
    for (uint step = part() * each; step < to; step++) {
        uint i = (step - from) % 4;
        if (i == 0) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                scales[r] = next_scales[r];
                biases[r] = next_biases[r];
            }
            ask_groups(step + 4, last);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            group[r] = group_of(r, i);
            run[r] = next_run[r];
        }
        ask_rows(min(step + 1, last));
        [[unroll]] for (uint c = 0; c < 4; c++)
            multiply_eight(step, c, across, x.x, last);
    }
}

// Adds up what the subgroups that share rows have: half of them to the others, again and again.
void add_parts()
{
    [[unroll]] for (uint n = ALONG / 2; n > 0; n /= 2) {
        uint mine = ((part() % n) * SUBGROUPS + gl_SubgroupID % SUBGROUPS) * NUMBERS * 32 + gl_SubgroupInvocationID;
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

void multiply(out float factors[16], Matrix first, Matrix second, uint row, uint second_row, Input x, float eps)
{
    [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++)
        [[unroll]] for (uint j = 0; j < ACROSS; j++)
            sum_of[f][j] = MatrixC(0.0);
    matrix_of[0] = first;
    matrix_of[1] = second;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        row_of[r] = min((r < ROWS / 2 ? row : second_row) + half_row(r), matrix_of[r / (ROWS / 2)].rows - 1);
    // Half of the matrices for half of the tokens and fewer.
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
