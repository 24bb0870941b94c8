/* memory.h - buffers with a device address, one allocation each. */
#ifndef MOEFLUX_VULKAN_MEMORY_H
#define MOEFLUX_VULKAN_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "vulkan/loader.h"

struct moeflux_err;
struct gpu;

enum gpu_memory {
    GPU_DEVICE, /* fastest for kernels; mapped only where device memory is host memory */
    /* small, written by the host, read by kernels; device-local where the host can map it and there is room
     * */
    GPU_INPUT,
    GPU_HOST, /* host memory, cached: staging for uploads, target of read-backs */
};

struct gpu_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t address; /* device address, aligned to at least 256 bytes */
    uint8_t *host;    /* mapped bytes, or NULL */
    uint64_t bytes;
    bool is_own; /* host was mapped here (large GPU_HOST buffers) */
};

/* Memory for GPU_DEVICE that is free now, in bytes (VK_EXT_memory_budget where there is one, else its heap's
 * size). */
uint64_t gpu_free_bytes(const struct gpu *g);
/* Device-local memory that this process holds, as the driver counts it; 0 without VK_EXT_memory_budget. */
uint64_t gpu_used_bytes(const struct gpu *g);

/* Not zeroed. ERR_NO_FIT says what was asked and what is free; ERR_UNSUPPORTED: more than one allocation may
 * hold. */
int gpu_buffer_new(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint64_t bytes,
                   struct moeflux_err *e);
/* A buffer over host memory that somebody else keeps until it is freed. host and bytes are multiples of
 * gpu.import_align. ERR_UNSUPPORTED: the device cannot, or not this memory. */
int gpu_buffer_import(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint8_t *host,
                      uint64_t bytes, struct moeflux_err *e);
void gpu_buffer_free(struct gpu_buffer *b, const struct gpu *g);

#endif
