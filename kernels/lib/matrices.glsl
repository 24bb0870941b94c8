// matrices.glsl - 16 x 16 matrices, each spread over a subgroup of 32 lanes, by VK_NV_cooperative_matrix,
// which the oldest compilers know; src/vulkan/khr_kernel.h makes kernels for VK_KHR_cooperative_matrix of the
// same code. There a matrix's type says what it is used for, so one of a product's factors is no MatrixA in
// one place and a MatrixB in another.
//
//   MatrixA, MatrixB  factors, float16; MatrixC  sums, float32. MatrixC(0.0) is a matrix of zeros
//   matrix_load(m, array, at, step, order), matrix_store(m, array, at, step, order)
//     order: BY_ROWS or BY_COLUMNS; array[at] is where the first row (column) begins, `step` elements on is
//            the next. An
//     element may hold several numbers.
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
