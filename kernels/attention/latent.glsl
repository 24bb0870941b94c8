// attention/latent.glsl - attention over latents on cooperative matrices, in two passes (latent_scores.comp, latent_values.comp).
// A row is a (token, head): all heads share a position's latent, so that 128 rows meet each position that is loaded once.
// Between the passes: weights f16 [rows][width] = 2^(s - m), and chunks f32 [width / 64][rows][2] = (m, l) of each row and 64
// positions: m the largest score in powers of two, l the sum of the weights. rows and width are whole tiles of 128; what
// rows behind the last have is not used, weights of positions that a row does not see are 0.
#ifndef ATTENTION_LATENT_GLSL
#define ATTENTION_LATENT_GLSL

#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"
#include "lib/matrices.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 2) const uint KEY_DIM = 576; // a multiple of 64
layout(constant_id = 3) const uint VALUE_DIM = 512; // a multiple of 128; a key's first channels

layout(push_constant, std430) uniform Args { attention_latent_args a; };

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Eights { uvec4 v[]; }; // eight halves each
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Stats { vec2 v[]; };

const uint TILE = 128;  // rows, and positions or channels, of a workgroup
const uint CHUNK = 64;  // positions that share a row's m
const uint UNIT = 8;    // channels, or positions, of 16 bytes
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN

// Eight subgroups of 32 lanes: each has 32 rows and 64 columns of the tile.
MatrixC acc[2][4];

void clear_sums()
{
    [[unroll]] for (uint i = 0; i < 2; i++)
        [[unroll]] for (uint j = 0; j < 4; j++)
            acc[i][j] = MatrixC(0.0);
}

// The last row of the cache that there is.
uint last_position()
{
    return a.pos + a.n - 1;
}

// Channels 8 * unit .. of a position's row, `i` rows behind the one that starts a tile; rows past the last repeat it. A tile
// lies in one block of the cache.
uvec4 latent_at(uvec2 rows, uint from, uint i, uint unit)
{
    i = min(from + i, last_position()) - from;
    return F16x8s(rows).v[i * (KEY_DIM / UNIT) + unit];
}

uvec2 latent_rows(uint from)
{
    return cache_row(a.blocks, a.layer_off, from, 0, 0, 1, KEY_DIM);
}

#endif
