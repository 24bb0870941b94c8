// mla/transpose_keys.comp - the heads' key matrices for the expanded form of latent attention: each matrix of
// a stack transposed and dequantised, exactly.
//   dst[h][j][k] = W[first_head + h][k][j],  k < latent_dim, j < nope_dim, both multiples of PRODUCT_COLS
// Grid: x = latent_dim / MLA_TRANSPOSE_TILE, y = nope_dim / PRODUCT_COLS, z = heads.
// variants: plain ext blk
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint FORMATS = 0xffffffff;

layout(push_constant, std430) uniform Args { mla_transpose_keys_args a; };

// One kernel serves all layers, whatever their formats; of block formats each has its own.
#ifndef BLOCKS
#define RUN_TIME_WORD a.format
#endif
#include "lib/dequant.glsl"

const uint TILE = MLA_TRANSPOSE_TILE, COLS = PRODUCT_COLS;
// transposed; the odd stride puts neighbouring rows into different banks
shared float tile[COLS * (TILE + 1)];

void main()
{
    uint first = gl_WorkGroupID.x * TILE, col = gl_WorkGroupID.y * COLS, h = gl_WorkGroupID.z;
    fill_book(a.scales);
    if (HAS_BOOK)
        barrier();
    Matrix m = Matrix(a.weight, a.scales, a.biases, a.format, 0, a.nope_dim);
    for (uint u = gl_LocalInvocationID.x; u < TILE * COLS / 8; u += WORKGROUP) {
        uint row = (a.first_head + h) * a.latent_dim + first + u / (COLS / 8), unit = u % (COLS / 8);
        Eight w;
        BY_FORMAT(a.format, w = load_eight(FORMAT, m, row, col / 8 + unit))
        [[unroll]] for (uint i = 0; i < 4; i++) {
            tile[(8 * unit + i) * (TILE + 1) + u / (COLS / 8)] = w.a[i];
            tile[(8 * unit + 4 + i) * (TILE + 1) + u / (COLS / 8)] = w.b[i];
        }
    }
    barrier();
    for (uint u = gl_LocalInvocationID.x; u < TILE * COLS; u += WORKGROUP)
        F32s(a.dst).v[(h * a.nope_dim + col + u / TILE) * a.latent_dim + first + u % TILE] =
            tile[u / TILE * (TILE + 1) + u % TILE];
}
