/* loader.h - loads the Vulkan functions that the program calls at run time: a machine without libvulkan runs
 * on the CPU.
 *
 * Device functions are looked up per device, so that calls skip the loader's dispatch. */
#ifndef MOEFLUX_VULKAN_LOADER_H
#define MOEFLUX_VULKAN_LOADER_H

/* Without prototypes, a call that does not go through struct vk does not compile. */
#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <stdbool.h>

#include <vulkan/vulkan.h>

struct moeflux_err;

/* each(NAME) for every function vkNAME; the three lists differ in what it is looked up with. */
#define VK_GLOBAL_FUNCTIONS(each) each(EnumerateInstanceVersion) each(CreateInstance)
#define VK_INSTANCE_FUNCTIONS(each)                                                                          \
    each(DestroyInstance) each(EnumeratePhysicalDevices) each(EnumerateDeviceExtensionProperties)            \
        each(GetPhysicalDeviceFeatures) each(GetPhysicalDeviceFeatures2)                                     \
            each(GetPhysicalDeviceMemoryProperties) each(GetPhysicalDeviceMemoryProperties2)                 \
                each(GetPhysicalDeviceProperties2) each(GetPhysicalDeviceQueueFamilyProperties)              \
                    each(CreateDevice) each(GetDeviceProcAddr)
#define VK_DEVICE_FUNCTIONS(each)                                                                            \
    each(DestroyDevice) each(GetDeviceQueue) each(DeviceWaitIdle) each(QueueSubmit2) each(AllocateMemory)    \
        each(FreeMemory) each(MapMemory) each(CreateBuffer) each(DestroyBuffer)                              \
            each(GetBufferMemoryRequirements) each(BindBufferMemory) each(GetBufferDeviceAddress)            \
                each(CreatePipelineLayout) each(DestroyPipelineLayout) each(CreateShaderModule)              \
                    each(DestroyShaderModule) each(CreateComputePipelines) each(DestroyPipeline)             \
                        each(CreateCommandPool) each(DestroyCommandPool) each(AllocateCommandBuffers)        \
                            each(BeginCommandBuffer) each(EndCommandBuffer) each(CreateQueryPool)            \
                                each(DestroyQueryPool) each(ResetQueryPool) each(GetQueryPoolResults)        \
                                    each(CreateSemaphore) each(DestroySemaphore) each(WaitSemaphores)        \
                                        each(GetSemaphoreCounterValue) each(CmdBindPipeline)                 \
                                            each(CmdPushConstants) each(CmdDispatch) each(CmdDispatchBase)   \
                                                each(CmdPipelineBarrier2) each(CmdCopyBuffer)                \
                                                    each(CmdFillBuffer) each(CmdWriteTimestamp2)

struct vk {
    void *library;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define VK_MEMBER(name) PFN_vk##name name;
    VK_GLOBAL_FUNCTIONS(VK_MEMBER)
    VK_INSTANCE_FUNCTIONS(VK_MEMBER)
    VK_DEVICE_FUNCTIONS(VK_MEMBER)
#undef VK_MEMBER
    PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT; /* NULL: not supported */
};

/* Loads the library and its global functions. ERR_DEVICE: there is none, or it is no Vulkan loader. */
int vk_open(struct vk *v, struct moeflux_err *e);
/* Look up the functions of an instance, of a device. ERR_DEVICE names the one that is missing. */
int vk_find_of_instance(struct vk *v, VkInstance instance, struct moeflux_err *e);
int vk_find_of_device(struct vk *v, VkDevice device, struct moeflux_err *e);
bool vk_has_extension(const struct vk *vk, VkPhysicalDevice p, const char *name);
/* Unloads the library. The instance must be destroyed. A zeroed struct is legal. */
void vk_close(struct vk *v);

#endif
