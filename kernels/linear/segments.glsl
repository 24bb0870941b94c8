// segments.glsl - finds which of the matrices of a linear_args this workgroup has rows of. The includer
// defines Args `a`.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Segments { linear_segment v[]; };

// The first blocks are in the arguments, so that only one load comes before the first weights.
linear_segment find_segment()
{
    uint i = 0;
    [[unroll]] for (uint j = 0; j < LINEAR_MAX_SEGMENTS - 1; j++)
        i += gl_WorkGroupID.x >= a.later_blocks[j] ? 1 : 0;
    return Segments(a.segments).v[i];
}
