/* khr_kernel.h - kernels for VK_NV_cooperative_matrix turned into such for VK_KHR_cooperative_matrix, which
 * other vendors' drivers have, and which NVIDIA's runs faster. Compilers of shaders know its language since
 * the middle of 2023 only; the two extensions differ in few instructions of SPIR-V. */
#ifndef MOEFLUX_VULKAN_KHR_KERNEL_H
#define MOEFLUX_VULKAN_KHR_KERNEL_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* words[n]: a module of kernels/lib/matrices.glsl in NV's form. *out, of *n_out words, is the caller's to
 * free. What either extension's form lacks is ERR_DEVICE. */
int khr_kernel(const uint32_t *words, size_t n, uint32_t **out, size_t *n_out, struct moeflux_err *e);

#endif
