// fragment_layout.glsl - the known fragment layout of matrices (lib/matrices.glsl).
//
// Vulkan leaves open which lane has which numbers of a matrix. This is for devices (matrices/probe.comp asks
// them) whose lane l has eight numbers of each 16 x 16 matrix, with g = l / 4 and q = l % 4, in this order:
//   first factors and sums, [row][column]: row g, columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then row g + 8
//   second factors: column g, rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then column g + 8
// So four lanes share a line. Sums have the layout of first factors: what is computed from sums is in place
// for the next product.
#ifndef FRAGMENT_LAYOUT_GLSL
#define FRAGMENT_LAYOUT_GLSL

// g: a lane has numbers of the lines g and g + 8.
uint frag_line()
{
    return gl_SubgroupInvocationID / 4;
}

uint frag_lane()
{
    return gl_SubgroupInvocationID % 4;
}

// Where the i-th number of a lane lies in its line.
uint frag_col(uint i)
{
    return frag_lane() * 2 + (i & 1) + (i & 2) * 4;
}

// The maximum, the sum over the four lanes that share a line; for each of their two lines.
vec2 frag_max(vec2 v)
{
    v = max(v, subgroupShuffleXor(v, 1));
    return max(v, subgroupShuffleXor(v, 2));
}

vec2 frag_add(vec2 v)
{
    v += subgroupShuffleXor(v, 1);
    return v + subgroupShuffleXor(v, 2);
}

#endif
