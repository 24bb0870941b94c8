/* khr_kernel.h - translates kernels for VK_NV_cooperative_matrix to VK_KHR_cooperative_matrix, which other
 * vendors' drivers have and NVIDIA's runs faster. Shader compilers support KHR's only since the middle of
 * 2023; the two extensions differ in few SPIR-V instructions. */
#ifndef MOEFLUX_VULKAN_KHR_KERNEL_H
#define MOEFLUX_VULKAN_KHR_KERNEL_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Translates a module. words: [n], a kernel that uses kernels/lib/matrices.glsl, in NV's form. *out:
 * [*n_out], freed by the caller. ERR_DEVICE: the module is not in the expected form. */
int khr_kernel(const uint32_t *words, size_t n, uint32_t **out, size_t *n_out, struct moeflux_err *e);

#endif
