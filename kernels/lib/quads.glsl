// quads.glsl - matrices (lib/matrices.glsl) whose numbers lie in quads.
//
// Vulkan leaves open which lane has which numbers of a matrix. This is for devices (matrices/probe.comp asks
// them) whose lane l has eight numbers of each 16 x 16 matrix, with g = l / 4 and q = l % 4, in this order:
//   of first factors and of sums, [row][column]: of row g columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then of
//     row g + 8
//   of second factors: of column g rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, then of column g + 8
// So four lanes, a quad, have a line, and sums lie as first factors do: what is computed of sums is where the
// next product has it.
#ifndef QUADS_GLSL
#define QUADS_GLSL

// g: a lane has numbers of the lines g and g + 8.
uint quad_line()
{
    return gl_SubgroupInvocationID / 4;
}

uint quad_lane()
{
    return gl_SubgroupInvocationID % 4;
}

// Where the i-th number of a lane lies in its line.
uint quad_col(uint i)
{
    return quad_lane() * 2 + (i & 1) + (i & 2) * 4;
}

// Over both of a quad's lines, each by itself.
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
