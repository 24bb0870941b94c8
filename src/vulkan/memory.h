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
    /* small, written by the host, read by kernels; device-local if the host can map it and there is room */
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

/* Returns the free bytes for GPU_DEVICE (by VK_EXT_memory_budget, else its heap's size). */
uint64_t gpu_free_bytes(const struct gpu *g);
/* Returns the bytes of device-local memory that this process holds, as the driver counts them; 0 without
 * VK_EXT_memory_budget. */
uint64_t gpu_used_bytes(const struct gpu *g);

struct gpu_heap {
    uint64_t bytes;  /* size */
    uint64_t budget; /* what this process may hold, as the driver says; UINT64_MAX: unknown */
    uint64_t used;   /* what it holds, as the driver counts; UINT64_MAX: unknown */
    bool is_local;   /* the device's own memory, or what it uses as such */
    bool is_mapped;  /* the host can map some of it */
};
/* Fills up to VK_MAX_MEMORY_HEAPS entries, in the driver's order. Returns the number of heaps. */
uint32_t gpu_list_heaps(const struct gpu *g, struct gpu_heap *out);

/* Allocates a buffer, not zeroed. ERR_NO_FIT says what was requested and what is free; ERR_UNSUPPORTED: more
 * than one allocation may hold. */
int gpu_buffer_new(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint64_t bytes,
                   struct moeflux_err *e);
/* Makes a buffer of host memory that the caller owns and keeps until the buffer is freed. host and bytes are
 * multiples of gpu.import_align. ERR_UNSUPPORTED: the device cannot import, or not this memory. */
int gpu_buffer_import(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint8_t *host,
                      uint64_t bytes, struct moeflux_err *e);
void gpu_buffer_free(struct gpu_buffer *b, const struct gpu *g);

#endif
