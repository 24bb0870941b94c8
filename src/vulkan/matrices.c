#include "vulkan/matrices.h"

#include <stdlib.h>

#include "vulkan/khr_matrix.h"

/* A product that a driver supports, from either extension's list. */
struct shape {
    uint32_t m, n, k;
    VkComponentTypeNV a, b, c, result;
    VkScopeNV scope;
    bool saturates;
};

static bool is_ours(struct shape s)
{
    return s.m == 16 && s.n == 16 && s.k == 16 && s.a == VK_COMPONENT_TYPE_FLOAT16_NV &&
           s.b == VK_COMPONENT_TYPE_FLOAT16_NV && s.c == VK_COMPONENT_TYPE_FLOAT32_NV &&
           s.result == VK_COMPONENT_TYPE_FLOAT32_NV && s.scope == VK_SCOPE_SUBGROUP_NV && !s.saturates;
}

static bool lists_nv(const struct vk *vk, VkInstance instance, VkPhysicalDevice p)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV list =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV)vk->GetInstanceProcAddr(
            instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV");
    uint32_t n = 0;
    bool found = false;
    if (!list || list(p, &n, NULL) != VK_SUCCESS)
        return false;
    VkCooperativeMatrixPropertiesNV *all = calloc(n ? n : 1, sizeof *all);
    for (uint32_t i = 0; all && i < n; i++)
        all[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV;
    if (all && list(p, &n, all) >= 0)
        for (uint32_t i = 0; i < n && !found; i++)
            found = is_ours((struct shape){all[i].MSize, all[i].NSize, all[i].KSize, all[i].AType,
                                           all[i].BType, all[i].CType, all[i].DType, all[i].scope, false});
    free(all);
    return found;
}

static bool lists_khr(const struct vk *vk, VkInstance instance, VkPhysicalDevice p)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR list =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vk->GetInstanceProcAddr(
            instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t n = 0;
    bool found = false;
    if (!list || list(p, &n, NULL) != VK_SUCCESS)
        return false;
    VkCooperativeMatrixPropertiesKHR *all = calloc(n ? n : 1, sizeof *all);
    for (uint32_t i = 0; all && i < n; i++)
        all[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (all && list(p, &n, all) >= 0)
        for (uint32_t i = 0; i < n && !found; i++)
            found = is_ours((struct shape){all[i].MSize, all[i].NSize, all[i].KSize, all[i].AType,
                                           all[i].BType, all[i].CType, all[i].ResultType, all[i].scope,
                                           all[i].saturatingAccumulation});
    free(all);
    return found;
}

/* A device whose subgroup size cannot be requested has only one. The largest workgroups of these kernels have
 * 8 subgroups. */
static bool has_lanes(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceVulkan13Properties v13 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &v13};
    vk->GetPhysicalDeviceProperties2(p, &props);
    bool is_asked_for = v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
    return v13.minSubgroupSize <= MATRIX_LANES && v13.maxSubgroupSize >= MATRIX_LANES &&
           (is_asked_for ? v13.maxComputeWorkgroupSubgroups >= 8
                         : v13.minSubgroupSize == v13.maxSubgroupSize);
}

static bool has_common_features(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &v12};
    vk->GetPhysicalDeviceFeatures2(p, &f);
    return v12.shaderFloat16 && v12.vulkanMemoryModel && v12.vulkanMemoryModelDeviceScope;
}

static bool has_nv(const struct vk *vk, VkInstance instance, VkPhysicalDevice p)
{
    VkPhysicalDeviceCooperativeMatrixFeaturesNV nv = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &nv};
    if (!vk_has_extension(vk, p, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return false;
    vk->GetPhysicalDeviceFeatures2(p, &f);
    return nv.cooperativeMatrix && lists_nv(vk, instance, p);
}

static bool has_khr(const struct vk *vk, VkInstance instance, VkPhysicalDevice p)
{
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR khr = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &khr};
    VkPhysicalDeviceCooperativeMatrixPropertiesKHR where = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &where};
    if (!vk_has_extension(vk, p, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return false;
    vk->GetPhysicalDeviceFeatures2(p, &f);
    vk->GetPhysicalDeviceProperties2(p, &props);
    return khr.cooperativeMatrix && where.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT &&
           lists_khr(vk, instance, p);
}

struct matrices matrices_find(const struct vk *vk, VkInstance instance, VkPhysicalDevice p)
{
    if (!has_common_features(vk, p) || !has_lanes(vk, p))
        return (struct matrices){false, false};
    return (struct matrices){.nv = has_nv(vk, instance, p), .khr = has_khr(vk, instance, p)};
}

const char *matrices_name(struct matrices offered)
{
    if (offered.khr)
        return offered.nv ? "NV and KHR" : "KHR";
    return offered.nv ? "NV" : "";
}
