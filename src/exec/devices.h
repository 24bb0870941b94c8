/* devices.h - lists the devices that exec_open can open, without opening any. */
#ifndef MOEFLUX_EXEC_DEVICES_H
#define MOEFLUX_EXEC_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_info;
struct moeflux_err;

struct exec_device {
    char option[16]; /* its name for exec_options.device: a Vulkan device's index, or "cpu" */
    char name[256];
    char kind[16];    /* "discrete", "integrated", "virtual", "other", "software": Vulkan devices; or "cpu" */
    char driver[256]; /* a Vulkan device's driver and its version; "": the cpu */
    uint64_t memory_bytes;
    uint32_t subgroup_size; /* 0: the cpu */
    char matrices[32];      /* matrix extensions: "NV", "KHR", "NV and KHR"; "": none that kernels here use */
    char isa[16];           /* the cpu's instruction set; "": a Vulkan device */
    uint32_t n_threads;     /* threads that the cpu computes with; 0: a Vulkan device */
    int32_t memory_node;    /* memory node (NUMA) that a GPU is attached to; -1: unknown */
    bool is_usable;
    bool is_default;   /* exec_open takes it when no device is named */
    char why_not[128]; /* the missing feature; "": it is usable */
};

enum { EXEC_MAX_DEVICES = 65 };
/* Fills up to `cap` entries: GPUs that may be used without being named, the cpu, then other Vulkan devices.
 * Without Vulkan there is only the cpu. Returns the number of devices, at most EXEC_MAX_DEVICES.
 * ERR_MEMORY. */
int exec_list_devices(struct exec_device *out, uint32_t cap, struct moeflux_err *e);

/* Describes the Vulkan device at `idx` of gpu_list. root: prefix of /sys; "", or a test's directory. */
void exec_describe_gpu(struct exec_device *d, const struct gpu_info *from, uint32_t idx, const char *root);

#endif
