/* matrices.h - by which extensions a device has the matrices of kernels/lib/matrices.glsl: factors of 16 x 16
 * float16 numbers, float32 sums, each matrix spread over a subgroup. */
#ifndef MOEFLUX_VULKAN_MATRICES_H
#define MOEFLUX_VULKAN_MATRICES_H

#include <stdbool.h>

#include "vulkan/loader.h"

/* Lanes of a subgroup in kernels with matrices, whatever other kernels have. */
enum { MATRIX_LANES = 32 };

struct matrices {
    bool nv;  /* VK_NV_cooperative_matrix: kernels named X_coop as they are */
    bool khr; /* VK_KHR_cooperative_matrix: the same by khr_kernel.h */
};

/* What is needed beside matrices is there, too: float16 numbers, Vulkan's memory model, subgroups of
 * MATRIX_LANES. */
struct matrices matrices_find(const struct vk *vk, VkInstance instance, VkPhysicalDevice p);

/* "NV", "KHR", "NV and KHR": what kernels can multiply by; "": nothing. */
const char *matrices_name(struct matrices offered);

#endif
