/* device.h - finds, checks and opens a Vulkan 1.3 device with one compute queue. */
#ifndef MOEFLUX_VULKAN_DEVICE_H
#define MOEFLUX_VULKAN_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "vulkan/loader.h"
#include "vulkan/matrices.h"

struct moeflux_err;

struct gpu_info { /* one physical device, before it is opened */
    char name[256];
    char driver[256];
    const char *kind; /* "discrete", "integrated", "virtual", "other", "software" */
    char pci[16];     /* its address, "0000:3b:00.0" (VK_EXT_pci_bus_info); "": the driver does not say */
    uint64_t memory_bytes; /* sum of the device-local heaps */
    uint32_t subgroup_size;
    struct matrices matrices; /* whether or not this build has kernels for them */
    char missing[128]; /* the feature that this program needs and the device lacks; "" when it can be used */
};

struct gpu {
    struct vk vk;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family;
    uint32_t index;         /* of the device in gpu_list */
    VkQueue transfer_queue; /* of the copy engines where the device has such a family, else `queue` */
    uint32_t transfer_family;
    struct gpu_info info;
    VkPhysicalDeviceMemoryProperties memory;
    bool is_cpu;     /* a software device: its lanes and its memory are this machine's */
    bool is_unified; /* device memory is host memory: mapped, cached, coherent */
    bool has_budget; /* VK_EXT_memory_budget */
    /* of host memory that can be imported (VK_EXT_external_memory_host); 0: none can */
    uint64_t import_align;
    struct matrices matrices; /* of the device that kernels were built for */
    /* float16 arithmetic that keeps denormals, and 16-bit numbers in memory: X_denorm can run */
    bool has_denorm;
    uint32_t n_processors;  /* shader cores, as the device tells (VK_NV_shader_sm_builtins); 0: it does not */
    uint32_t subgroup_size; /* every pipeline has exactly this, but for those with matrices: MATRIX_LANES */
    bool sets_subgroup_size; /* it is asked for when a pipeline is created; else the device knows no other */
    uint32_t max_workgroup;  /* invocations */
    uint32_t max_shared_bytes;
    uint32_t max_groups[3];   /* workgroups of a dispatch, each dimension */
    uint64_t max_alloc_bytes; /* one allocation, one buffer */
    double ns_per_tick;       /* timestamps; 0: the queue has none */
    /* A dispatch may be run in pieces. That its pipelines allow for it costs a discrete device 2 % of decode
     * (H200), and such devices are fast enough without. */
    bool cuts_dispatches;
};

/* Lists the devices, best first (discrete, integrated, virtual, other, software; more memory first). Fills up
 * to `cap` entries and returns how many there are. ERR_DEVICE: no Vulkan loader or driver. */
int gpu_list(struct gpu_info *out, uint32_t cap, struct moeflux_err *e);

/* Opens the device whose index in gpu_list, whose name, or part of whose name (case ignored) is `which`.
 * ERR_DEVICE names what is missing. */
int gpu_open(struct gpu *g, const char *which, struct moeflux_err *e);

/* Whether a device is used without being named: a discrete or an integrated GPU that lacks nothing. */
bool gpu_is_preferred(const struct gpu_info *info);
/* Opens the first such device of gpu_list. Returns 1, with nothing opened, where there is none: no Vulkan
 * counts as that. A GPU that fails to open is an error. */
int gpu_open_preferred(struct gpu *g, struct moeflux_err *e);
void gpu_close(struct gpu *g);

/* "vkQueueSubmit2: VK_ERROR_DEVICE_LOST" as ERR_DEVICE; the out-of-memory results are ERR_NO_FIT. */
int gpu_error(VkResult r, const char *call, struct moeflux_err *e);

#endif
