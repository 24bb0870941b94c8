// memory.glsl - access to memory by address without 64-bit integers (shaderInt64 is optional in Vulkan 1.3).
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_GOOGLE_include_directive : require

#include "args.h"

layout(buffer_reference, std430, buffer_reference_align = 4) buffer F32s { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer F32x4s { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer U32s { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Addrs { uvec2 v[]; };

// Elements of two words, and of four numbers.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Twos { uvec2 v[]; };

uvec2 two_at(uvec2 p, uint i)
{
    return Twos(p).v[i];
}

vec4 four_at(uvec2 p, uint i)
{
    return F32x4s(p).v[i];
}

// Returns the address `bytes` after p.
uvec2 addr_add(uvec2 p, uint bytes)
{
    uint carry;
    uint low = uaddCarry(p.x, bytes, carry);
    return uvec2(low, p.y + carry);
}

bool addr_is_null(uvec2 p)
{
    return (p.x | p.y) == 0u;
}

// Returns element i of an array of bf16 numbers that starts on a 4-byte boundary.
float bf16_at(uvec2 p, uint i)
{
    uint pair = Words(p).v[i >> 1];
    return uintBitsToFloat((i & 1u) == 0u ? pair << 16 : pair & 0xffff0000u);
}
