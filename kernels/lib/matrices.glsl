// matrices.glsl - 16 x 16 matrices, each spread over a subgroup of 32 lanes, in the words of two extensions: kernels named
// X_coop are for VK_NV_cooperative_matrix, X_khr (COOP_KHR) for VK_KHR_cooperative_matrix.
//
//   MatrixA, MatrixB  factors, float16; MatrixC  sums, float32. MatrixC(0.0) is a matrix of zeros
//   matrix_load(m, array, at, step, order), matrix_store(m, array, at, step, order)
//     order: BY_ROWS or BY_COLUMNS; array[at] is where the first row (column) begins, `step` elements on is the next. An
//     element may hold several numbers.
//   matrix_muladd(a, b, c)  a * b + c
#ifndef MATRICES_GLSL
#define MATRICES_GLSL

#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#ifdef COOP_KHR
#extension GL_KHR_cooperative_matrix : require
#define MatrixA       coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatrixB       coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatrixC       coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define BY_ROWS       gl_CooperativeMatrixLayoutRowMajor
#define BY_COLUMNS    gl_CooperativeMatrixLayoutColumnMajor
#define matrix_load   coopMatLoad
#define matrix_store  coopMatStore
#define matrix_muladd coopMatMulAdd
#else
#extension GL_NV_cooperative_matrix : require
#define MatrixA       fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define MatrixB       fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define MatrixC       fcoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define BY_ROWS       false
#define BY_COLUMNS    true
#define matrix_load   coopMatLoadNV
#define matrix_store  coopMatStoreNV
#define matrix_muladd coopMatMulAddNV
#endif

#endif
