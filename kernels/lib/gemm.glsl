// gemm.glsl - rows of quantised matrices times the vectors of many tokens: the core of the products of a
// chunk.
//
// A block of rows meets a tile of tokens; a weight is dequantised once for all tokens of the tile. Mappings,
// chosen at build:
//   gemm_tiles.glsl   float32.
//   gemm_coop.glsl    (COOP, kernels named X_coop) devices with matrix units. Inputs are float16, sums
//                     float32. Results differ from the float32 ones by up to 1e-3 of the largest output.
//   gemm_frag.glsl    (FRAG and COOP, kernels named X_fragcoop) the same for few tokens and 4-bit weights,
//                     on devices whose matrices have the known fragment layout (lib/fragment_layout.glsl).
//                     TOKENS is 4, 8 or 16, ROWS a multiple of 4; ALONG subgroups share the columns.
//
// The first half of an invocation's rows comes from one matrix, the second from another: parts of one block,
// or an expert's gate and up projections, which thus meet in one invocation.
// Weights are dequantised exactly (q * scale is exact in float32, so q * scale + bias has one correct value).
// Products accumulate in float32.
#ifndef GEMM_GLSL
#define GEMM_GLSL

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256; // tiles: 256; matrices: 64, 128 or 256
layout(constant_id = 2) const uint ROWS = 4;        // rows of an invocation: 2, 4 or 8; matrices: 2 or 4
layout(constant_id = 3) const uint TOKENS = 4;      // tokens of an invocation: tiles 1 to 8, matrices 8 or 16
// columns of a step: tiles at least 1024 / TILE_TOKENS, matrices 64 or 128
layout(constant_id = 4) const uint DEPTH = 32;
// bit f: some matrix of the dispatch is stored as FORMAT_f
layout(constant_id = 5) const uint FORMATS = 0xffffffff;
// matrices: subgroups along the tokens; the others are along the rows
layout(constant_id = 6) const uint ALONG = 4;

const uint MAX_ACC = 64;
float acc[MAX_ACC]; // the sums of the latest take()

#include "lib/dequant.glsl"

// Returns where column c of a row of float16 inputs is stored. FRAG: within 128 columns the bits of c move
// like this:
//   column       hhggxyy
//   stored at    gghhyyx
uint stored_col(uint c)
{
#ifdef FRAG
    return c & ~127u | (c >> 3 & 3u) << 5 | (c >> 5 & 3u) << 3 | (c & 3u) << 1 | c >> 2 & 1u;
#else
    return c;
#endif
}

// The vectors: float32, multiplied by `norm` unless it is null; or float16, used as they are.
struct Input {
    uvec2 x, norm;
};

// Returns where the vector of token t of this workgroup's tile starts, in numbers; for tokens past the last
// any valid place.
uint input_row(uint t);

// Returns the tokens of this workgroup's tile, at most TILE_TOKENS.
uint input_tokens();

// Returns the address of the code books; block formats only.
uvec2 book_address();

// Each mapping defines
//   half_row, tile_token  the row (in its half of the block) and the token (of the tile) of an invocation's
//                         sums
//   multiply   computes the sums: row half_row(r) of this invocation's half of the rows times the vector of
//              token tile_token(t): `first` from `row` on for r < ROWS / 2, `second` from `second_row` on for
//              the others; factors[t] = 1 / sqrt(mean(x[t]^2) + eps). Rows past a matrix's last repeat it.
//              Both matrices have one format. All invocations must call it
//   has_sums   whether this invocation has any
//   take       sets acc[r * PART + t] = the sum of row r and token PART * i + t, for one i < TOKENS / PART: a
//              part, because the registers cannot hold all. All invocations must call it
#ifdef FRAG
#include "lib/gemm_frag.glsl"
#elif defined(COOP)
#include "lib/gemm_coop.glsl"
#else
#include "lib/gemm_tiles.glsl"
#endif

#endif
