/* matrices.h - which extensions give a device the matrix units that kernels/lib/matrices.glsl needs: factors
 * of 16 x 16 float16 numbers, float32 sums, each matrix spread over a subgroup. */
#ifndef MOEFLUX_VULKAN_MATRICES_H
#define MOEFLUX_VULKAN_MATRICES_H

#include <stdbool.h>

#include "vulkan/loader.h"

/* The subgroup size of kernels with matrices, whatever that of other kernels is. */
enum { MATRIX_LANES = 32 };

struct matrices {
    bool nv;  /* VK_NV_cooperative_matrix: kernels named X_coop as they are */
    bool khr; /* VK_KHR_cooperative_matrix: the same kernels, translated (khr_kernel.h) */
};

/* Returns the extensions that can be used. The device then also has float16 numbers, Vulkan's memory model
 * and subgroups of MATRIX_LANES. */
struct matrices matrices_find(const struct vk *vk, VkInstance instance, VkPhysicalDevice p);

/* Returns "NV", "KHR" or "NV and KHR"; "": none. */
const char *matrices_name(struct matrices offered);

#endif
