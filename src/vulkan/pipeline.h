/* pipeline.h - kernels of the built-in SPIR-V table, specialised and kept. */
#ifndef MOEFLUX_VULKAN_PIPELINE_H
#define MOEFLUX_VULKAN_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vulkan/loader.h"

struct moeflux_err;
struct gpu;

enum { PIPELINE_MAX_SPEC = 24, PIPELINE_ARGS_BYTES = 128 };

struct pipeline_set {
    VkPipelineLayout layout; /* push constants only: kernels reach memory by address */
    struct pipeline *all;
    size_t n, cap;
    struct pool *makers;       /* threads of pipeline_make_soon; NULL: none runs */
    struct pipeline_job *jobs; /* their jobs, until pipeline_await */
};

int pipeline_set_open(struct pipeline_set *s, const struct gpu *g, struct moeflux_err *e);
void pipeline_set_close(struct pipeline_set *s, const struct gpu *g);

/* Returns the index in s->all of the pipeline of kernels/<name>.comp with specialisation constants 0 ..
 * n_spec - 1 (4 bytes each), or a negative ERR_*. The same constants give the same index. by_khr: a kernel
 * with matrices in KHR's form (khr_kernel.h). */
int pipeline_find(struct pipeline_set *s, const char *name, bool by_khr, const uint32_t *spec,
                  uint32_t n_spec, struct moeflux_err *e);

/* Creates the pipeline at `idx` unless it exists. The driver compiles it, which takes from some milliseconds
 * to a second. */
int pipeline_make(struct pipeline_set *s, const struct gpu *g, int idx, struct moeflux_err *e);
/* Does the same on another thread. g must not move until pipeline_await, which waits for all of them and
 * returns the first error. */
int pipeline_make_soon(struct pipeline_set *s, const struct gpu *g, int idx, struct moeflux_err *e);
int pipeline_await(struct pipeline_set *s, struct moeflux_err *e);

struct pipeline {
    const char *name; /* static */
    bool by_khr;
    uint32_t spec[PIPELINE_MAX_SPEC], n_spec;
    VkPipeline handle; /* VK_NULL_HANDLE until it is created */
    bool is_coming;    /* another thread creates it */
};

/* Returns the built-in kernel's SPIR-V, *n words, or NULL. */
const uint32_t *pipeline_words(const char *name, size_t *n);

/* Returns the built-in kernel's name as a static string, or NULL when there is no such kernel. */
const char *pipeline_find_name(const char *name);

#endif
