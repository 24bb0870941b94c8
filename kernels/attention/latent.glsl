// attention/latent.glsl - attention over latents on cooperative matrices, in two passes (latent_scores.comp,
// latent_values.comp). A row is a (token, head). All heads share a position's latent, so 128 rows meet each
// position that is loaded.
// Between the passes lie:
//   weights  f16 = 2^(s - m) of `rows` x `width` (row, position) pairs; 0 for positions that a row does not
//            see
//   chunks   f32 [width / CHUNK][rows][2] = (m, l) of each row and CHUNK positions. m is the largest score in
//            powers of two, rounded up to a whole number, so that rescaling the weights of two chunks to one
//            m is exact. l is the sum of the weights
// rows and width are multiples of 128; rows past the last are computed but not used.
//
// The weights are stored as [row][position]. Where FRAG is defined (kernels named X_fragcoop) they are [row /
// 16][position / 16][lane], eight of a 16 x 16 matrix for each lane: on devices whose matrices have the known
// fragment layout (lib/fragment_layout.glsl) the second pass needs them in this order.
#ifndef ATTENTION_LATENT_GLSL
#define ATTENTION_LATENT_GLSL

#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"
#include "lib/matrices.glsl"

layout(local_size_x = 256) in; // eight subgroups of 32 lanes
layout(constant_id = 2) const uint KEY_DIM = 576; // a multiple of 64
layout(constant_id = 3) const uint VALUE_DIM = 512; // a multiple of 128; a key's first channels

layout(push_constant, std430) uniform Args { attention_latent_args a; };

// eight halves in each element
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Eights { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Stats { vec2 v[]; };

const uint TILE = 128;  // rows, and positions or channels, of a workgroup
const uint STEP = 64;   // channels, or positions, that are multiplied at once
const uint CHUNK = 32;  // positions that share a row's m
const uint UNIT = 8;    // channels, or positions, in 16 bytes
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN

// Returns the last position in the cache.
uint last_position()
{
    return a.pos + a.n - 1;
}

// Returns channels 8 * unit .. of the i-th row of a tile that begins at position `from`, as they are stored;
// rows past the last repeat it. A tile lies in one block of the cache.
uvec4 latent_at(uvec2 rows, uint from, uint i, uint unit)
{
    i = min(from + i, last_position()) - from;
    return stored_eight(addr_add(rows, i * row_bytes(KEY_DIM)), KEY_DIM, unit);
}

uvec2 latent_rows(uint from)
{
    return key_cache_row(a.blocks, a.layer_off, from, 0, 1, KEY_DIM);
}

#endif
