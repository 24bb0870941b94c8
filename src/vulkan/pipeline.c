#include "vulkan/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "vulkan/device.h"
#include "vulkan/khr_kernel.h"

struct kernel_code {
    const char *name;
    const uint32_t *words;
    size_t bytes;
};

#include "kernels/table.inc"

enum { N_KERNELS = sizeof kernel_table / sizeof *kernel_table };

static const struct kernel_code *find_kernel(const char *name)
{
    for (size_t i = 0; i < N_KERNELS; i++)
        if (strcmp(kernel_table[i].name, name) == 0)
            return &kernel_table[i];
    return NULL;
}

const uint32_t *pipeline_words(const char *name, size_t *n)
{
    const struct kernel_code *k = find_kernel(name);
    *n = k ? k->bytes / 4 : 0;
    return k ? k->words : NULL;
}

const char *pipeline_find_name(const char *name)
{
    const struct kernel_code *k = find_kernel(name);
    return k ? k->name : NULL;
}

static uint32_t subgroup_size(const struct gpu *g, const char *kernel)
{
    return str_ends_with(kernel, "coop") ? MATRIX_LANES : g->subgroup_size;
}

int pipeline_set_open(struct pipeline_set *s, const struct gpu *g, struct moeflux_err *e)
{
    *s = (struct pipeline_set){0};
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = PIPELINE_ARGS_BYTES};
    VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                       .pushConstantRangeCount = 1,
                                       .pPushConstantRanges = &range};
    VkResult r = g->vk.CreatePipelineLayout(g->device, &info, NULL, &s->layout);
    return r == VK_SUCCESS ? 0 : gpu_error(r, "vkCreatePipelineLayout", e);
}

void pipeline_set_close(struct pipeline_set *s, const struct gpu *g)
{
    (void)pipeline_await(s, NULL);
    for (size_t i = 0; i < s->n; i++)
        g->vk.DestroyPipeline(g->device, s->all[i].handle, NULL);
    if (s->layout)
        g->vk.DestroyPipelineLayout(g->device, s->layout, NULL);
    free(s->all);
    *s = (struct pipeline_set){0};
}

static int make_module(const struct pipeline *p, const struct gpu *g, VkShaderModule *out,
                       struct moeflux_err *e)
{
    size_t n;
    const uint32_t *words = pipeline_words(p->name, &n);
    uint32_t *by_khr = NULL;
    int rc = p->by_khr ? khr_kernel(words, n, &by_khr, &n, e) : 0;
    if (rc < 0)
        return rc;
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = 4 * n,
                                     .pCode = by_khr ? by_khr : words};
    VkResult r = g->vk.CreateShaderModule(g->device, &code, NULL, out);
    free(by_khr);
    return r == VK_SUCCESS ? 0 : gpu_error(r, p->name, e);
}

static int make(struct pipeline *p, const struct gpu *g, VkPipelineLayout layout, struct moeflux_err *e)
{
    VkShaderModule module;
    int rc = make_module(p, g, &module, e);
    if (rc < 0)
        return rc;
    VkSpecializationMapEntry entries[PIPELINE_MAX_SPEC];
    for (uint32_t i = 0; i < p->n_spec; i++)
        entries[i] = (VkSpecializationMapEntry){.constantID = i, .offset = 4 * i, .size = 4};
    VkSpecializationInfo values = {.mapEntryCount = p->n_spec,
                                   .pMapEntries = entries,
                                   .dataSize = 4 * (size_t)p->n_spec,
                                   .pData = p->spec};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo width = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = subgroup_size(g, p->name)};
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = g->cuts_dispatches ? VK_PIPELINE_CREATE_DISPATCH_BASE : 0,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = g->sets_subgroup_size ? &width : NULL,
                  .flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &values},
        .layout = layout};
    VkResult r = g->vk.CreateComputePipelines(g->device, VK_NULL_HANDLE, 1, &info, NULL, &p->handle);
    g->vk.DestroyShaderModule(g->device, module, NULL);
    return r == VK_SUCCESS ? 0 : gpu_error(r, p->name, e);
}

int pipeline_make(struct pipeline_set *s, const struct gpu *g, int idx, struct moeflux_err *e)
{
    if (s->all[idx].is_coming) /* if it fails there, it fails again below, with the reason */
        (void)pipeline_await(s, NULL);
    struct pipeline *p = &s->all[idx];
    return p->handle ? 0 : make(p, g, s->layout, e);
}

/* ---- on other threads ---- */

enum { MAKERS = 16 };

struct pipeline_job {
    struct pool_job job;
    struct pipeline_job *next;
    const struct gpu *gpu;
    VkPipelineLayout layout;
    struct pipeline made; /* a copy: the set's array may move meanwhile */
    int idx, rc;
    struct moeflux_err err;
};

static void run_job(struct pool_job *job)
{
    struct pipeline_job *j = (struct pipeline_job *)(void *)job;
    j->rc = make(&j->made, j->gpu, j->layout, &j->err);
}

int pipeline_make_soon(struct pipeline_set *s, const struct gpu *g, int idx, struct moeflux_err *e)
{
    if (s->all[idx].handle || s->all[idx].is_coming)
        return 0;
    uint32_t n_threads = (uint32_t)size_min(cores_allowed(), MAKERS);
    if (!s->makers && !(s->makers = pool_new(n_threads, e)))
        return ERR_MEMORY;
    struct pipeline_job *j = mem_new(1, sizeof *j, e);
    if (!j)
        return ERR_MEMORY;
    *j = (struct pipeline_job){
        .job.run = run_job, .next = s->jobs, .gpu = g, .layout = s->layout, .made = s->all[idx], .idx = idx};
    s->jobs = j;
    s->all[idx].is_coming = true;
    pool_submit(s->makers, &j->job);
    return 0;
}

int pipeline_await(struct pipeline_set *s, struct moeflux_err *e)
{
    int rc = 0;
    pool_free(s->makers);
    s->makers = NULL;
    while (s->jobs) {
        struct pipeline_job *j = s->jobs;
        s->jobs = j->next;
        s->all[j->idx].handle = j->made.handle;
        s->all[j->idx].is_coming = false;
        if (j->rc < 0)
            rc = err_set(e, j->err.code, "%s", j->err.text);
        free(j);
    }
    return rc;
}

int pipeline_find(struct pipeline_set *s, const char *name, bool by_khr, const uint32_t *spec,
                  uint32_t n_spec, struct moeflux_err *e)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->all[i].name, name) == 0 && s->all[i].by_khr == by_khr && s->all[i].n_spec == n_spec &&
            memcmp(s->all[i].spec, spec, 4 * (size_t)n_spec) == 0)
            return (int)i;
    const struct kernel_code *k = find_kernel(name);
    if (!k || n_spec > PIPELINE_MAX_SPEC)
        return err_set(e, ERR_DEVICE, "no kernel named %s with %u constants is built in", name, n_spec);
    void *all = s->all;
    int rc = mem_grow(&all, &s->cap, s->n + 1, sizeof *s->all, e);
    if (rc < 0)
        return rc;
    s->all = all;
    s->all[s->n] = (struct pipeline){.name = k->name, .by_khr = by_khr, .n_spec = n_spec};
    memcpy(s->all[s->n].spec, spec, 4 * (size_t)n_spec);
    return (int)s->n++;
}
