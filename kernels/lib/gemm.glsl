// gemm.glsl - rows of quantised matrices times the vectors of many tokens: the core of the products of a chunk.
//
// A block of rows meets a tile of tokens; a weight is dequantised once for all tokens of the tile. Three mappings, chosen
// at build:
//   gemm_tiles.glsl: GPUs, float32.
//   gemm_coop.glsl (COOP, kernels named X_coop): GPUs with matrices; the inputs come in float16, sums are float32. Its
//     results differ from the others' by 1e-3 of the largest output.
//   gemm_wide.glsl (WIDE, kernels named X_wide): software devices.
// The first half of the rows of an invocation comes from one matrix, the second from another: parts of one block, or
// an expert's gate and up projections, which so meet in one invocation.
// Weights are dequantised exactly (q * scale is exact in float32, so q * scale + bias has one right value), products
// accumulate in float32.
#ifndef GEMM_GLSL
#define GEMM_GLSL

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256; // tiles: 256; matrices 64, 128 or 256
layout(constant_id = 2) const uint ROWS = 4;        // of an invocation: 2, 4 or 8; matrices 2 or 4
layout(constant_id = 3) const uint TOKENS = 4;      // of an invocation: wide 8 or 16, tiles 1 to 8, matrices 8 or 16
layout(constant_id = 4) const uint DEPTH = 32; // columns of a step: tiles at least 1024 / TILE_TOKENS, matrices 64 or 128
layout(constant_id = 5) const uint FORMATS = 0xffffffff; // bit f: some matrix of the dispatch is stored as FORMAT_f
layout(constant_id = 6) const uint ALONG = 4;    // matrices: subgroups along the tokens, the others along the rows

const uint MAX_ACC = 64;

#include "lib/dequant.glsl"

// What the rows meet: float32 vectors, times `norm` where it is not null; float16 ones as they are.
struct Input {
    uvec2 x, norm;
};

// Where the vector of token t of this workgroup's tile starts, in numbers; for tokens past the last, any legal place.
uint input_row(uint t);

#ifdef WIDE
#include "lib/gemm_wide.glsl"
#elif defined(COOP)
#include "lib/gemm_coop.glsl"
#else
#include "lib/gemm_tiles.glsl"
#endif

#endif
