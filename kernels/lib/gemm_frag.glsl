// gemm_frag.glsl - gemm.glsl on cooperative matrices, for few tokens and 4-bit weights (FORMAT_Q4): they go from memory
// into the lanes' registers, where the matrices lie, without shared memory.
//
// Vulkan leaves open which lane has which numbers of a matrix. This is for devices whose lane l, with g = l / 4 and
// q = l % 4, has of 16 x 16 weights, 16 x 8 inputs and 16 x 8 sums (the program asks the device: ops/gemm_frag.h)
//   weights [row][k]     row g, k 2q, 2q + 1; row g + 8, the same k; row g, k 2q + 8, 2q + 9; row g + 8, the same k
//   inputs [k][token]    k 2q, 2q + 1, 2q + 8, 2q + 9 of token g
//   sums [row][token]    row g, tokens 2q, 2q + 1; row g + 8, the same tokens
// Which columns of a product meet in one k does not matter: lane q takes columns 32 q .. 32 q + 31 of each 128, which is one
// piece of 16 bytes of 4-bit codes, four columns for each of eight matrices. The inputs are stored as the lanes take them:
// of each 128 columns the eights 0, 4, 8, 12, then 1, 5, 9, 13 and so on (stored_col).
#ifndef GEMM_FRAG_GLSL
#define GEMM_FRAG_GLSL

#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

#include "lib/halves.glsl"

const uint STEP = 128;          // columns
const uint FRAGS = ROWS / 4;    // matrices of a subgroup along the rows, of each half of the block
const uint ACROSS = TOKENS / 2; // along the tokens
const uint SUBGROUPS = WORKGROUP / 32; // along the rows
const uint BLOCK_ROWS = 32 * FRAGS * SUBGROUPS;
const uint TILE_TOKENS = 8 * ACROSS;

uint half_row(uint r)
{
    uint i = r % (ROWS / 2);
    return gl_SubgroupID * (16 * FRAGS) + i * 8 + gl_SubgroupInvocationID / 4;
}

float next_row(float v)
{
    return subgroupShuffleXor(v, 4);
}

uint tile_token(uint t)
{
    return t / 2 * 8 + gl_SubgroupInvocationID % 4 * 2 + t % 2;
}

fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> sum_of[2 * FRAGS][ACROSS];
Matrix matrix_of[2]; // of the first half of the rows, of the second
uint row_of[ROWS];
Run next_run[ROWS];
uvec4 w[ROWS][4]; // of a step
uint at[ACROSS]; // where the lane's tokens lie, in eights
// Of each row the words of the scales and biases of four steps, each in one lane of four; those of the next four.
uint scales[ROWS], biases[ROWS], next_scales[ROWS], next_biases[ROWS];

// Asks for the groups of steps `step` .. step + 3.
void ask_groups(const uint format, uint step, uint last)
{
    uint mine = min(step + gl_SubgroupInvocationID % 4, last);
    if (format_group_shift(format) == 6)
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            Matrix m = matrix_of[r / (ROWS / 2)];
            uint at = row_of[r] * (m.cols >> 7) + mine;
            next_scales[r] = Words(m.scales).v[at];
            next_biases[r] = Words(m.biases).v[at];
        }
}

void ask_rows(const uint format, uint step)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        next_run[r] = load_run(format, matrix_of[r / (ROWS / 2)], row_of[r], 4 * step + gl_SubgroupInvocationID % 4);
}

// Scale and bias of this lane's columns of a row in the i-th of four steps.
vec2 group_of(const uint format, uint r, uint step, uint i)
{
    Matrix m = matrix_of[r / (ROWS / 2)];
    float s = 0.0, b = 0.0;
    if (format_group_shift(format) == 6) {
        uint from = gl_SubgroupInvocationID & ~3u | i, shift = (~gl_SubgroupInvocationID & 2u) * 8;
        s = uintBitsToFloat(subgroupShuffle(scales[r], from) << shift & 0xffff0000u);
        b = uintBitsToFloat(subgroupShuffle(biases[r], from) << shift & 0xffff0000u);
    } else {
        load_group(format, m, row_of[r], STEP * step + 32 * (gl_SubgroupInvocationID % 4), s, b);
    }
    return vec2(s, b);
}

// Adds a step's products for `across` matrices along the tokens, a constant.
void multiply_step(const uint format, uint step, uint i, const uint across, uvec2 x, uint last)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        vec2 group = group_of(format, r, step, i);
        [[unroll]] for (uint c = 0; c < 4; c++)
            w[r][c] = halves_of(format, next_run[r], c, group.x, group.y);
    }
    ask_rows(format, min(step + 1, last));
    [[unroll]] for (uint c = 0; c < 4; c++) {
        uvec4 v[ACROSS];
        [[unroll]] for (uint j = 0; j < across; j++)
            v[j] = Halves(x).v[at[j] + 16 * step + 4 * c];
        [[unroll]] for (uint k = 0; k < 2; k++) {
            fcoopmatNV<16, gl_ScopeSubgroup, 16, 8> b[ACROSS];
            [[unroll]] for (uint j = 0; j < across; j++) {
                f16vec2 low = unpackFloat2x16(v[j][2 * k]), high = unpackFloat2x16(v[j][2 * k + 1]);
                b[j][0] = low.x;
                b[j][1] = low.y;
                b[j][2] = high.x;
                b[j][3] = high.y;
            }
            [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++) {
                fcoopmatNV<16, gl_ScopeSubgroup, 16, 16> a;
                [[unroll]] for (uint part = 0; part < 4; part++) {
                    // Rows g and g + 8; their first and second pair of columns.
                    f16vec2 two = unpackFloat2x16(w[2 * f + part % 2][c][2 * k + part / 2]);
                    a[2 * part] = two.x;
                    a[2 * part + 1] = two.y;
                }
                [[unroll]] for (uint j = 0; j < across; j++)
                    sum_of[f][j] = coopMatMulAddNV(a, b[j], sum_of[f][j]);
            }
        }
    }
}

void multiply_across(const uint format, const uint across, uint cols, Input x)
{
    uint n_steps = cols / STEP, last = n_steps - 1;
    [[unroll]] for (uint j = 0; j < across; j++)
        at[j] = input_row(8 * j + gl_SubgroupInvocationID / 4) / 8 + gl_SubgroupInvocationID % 4;
    ask_groups(format, 0, last);
    ask_rows(format, 0);
    for (uint step = 0; step < n_steps; step++) {
        uint i = step % 4;
        if (i == 0) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                scales[r] = next_scales[r];
                biases[r] = next_biases[r];
            }
            ask_groups(format, step + 4, last);
        }
        multiply_step(format, step, i, across, x.x, last);
    }
}

void multiply_as(const uint format, Matrix first, Matrix second, uint row, uint second_row, Input x)
{
    matrix_of[0] = first;
    matrix_of[1] = second;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        row_of[r] = min((r < ROWS / 2 ? row : second_row) + half_row(r), matrix_of[r / (ROWS / 2)].rows - 1);
    // Half of the matrices for half of the tokens and fewer.
    if (ACROSS == 1 || input_tokens() > 4 * ACROSS)
        multiply_across(format, ACROSS, first.cols, x);
    else
        multiply_across(format, ACROSS / 2, first.cols, x);
}

void multiply(out float factors[16], Matrix first, Matrix second, uint row, uint second_row, Input x, float eps)
{
    [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++)
        [[unroll]] for (uint j = 0; j < ACROSS; j++)
            sum_of[f][j] = fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>(0.0);
    // One format alone: drivers take seconds to compile all of them.
    multiply_as(FORMAT_Q4, first, second, row, second_row, x);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factors[t] = 1.0;
}

const uint PART = 2;

void take(uint j)
{
    [[unroll]] for (uint f = 0; f < 2 * FRAGS; f++) {
        vec4 sum = vec4(sum_of[f][j][0], sum_of[f][j][1], sum_of[f][j][2], sum_of[f][j][3]);
        [[unroll]] for (uint i = 0; i < 4; i++)
            acc[(2 * f + i / 2) * PART + i % 2] = sum[i];
    }
}

#endif
