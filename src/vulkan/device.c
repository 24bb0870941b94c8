#include "vulkan/device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "vulkan/khr_matrix.h"

enum { MAX_DEVICES = 64, VENDOR_AMD = 0x1002, VENDOR_INTEL = 0x8086 };
enum { INTEL_REGISTERS = 128, USUAL_REGISTERS = 256 }; /* a lane's, with kernel_lanes */

static const char *result_name(VkResult r)
{
    switch (r) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case VK_ERROR_DEVICE_LOST:
        return "the device was lost";
    case VK_ERROR_INITIALIZATION_FAILED:
        return "initialisation failed";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
        return "no Vulkan driver is installed";
    case VK_ERROR_LAYER_NOT_PRESENT:
        return "a requested layer is not installed";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
        return "an extension is not present";
    case VK_ERROR_FEATURE_NOT_PRESENT:
        return "a feature is not present";
    case VK_ERROR_TOO_MANY_OBJECTS:
        return "too many objects";
    default:
        return NULL;
    }
}

int gpu_error(VkResult r, const char *call, struct moeflux_err *e)
{
    const char *name = result_name(r);
    bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    int code = memory ? ERR_NO_FIT : r == VK_ERROR_DEVICE_LOST ? ERR_LOST : ERR_DEVICE;
    if (name)
        return err_set(e, code, "%s: %s", call, name);
    return err_set(e, code, "%s: Vulkan error %d", call, (int)r);
}

static const char *kind_name(VkPhysicalDeviceType t)
{
    switch (t) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return "software";
    default:
        return "other";
    }
}

static int kind_rank(const char *kind)
{
    static const char *const order[] = {"discrete", "integrated", "virtual", "other", "software"};
    for (int i = 0; i < 5; i++)
        if (strcmp(kind, order[i]) == 0)
            return i;
    return 5;
}

static uint64_t local_bytes(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceMemoryProperties m;
    vk->GetPhysicalDeviceMemoryProperties(p, &m);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m.memoryHeapCount; i++)
        if (m.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)
            sum += m.memoryHeaps[i].size;
    return sum;
}

static bool has_compute_queue(const struct vk *vk, VkPhysicalDevice p, uint32_t *family, bool *timestamps)
{
    VkQueueFamilyProperties q[32];
    uint32_t n = 32;
    vk->GetPhysicalDeviceQueueFamilyProperties(p, &n, q);
    for (uint32_t i = 0; i < n; i++)
        if (q[i].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            *family = i;
            *timestamps = q[i].timestampValidBits > 0;
            return true;
        }
    return false;
}

/* Returns the family that can only copy: it drives the copy engines. Without one the compute queue copies. */
static uint32_t transfer_family(const struct vk *vk, VkPhysicalDevice p, uint32_t compute_family)
{
    VkQueueFamilyProperties q[32];
    uint32_t n = 32;
    vk->GetPhysicalDeviceQueueFamilyProperties(p, &n, q);
    for (uint32_t i = 0; i < n; i++)
        if ((q[i].queueFlags & (VK_QUEUE_TRANSFER_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT)) ==
            VK_QUEUE_TRANSFER_BIT)
            return i;
    return compute_family;
}

/* Returns the limits of subgroups; p supports Vulkan 1.3. */
static VkPhysicalDeviceVulkan13Properties subgroup_limits(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceVulkan13Properties v13 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &v13};
    vk->GetPhysicalDeviceProperties2(p, &props);
    v13.pNext = NULL;
    return v13;
}

/* Kernels are specialised for one subgroup size: the pipeline requests it, or the device has no other. */
static bool has_fixed_subgroups(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceVulkan13Properties v13 = subgroup_limits(vk, p);
    return v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT ||
           v13.minSubgroupSize == v13.maxSubgroupSize;
}

/* Returns the subgroup size of the kernels without matrices. Intel's registers are a thread's: a lane has 128
 * at the smallest size, and 32 at the largest, where most kernels spill. */
static uint32_t kernel_lanes(const struct vk *vk, VkPhysicalDevice p, const VkPhysicalDeviceProperties *props,
                             uint32_t usual)
{
    VkPhysicalDeviceVulkan13Properties v13 = subgroup_limits(vk, p);
    bool is_chosen = v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
    return props->vendorID == VENDOR_INTEL && is_chosen ? v13.minSubgroupSize : usual;
}

/* Returns the first feature that kernels and streams need and the device lacks, or "". All except the
 * subgroup operations are Vulkan 1.3 core features, checked here because a driver may report a 1.3 device
 * that lacks one. */
static const char *missing_feature(const struct vk *vk, VkPhysicalDevice p,
                                   const VkPhysicalDeviceProperties *props,
                                   const VkPhysicalDeviceSubgroupProperties *sub)
{
    VkPhysicalDeviceVulkan13Features v13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                            .pNext = &v13};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &v12};
    const VkSubgroupFeatureFlags ops = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                       VK_SUBGROUP_FEATURE_BALLOT_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    uint32_t family;
    bool timestamps;

    if (props->apiVersion < VK_API_VERSION_1_3)
        return "Vulkan 1.3";
    vk->GetPhysicalDeviceFeatures2(p, &f);
    if (!v12.bufferDeviceAddress)
        return "bufferDeviceAddress";
    if (!v12.timelineSemaphore)
        return "timelineSemaphore";
    if (!v12.hostQueryReset)
        return "hostQueryReset";
    if (!v13.synchronization2)
        return "synchronization2";
    if (!v13.maintenance4)
        return "maintenance4";
    if (!v13.subgroupSizeControl)
        return "subgroupSizeControl";
    if (!v13.computeFullSubgroups)
        return "computeFullSubgroups";
    if (!(sub->supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) || (sub->supportedOperations & ops) != ops)
        return "subgroup arithmetic, ballot and shuffle in compute shaders";
    if (sub->subgroupSize < 4)
        return "subgroups of at least 4 lanes";
    if (!has_fixed_subgroups(vk, p))
        return "a choice of the subgroup size in compute shaders";
    if (!has_compute_queue(vk, p, &family, &timestamps))
        return "a compute queue";
    return "";
}

/* Whether the driver is one that only compiles: with RADV_FORCE_FAMILY, Mesa's RADV offers a device that is
 * not in the machine, has no node of the kernel's and fails or crashes when work is submitted. */
static bool is_null_hardware(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceDrmPropertiesEXT node = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRM_PROPERTIES_EXT};
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
                                               .pNext = &node};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &driver};
    if (!vk_has_extension(vk, p, VK_EXT_PHYSICAL_DEVICE_DRM_EXTENSION_NAME))
        return false;
    vk->GetPhysicalDeviceProperties2(p, &props);
    return driver.driverID == VK_DRIVER_ID_MESA_RADV && !node.hasPrimary && !node.hasRender;
}

static void find_pci(const struct vk *vk, VkPhysicalDevice p, struct gpu_info *out)
{
    VkPhysicalDevicePCIBusInfoPropertiesEXT bus = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &bus};
    if (!vk_has_extension(vk, p, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME))
        return;
    vk->GetPhysicalDeviceProperties2(p, &props);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.%x", bus.pciDomain & 0xffff, bus.pciBus & 0xff,
             bus.pciDevice & 0xff, bus.pciFunction & 0xf);
}

static void describe(const struct vk *vk, VkInstance instance, VkPhysicalDevice p, struct gpu_info *out)
{
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceSubgroupProperties sub = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
                                              .pNext = &driver};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &sub};
    vk->GetPhysicalDeviceProperties2(p, &props);
    *out = (struct gpu_info){.kind = kind_name(props.properties.deviceType),
                             .memory_bytes = local_bytes(vk, p),
                             .subgroup_size = props.properties.apiVersion < VK_API_VERSION_1_3
                                                  ? sub.subgroupSize
                                                  : kernel_lanes(vk, p, &props.properties, sub.subgroupSize)};
    snprintf(out->name, sizeof out->name, "%s", props.properties.deviceName);
    snprintf(out->driver, sizeof out->driver, "%.120s %.120s", driver.driverName, driver.driverInfo);
    snprintf(out->missing, sizeof out->missing, "%s",
             is_null_hardware(vk, p) ? "hardware (RADV_FORCE_FAMILY is set)"
                                     : missing_feature(vk, p, &props.properties, &sub));
    find_pci(vk, p, out);
    if (!out->missing[0])
        out->matrices = matrices_find(vk, instance, p);
}

static int create_instance(struct vk *vk, VkInstance *out, struct moeflux_err *e)
{
    uint32_t version = 0;
    *out = VK_NULL_HANDLE;
    int rc = vk_open(vk, e);
    if (rc < 0)
        return rc;
    if (vk->EnumerateInstanceVersion(&version) != VK_SUCCESS || version < VK_API_VERSION_1_3)
        return err_set(e, ERR_DEVICE, "Vulkan 1.3 is needed, the installed loader speaks %u.%u",
                       VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .pApplicationName = "moeflux",
                             .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
    VkResult r = vk->CreateInstance(&info, NULL, out);
    return r == VK_SUCCESS ? vk_find_of_instance(vk, *out, e) : gpu_error(r, "vkCreateInstance", e);
}

/* The instance may be half open. */
static void destroy_instance(struct vk *vk, VkInstance instance)
{
    if (instance && vk->DestroyInstance)
        vk->DestroyInstance(instance, NULL);
    vk_close(vk);
}

struct found {
    VkPhysicalDevice physical;
    struct gpu_info info;
};

static int best_first(const void *a, const void *b)
{
    const struct gpu_info *x = &((const struct found *)a)->info, *y = &((const struct found *)b)->info;
    bool ux = !x->missing[0], uy = !y->missing[0];
    if (ux != uy)
        return ux ? -1 : 1;
    if (kind_rank(x->kind) != kind_rank(y->kind))
        return kind_rank(x->kind) - kind_rank(y->kind);
    return x->memory_bytes > y->memory_bytes ? -1 : x->memory_bytes < y->memory_bytes;
}

/* Finds all devices, best first. Returns their number; none is an error. */
static int find_devices(const struct vk *vk, VkInstance instance, struct found *found, struct moeflux_err *e)
{
    VkPhysicalDevice p[MAX_DEVICES];
    uint32_t n = MAX_DEVICES;
    VkResult r = vk->EnumeratePhysicalDevices(instance, &n, p);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE)
        return gpu_error(r, "vkEnumeratePhysicalDevices", e);
    if (n == 0)
        return err_set(e, ERR_DEVICE,
                       "no Vulkan device was found (a GPU's comes with its driver; a software one with "
                       "mesa-vulkan-drivers)");
    for (uint32_t i = 0; i < n; i++) {
        found[i].physical = p[i];
        describe(vk, instance, p[i], &found[i].info);
    }
    qsort(found, n, sizeof *found, best_first);
    return (int)n;
}

int gpu_list(struct gpu_info *out, uint32_t cap, struct moeflux_err *e)
{
    struct vk vk;
    VkInstance instance;
    struct found *found = mem_new(MAX_DEVICES, sizeof *found, e);
    if (!found)
        return ERR_MEMORY;
    int n = create_instance(&vk, &instance, e);
    if (n == 0)
        n = find_devices(&vk, instance, found, e);
    for (int i = 0; i < n && (uint32_t)i < cap; i++)
        out[i] = found[i].info;
    free(found);
    destroy_instance(&vk, instance);
    return n;
}

static bool name_has(const char *name, const char *part)
{
    size_t n = strlen(part);
    for (; *name; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == tolower((unsigned char)part[i]))
            i++;
        if (i == n)
            return true;
    }
    return n == 0;
}

bool gpu_is_preferred(const struct gpu_info *info)
{
    return !info->missing[0] &&
           (strcmp(info->kind, "discrete") == 0 || strcmp(info->kind, "integrated") == 0);
}

static int refuse_name(const struct found *found, int n, const char *which, struct moeflux_err *e)
{
    char list[300] = "";
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%d (%.40s), ", i, found[i].info.name);
    return err_set(e, ERR_USAGE,
                   "`device` %s: no such device; expected auto, %sor cpu (see `moeflux_list_devices`)", which,
                   list);
}

static int choose(const struct found *found, int n, const char *which, struct moeflux_err *e)
{
    char *end;
    unsigned long idx = strtoul(which, &end, 10);
    int pick = -1;
    if (*which && !*end && idx < (unsigned long)n)
        pick = (int)idx;
    for (int i = 0; i < n && pick < 0; i++)
        if (*end && strcmp(found[i].info.name, which) == 0)
            pick = i;
    for (int i = 0; i < n && pick < 0; i++)
        if (*end && name_has(found[i].info.name, which))
            pick = i;
    if (pick < 0)
        return refuse_name(found, n, which, e);
    if (found[pick].info.missing[0])
        return err_set(e, ERR_DEVICE, "`device` %s: %s lacks %s", which, found[pick].info.name,
                       found[pick].info.missing);
    return pick;
}

/* Whether float16 code may keep denormals, whatever float32 code does with its own. */
static bool has_denorm(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceVulkan12Properties props12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &props12};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                                            .pNext = &v12};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &v11};
    vk->GetPhysicalDeviceProperties2(p, &props);
    vk->GetPhysicalDeviceFeatures2(p, &f);
    return v12.shaderFloat16 && v11.storageBuffer16BitAccess && props12.shaderDenormPreserveFloat16 &&
           props12.denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE;
}

static uint32_t count_processors(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV sm = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &sm};
    if (vk_has_extension(vk, p, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME))
        vk->GetPhysicalDeviceProperties2(p, &props);
    return sm.shaderSMCount;
}

static uint64_t import_align(const struct vk *vk, VkPhysicalDevice p)
{
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &host};
    vk->GetPhysicalDeviceProperties2(p, &props);
    return host.minImportedHostPointerAlignment;
}

static int create_device(struct gpu *g, struct moeflux_err *e)
{
    g->matrices = g->info.matrices;
    bool has_matrices = g->matrices.nv || g->matrices.khr;
    g->has_denorm = has_denorm(&g->vk, g->physical);
    VkPhysicalDeviceCooperativeMatrixFeaturesNV nv = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR khr = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
        .pNext = g->matrices.nv ? &nv : NULL,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceVulkan13Features v13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
                                            .pNext = g->matrices.khr ? &khr : khr.pNext,
                                            .synchronization2 = VK_TRUE,
                                            .maintenance4 = VK_TRUE,
                                            .subgroupSizeControl = VK_TRUE,
                                            .computeFullSubgroups = VK_TRUE};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                            .pNext = &v13,
                                            .bufferDeviceAddress = VK_TRUE,
                                            .timelineSemaphore = VK_TRUE,
                                            .hostQueryReset = VK_TRUE,
                                            .shaderFloat16 = has_matrices || g->has_denorm,
                                            .vulkanMemoryModel = has_matrices,
                                            /* Atomics of other kernels have that scope. */
                                            .vulkanMemoryModelDeviceScope = has_matrices};
    VkPhysicalDeviceVulkan11Features v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                                            .pNext = &v12,
                                            .storageBuffer16BitAccess = g->has_denorm};
    float priority = 1.0f;
    const VkDeviceQueueCreateInfo queues[] = {
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = g->queue_family,
         .queueCount = 1,
         .pQueuePriorities = &priority},
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = g->transfer_family,
         .queueCount = 1,
         .pQueuePriorities = &priority},
    };
    const char *extensions[4];
    uint32_t n_extensions = 0;
    g->has_budget = vk_has_extension(&g->vk, g->physical, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    if (g->has_budget)
        extensions[n_extensions++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    if (g->matrices.khr)
        extensions[n_extensions++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
    if (g->matrices.nv)
        extensions[n_extensions++] = VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME;
    if (vk_has_extension(&g->vk, g->physical, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
        extensions[n_extensions++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
        g->import_align = import_align(&g->vk, g->physical);
    }
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &v11,
                               .queueCreateInfoCount = g->transfer_family == g->queue_family ? 1 : 2,
                               .pQueueCreateInfos = queues,
                               .enabledExtensionCount = n_extensions,
                               .ppEnabledExtensionNames = extensions};
    VkResult r = g->vk.CreateDevice(g->physical, &info, NULL, &g->device);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkCreateDevice", e);
    int rc = vk_find_of_device(&g->vk, g->device, e);
    if (rc < 0)
        return rc;
    g->lock = mem_new(1, sizeof(pthread_mutex_t), e);
    if (!g->lock)
        return ERR_MEMORY;
    pthread_mutex_init(g->lock, NULL); /* a default mutex cannot fail */
    g->vk.GetDeviceQueue(g->device, g->queue_family, 0, &g->queue);
    g->vk.GetDeviceQueue(g->device, g->transfer_family, 0, &g->transfer_queue);
    return 0;
}

static void read_limits(struct gpu *g)
{
    VkPhysicalDeviceMaintenance3Properties m3 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
    VkPhysicalDeviceMaintenance4Properties m4 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES, .pNext = &m3};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &m4};
    g->vk.GetPhysicalDeviceProperties2(g->physical, &p);
    const VkPhysicalDeviceLimits *l = &p.properties.limits;
    bool timestamps = false;
    has_compute_queue(&g->vk, g->physical, &g->queue_family, &timestamps);
    g->transfer_family = transfer_family(&g->vk, g->physical, g->queue_family);
    g->vk.GetPhysicalDeviceMemoryProperties(g->physical, &g->memory);
    g->max_workgroup = (uint32_t)size_min(l->maxComputeWorkGroupInvocations, l->maxComputeWorkGroupSize[0]);
    g->subgroup_size = g->info.subgroup_size;
    VkPhysicalDeviceVulkan13Properties v13 = subgroup_limits(&g->vk, g->physical);
    g->sets_subgroup_size = v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
    if (g->sets_subgroup_size)
        g->max_workgroup = (uint32_t)size_min(g->max_workgroup,
                                              (uint64_t)g->subgroup_size * v13.maxComputeWorkgroupSubgroups);
    g->n_processors = count_processors(&g->vk, g->physical);
    g->max_shared_bytes = l->maxComputeSharedMemorySize;
    for (int i = 0; i < 3; i++)
        g->max_groups[i] = l->maxComputeWorkGroupCount[i];
    g->max_alloc_bytes = size_min(m3.maxMemoryAllocationSize, m4.maxBufferSize);
    g->ns_per_tick = timestamps ? (double)l->timestampPeriod : 0;
    g->is_cpu = p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    g->is_amd = p.properties.vendorID == VENDOR_AMD;
    g->lane_registers = p.properties.vendorID == VENDOR_INTEL ? INTEL_REGISTERS : USUAL_REGISTERS;
    g->cuts_dispatches = p.properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
}

/* The host caches device memory only where it is host memory. It maps a card's memory, in whole or in a small
 * window, as write-combined. */
static bool has_cached_local_memory(const VkPhysicalDeviceMemoryProperties *m)
{
    const VkMemoryPropertyFlags want =
        VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
        VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    for (uint32_t i = 0; i < m->memoryTypeCount; i++)
        if ((m->memoryTypes[i].propertyFlags & want) == want)
            return true;
    return false;
}

static int open_found(struct gpu *g, const struct found *list, uint32_t index, struct moeflux_err *e)
{
    g->physical = list[index].physical;
    g->info = list[index].info;
    g->index = index;
    read_limits(g);
    g->is_unified = has_cached_local_memory(&g->memory);
    return create_device(g, e);
}

int gpu_open(struct gpu *g, const char *which, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *g = (struct gpu){0};
    struct found *found = mem_new(MAX_DEVICES, sizeof *found, e);
    if (!found)
        return ERR_MEMORY;
    int rc = create_instance(&g->vk, &g->instance, &why);
    if (rc == 0)
        rc = find_devices(&g->vk, g->instance, found, &why);
    if (rc < 0)
        err_set(e, (enum moeflux_err_code)rc, "`device` %s: %s", which, why.text);
    if (rc > 0)
        rc = choose(found, rc, which, e);
    if (rc >= 0)
        rc = open_found(g, found, (uint32_t)rc, e);
    free(found);
    if (rc < 0)
        gpu_close(g);
    return rc;
}

int gpu_open_preferred(struct gpu *g, struct moeflux_err *e)
{
    struct moeflux_err none = {0};
    *g = (struct gpu){0};
    struct found *found = mem_new(MAX_DEVICES, sizeof *found, e);
    if (!found)
        return ERR_MEMORY;
    int rc = create_instance(&g->vk, &g->instance, &none);
    if (rc == 0)
        rc = find_devices(&g->vk, g->instance, found, &none);
    if (rc > 0)
        rc = gpu_is_preferred(&found[0].info) ? open_found(g, found, 0, e) : 1;
    else if (rc == ERR_DEVICE)
        rc = 1;
    else if (e)
        *e = none;
    free(found);
    if (rc != 0)
        gpu_close(g);
    return rc;
}

struct gpu gpu_share(const struct gpu *g)
{
    struct gpu copy = *g;
    copy.is_shared = true;
    return copy;
}

void gpu_close(struct gpu *g)
{
    if (!g->is_shared) {
        if (g->device && g->vk.DestroyDevice)
            g->vk.DestroyDevice(g->device, NULL);
        destroy_instance(&g->vk, g->instance);
        if (g->lock)
            pthread_mutex_destroy(g->lock);
        free(g->lock);
    }
    *g = (struct gpu){0};
}
