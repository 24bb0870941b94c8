// quads.glsl - matrices (lib/matrices.glsl) whose numbers lie in quads.
//
// Vulkan leaves open which lane has which numbers of a matrix. This is for devices whose lane l has eight
// numbers of each 16 x 16 matrix in the following order (matrices/probe.comp tests it), with g = l / 4 and q
// = l % 4:
//   first factors and sums [row][column]: row g, columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9; then row g + 8
//   second factors: column g, rows 2 q, 2 q + 1, 2 q + 8, 2 q + 9; then column g + 8
// So four lanes, a quad, have a line. Sums lie in the order of first factors, so that a result computed from
// sums is already in place for the next product.
#ifndef QUADS_GLSL
#define QUADS_GLSL

// Returns g: a lane has numbers of lines g and g + 8.
uint quad_line()
{
    return gl_SubgroupInvocationID / 4;
}

uint quad_lane()
{
    return gl_SubgroupInvocationID % 4;
}

// Returns the place of a lane's i-th number in its line.
uint quad_col(uint i)
{
    return quad_lane() * 2 + (i & 1) + (i & 2) * 4;
}

// Both reduce over the quad's two lines, each by itself.
vec2 quad_max(vec2 v)
{
    v = max(v, subgroupShuffleXor(v, 1));
    return max(v, subgroupShuffleXor(v, 2));
}

vec2 quad_add(vec2 v)
{
    v += subgroupShuffleXor(v, 1);
    return v + subgroupShuffleXor(v, 2);
}

#endif
