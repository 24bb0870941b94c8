// fault.glsl - what the planted faults share (tests/unit/test_lanes.c): a workgroup of 128 lanes reads x and
// writes y, 128 numbers each. Each kernel is compiled twice: as it stands, and with MENDED defined.
#extension GL_EXT_buffer_reference : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Uints {
    uint v[];
};
layout(push_constant, std430) uniform Args {
    Uints x, y;
};

const uint N = 128;
layout(local_size_x = N) in;
