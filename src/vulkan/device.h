/* device.h - finds, checks and opens a Vulkan 1.3 device with one compute queue. */
#ifndef MOEFLUX_VULKAN_DEVICE_H
#define MOEFLUX_VULKAN_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "vulkan/loader.h"
#include "vulkan/matrices.h"

struct moeflux_err;

struct gpu_info { /* one physical device, before it is opened */
    char name[256];
    char driver[256];
    const char *kind;      /* "discrete", "integrated", "virtual", "other", "software" */
    char pci[16];          /* PCI address, "0000:3b:00.0" (VK_EXT_pci_bus_info); "": unknown */
    uint64_t memory_bytes; /* sum of the device-local heaps */
    uint32_t subgroup_size;
    /* matrix units that the device has, even if this build has no kernels for them */
    struct matrices matrices;
    char missing[128]; /* the required feature that the device lacks; "": it can be used */
};

struct gpu {
    struct vk vk;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family;
    bool is_shared;         /* a copy: another struct gpu closes the device */
    pthread_mutex_t *lock;  /* held while the queues are used: copies use the same ones */
    uint32_t index;         /* the device's index in gpu_list */
    VkQueue transfer_queue; /* the copy engines' queue if the device has one, else `queue` */
    uint32_t transfer_family;
    struct gpu_info info;
    VkPhysicalDeviceMemoryProperties memory;
    bool is_cpu; /* a software device: it uses this machine's cores and memory */
    bool is_amd;
    bool is_unified;         /* device memory is host memory: mapped, cached, coherent */
    bool has_budget;         /* VK_EXT_memory_budget */
    uint32_t lane_registers; /* a lane's 4-byte registers in kernels without matrices */
    /* alignment of host memory to import (VK_EXT_external_memory_host); 0: it cannot */
    uint64_t import_align;
    struct matrices matrices; /* matrix units that this build has kernels for */
    /* float16 arithmetic that keeps denormals, and 16-bit numbers in memory: X_denorm can run */
    bool has_denorm;
    uint32_t n_processors;   /* shader cores (VK_NV_shader_sm_builtins); 0: unknown */
    uint32_t subgroup_size;  /* the size in every pipeline except those with matrices: MATRIX_LANES */
    bool sets_subgroup_size; /* pipelines request the size; false: the device has no other */
    uint32_t max_workgroup;  /* invocations */
    uint32_t max_shared_bytes;
    uint32_t max_groups[3];   /* workgroups of a dispatch, each dimension */
    uint64_t max_alloc_bytes; /* one allocation, one buffer */
    double ns_per_tick;       /* unit of timestamps; 0: the queue has none */
    /* A dispatch may be run in pieces. Not on discrete devices: pipelines that allow it cost 2 % of decode
     * speed (H200), and such devices are fast enough without. */
    bool cuts_dispatches;
};

/* Lists the devices, best first (discrete, integrated, virtual, other, software; more memory first). Fills up
 * to `cap` entries and returns the number of devices. ERR_DEVICE: no Vulkan loader or driver. */
int gpu_list(struct gpu_info *out, uint32_t cap, struct moeflux_err *e);

/* Opens a device. which: its index in gpu_list, its name, or a part of its name (case ignored). ERR_DEVICE
 * names what is missing. */
int gpu_open(struct gpu *g, const char *which, struct moeflux_err *e);

/* Whether a device may be used without being named: a discrete or integrated GPU that lacks nothing. */
bool gpu_is_preferred(const struct gpu_info *info);
/* Opens the first such device of gpu_list. Returns 1, with nothing opened, if there is none or no Vulkan. A
 * GPU that fails to open is an error. */
int gpu_open_preferred(struct gpu *g, struct moeflux_err *e);
/* Makes a copy of an open device, which is closed before it. */
struct gpu gpu_share(const struct gpu *g);
void gpu_close(struct gpu *g);

/* Fills e with "CALL: RESULT". Returns ERR_NO_FIT for out-of-memory results, ERR_LOST when the device
 * is lost, else ERR_DEVICE. */
int gpu_error(VkResult r, const char *call, struct moeflux_err *e);

#endif
