// matrices.glsl - 16 x 16 matrices, each spread over a subgroup of 32 lanes, by VK_NV_cooperative_matrix,
// which the oldest compilers know. src/vulkan/khr_kernel.h turns the same code into kernels for
// VK_KHR_cooperative_matrix. There a matrix's type includes its use, so no factor may be a MatrixA in one
// place and a MatrixB in another.
//
//   MatrixA, MatrixB  factors, float16; MatrixC  sums, float32. MatrixC(0.0) is a matrix of zeros
//   matrix_load(m, array, at, step, order), matrix_store(m, array, at, step, order)
//     order: BY_ROWS or BY_COLUMNS. The first row (column) begins at array[at], the next ones `step` elements
//            apart. An element may hold several numbers
//   matrix_muladd(a, b, c)  a * b + c
#ifndef MATRICES_GLSL
#define MATRICES_GLSL

#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#extension GL_NV_cooperative_matrix : require
layout(constant_id = MATRIX_SECOND_SPEC) const uint MATRIX_SECOND = 16;
#define MatrixA       fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define MatrixB       fcoopmatNV<16, gl_ScopeSubgroup, MATRIX_SECOND, 16>
#define MatrixC       fcoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define BY_ROWS       false
#define BY_COLUMNS    true
#define matrix_load   coopMatLoadNV
#define matrix_store  coopMatStoreNV
#define matrix_muladd coopMatMulAddNV

#endif
