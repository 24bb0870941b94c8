// gemm_tiles.glsl - gemm.glsl in float32. DEPTH columns of BLOCK_ROWS rows and of TILE_TOKENS tokens go
// through shared memory; 16 x 16 invocations compute ROWS x TOKENS sums each.
#ifndef GEMM_TILES_GLSL
#define GEMM_TILES_GLSL

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4s { vec4 v[]; };

const uint SIDE = 16;                  // invocations along the rows, and along the tokens
const uint BLOCK_ROWS = SIDE * ROWS;   // rows of a workgroup
const uint TILE_TOKENS = SIDE * TOKENS;
// An odd number of vec4 between rows, so that neighbouring rows lie in different banks.
const uint STRIDE = DEPTH / 4 + 1;
const uint PER_PASS = 1024 / DEPTH; // tokens whose DEPTH columns the workgroup's 256 invocations load at once
const uint X_PASSES = TILE_TOKENS / PER_PASS;
const uint MAX_X_PASSES = 4;
shared vec4 ws[BLOCK_ROWS * STRIDE];
shared vec4 xs[TILE_TOKENS * STRIDE];

// Returns the row of this invocation's r-th accumulator in its half of the block.
uint half_row(uint r)
{
    return gl_LocalInvocationID.x % SIDE + SIDE * (r % (ROWS / 2));
}

uint tile_token(uint t)
{
    return gl_LocalInvocationID.x / SIDE + SIDE * t;
}

void keep_weights(uint tile_row, uint part, Eight e)
{
    ws[tile_row * STRIDE + 2 * part] = e.a;
    ws[tile_row * STRIDE + 2 * part + 1] = e.b;
}
const uint W_UNITS = BLOCK_ROWS * DEPTH / 8; // units of eight columns

// Returns the u-th unit of eight weights of the block's rows and DEPTH columns from column `from` on.
Eight load_unit(const uint format, Matrix first, Matrix second, uint row, uint second_row, uint from, uint u)
{
    uint tile_row = u / (DEPTH / 8), part = u % (DEPTH / 8);
    bool in_first = tile_row < BLOCK_ROWS / 2;
    Matrix m = first;
    if (!in_first)
        m = second;
    uint mine = in_first ? row + tile_row : second_row + tile_row - BLOCK_ROWS / 2;
    return load_eight(format, m, min(mine, m.rows - 1), from / 8 + part);
}

// Stores DEPTH columns of the block's rows, from column `from` on, in shared memory.
void stage_weights(const uint format, Matrix first, Matrix second, uint row, uint second_row, uint from)
{
    for (uint u = gl_LocalInvocationID.x; u < W_UNITS; u += WORKGROUP)
        keep_weights(u / (DEPTH / 8), u % (DEPTH / 8),
                     load_unit(format, first, second, row, second_row, from, u));
}

void stage_block(Matrix first, Matrix second, uint row, uint second_row, uint from)
{
    BY_FORMAT(first.format, stage_weights(FORMAT, first, second, row, second_row, from))
}

void add_step(inout float acc[MAX_ACC])
{
    uint row = gl_LocalInvocationID.x % SIDE * STRIDE, token = gl_LocalInvocationID.x / SIDE * STRIDE;
    [[unroll]] for (uint c = 0; c < DEPTH / 4; c++) {
        vec4 w[8];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            w[r] = ws[row + r * SIDE * STRIDE + c];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            vec4 v = xs[token + t * SIDE * STRIDE + c];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float sum = acc[r * TOKENS + t];
                sum = fma(w[r].x, v.x, sum);
                sum = fma(w[r].y, v.y, sum);
                sum = fma(w[r].z, v.z, sum);
                acc[r * TOKENS + t] = fma(w[r].w, v.w, sum);
            }
        }
    }
}

const uint PART = TOKENS;

bool has_sums()
{
    return true;
}

// acc already has all sums.
void take(uint i)
{
}

void multiply(out float factors[16], Matrix first, Matrix second, uint row,
              uint second_row, Input x, float eps)
{
    uint at[MAX_X_PASSES];
    float squares[MAX_X_PASSES];
    uint pass_token = gl_LocalInvocationID.x / (DEPTH / 4), c4 = gl_LocalInvocationID.x % (DEPTH / 4);
    bool has_norm = !addr_is_null(x.norm);
    [[unroll]] for (uint i = 0; i < ROWS * TOKENS; i++)
        acc[i] = 0.0;
    [[unroll]] for (uint i = 0; i < X_PASSES; i++) {
        at[i] = input_row(i * PER_PASS + pass_token) / 4 + c4;
        squares[i] = 0.0;
    }

    fill_book(book_address());
    for (uint from = 0; from < first.cols; from += DEPTH) {
        barrier();
        vec4 n = vec4(1.0);
        if (has_norm)
            n = Vec4s(x.norm).v[from / 4 + c4];
        [[unroll]] for (uint i = 0; i < X_PASSES; i++) {
            vec4 v = Vec4s(x.x).v[at[i] + from / 4];
            squares[i] += dot(v, v);
            xs[(i * PER_PASS + pass_token) * STRIDE + c4] = v * n;
        }
        stage_block(first, second, row, second_row, from);
        barrier();
        add_step(acc);
    }

    // The DEPTH / 4 invocations that loaded a token have its squares.
    barrier();
    [[unroll]] for (uint i = 0; i < X_PASSES; i++)
        xs[(i * PER_PASS + pass_token) * STRIDE + c4].x = squares[i];
    barrier();
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        float sum = 0.0;
        [[unroll]] for (uint c = 0; c < DEPTH / 4; c++)
            sum += xs[tile_token(t) * STRIDE + c].x;
        factors[t] = has_norm ? inversesqrt(sum / float(first.cols) + eps) : 1.0;
    }
}

#endif
