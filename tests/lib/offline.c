#include "offline.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "moeflux.h"
#include "vulkan/device.h"
#include "vulkan/pipeline.h"

enum { VENDOR_INTEL = 0x8086 };
enum { MOST_PIPELINES = 4096, MOST_STATISTICS = 64, N_BATCHED = 4, N_SINGLE = 4, MOST_MODULES = 64 };
#define LEFT_OUT ((VkPipeline)(uintptr_t)1)

static const uint64_t HEAP_BYTES = (uint64_t)64 << 30;

/* LARGE_BYTES: fewest bytes of an allocation for weights. ALIAS_BYTES: those that it takes. */
enum { LARGE_BYTES = 256 << 20, ALIAS_BYTES = 4 << 20 };

/* The functions that the linker leads here, and those that they stand for (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_vk_find_of_instance(struct vk *v, VkInstance instance, struct moeflux_err *e);
int __real_vk_find_of_device(struct vk *v, VkDevice device, struct moeflux_err *e);
int __real_pipeline_set_open(struct pipeline_set *s, const struct gpu *g, struct moeflux_err *e);
int __wrap_vk_find_of_instance(struct vk *v, VkInstance instance, struct moeflux_err *e);
int __wrap_vk_find_of_device(struct vk *v, VkDevice device, struct moeflux_err *e);
int __wrap_pipeline_set_open(struct pipeline_set *s, const struct gpu *g, struct moeflux_err *e);
/* NOLINTEND(bugprone-reserved-identifier) */

struct compiled {
    VkPipeline handle;
    const uint32_t *code;
    struct offline_pipeline what;
};

struct module {
    VkShaderModule handle;
    const uint32_t *code;
};

/* Vulkan's functions have no argument for it. */
static struct {
    struct vk driver; /* the functions that are replaced */
    uint32_t lanes;
    bool is_brief;
    enum offline_phase phase;
    pthread_mutex_t lock; /* guards what follows: pipelines are made on several threads */
    struct compiled all[MOST_PIPELINES];
    size_t n;
    struct module modules[MOST_MODULES]; /* the last ones */
    const uint32_t *codes[MOST_PIPELINES];
    size_t n_modules, n_codes;
    bool reports; /* the device has statistics of pipelines */
    atomic_uint n_buffers;
    struct pipeline_set *set;
    const struct gpu *gpu;
    char device[256];
    PFN_vkGetPipelineExecutablePropertiesKHR properties;
    PFN_vkGetPipelineExecutableStatisticsKHR statistics;
} offline = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- memory: the driver's device has none ---- */

struct memory {
    void *host; /* NULL: not mapped */
    uint64_t bytes;
};

/* A card, or a device whose memory is the host's. */
static VKAPI_ATTR void VKAPI_CALL get_memory(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties *out)
{
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                         VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                                         VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    offline.driver.GetPhysicalDeviceProperties2(p, &props);
    bool is_card = props.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    *out = (VkPhysicalDeviceMemoryProperties){
        .memoryTypeCount = 2,
        .memoryTypes = {{is_card ? local : local | mapped, 0}, {mapped, 1}},
        .memoryHeapCount = 2,
        .memoryHeaps = {{HEAP_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT}, {HEAP_BYTES, 0}}};
}

static VKAPI_ATTR void VKAPI_CALL get_memory_2(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties2 *out)
{
    get_memory(p, &out->memoryProperties);
    for (VkBaseOutStructure *s = out->pNext; s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
            for (uint32_t i = 0; i < VK_MAX_MEMORY_HEAPS; i++)
                ((VkPhysicalDeviceMemoryBudgetPropertiesEXT *)(void *)s)->heapBudget[i] = HEAP_BYTES;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice d, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *a, VkDeviceMemory *out)
{
    (void)d, (void)a;
    struct memory *m = calloc(1, sizeof *m);
    if (!m)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    m->bytes = info->allocationSize;
    *out = (VkDeviceMemory)(uintptr_t)m;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL release(VkDevice d, VkDeviceMemory memory, const VkAllocationCallbacks *a)
{
    (void)d, (void)a;
    struct memory *m = (struct memory *)(uintptr_t)memory;
    if (m->host)
        munmap(m->host, m->bytes);
    free(m);
}

/* Maps one piece of memory over and over, so that gigabytes of weights take none. What is written is lost.
 * Kernels never run, and the host reads no weights back. */
static void *map_alias(uint64_t bytes)
{
    uint8_t *host = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int fd = memfd_create("weights", MFD_CLOEXEC);
    bool is_mapped = host != MAP_FAILED && fd >= 0 && ftruncate(fd, ALIAS_BYTES) == 0;
    for (uint64_t at = 0; is_mapped && at < bytes; at += ALIAS_BYTES) {
        const void *part = mmap(host + at, size_min(ALIAS_BYTES, bytes - at), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0);
        is_mapped = part != MAP_FAILED;
    }
    if (fd >= 0)
        close(fd);
    if (!is_mapped && host != MAP_FAILED)
        munmap(host, bytes);
    return is_mapped ? host : MAP_FAILED;
}

/* Zeros: what kernels would have written is read. */
static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice d, VkDeviceMemory memory, VkDeviceSize off,
                                          VkDeviceSize bytes, VkMemoryMapFlags flags, void **out)
{
    (void)d, (void)bytes, (void)flags;
    struct memory *m = (struct memory *)(uintptr_t)memory;
    void *host = m->bytes >= LARGE_BYTES ? map_alias(m->bytes)
                                         : mmap(NULL, m->bytes, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED)
        return VK_ERROR_MEMORY_MAP_FAILED;
    m->host = host;
    *out = (uint8_t *)host + off;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL get_requirements(VkDevice d, VkBuffer b, VkMemoryRequirements *out)
{
    offline.driver.GetBufferMemoryRequirements(d, b, out);
    out->memoryTypeBits = 3;
}

static VKAPI_ATTR VkResult VKAPI_CALL bind_memory(VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize off)
{
    (void)d, (void)b, (void)m, (void)off;
    return VK_SUCCESS;
}

/* Buffers' addresses are far apart. */
static VKAPI_ATTR VkDeviceAddress VKAPI_CALL get_address(VkDevice d, const VkBufferDeviceAddressInfo *info)
{
    (void)d, (void)info;
    return (VkDeviceAddress)(atomic_fetch_add(&offline.n_buffers, 1) + 1) << 40;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_import(VkDevice d, VkExternalMemoryHandleTypeFlagBits type,
                                                 const void *host, VkMemoryHostPointerPropertiesEXT *out)
{
    (void)d, (void)type, (void)host;
    out->memoryTypeBits = 3;
    return VK_SUCCESS;
}

/* ---- the device ---- */

/* Adds the subgroup size that was asked for. A device that is not there has no node either, for which the
 * program refuses it. */
static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice p, VkPhysicalDeviceProperties2 *out)
{
    offline.driver.GetPhysicalDeviceProperties2(p, out);
    for (VkBaseOutStructure *s = out->pNext; s; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES && offline.lanes)
            ((VkPhysicalDeviceSubgroupProperties *)(void *)s)->subgroupSize = offline.lanes;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES && offline.lanes &&
            out->properties.vendorID == VENDOR_INTEL) /* the program takes the smallest */
            ((VkPhysicalDeviceVulkan13Properties *)(void *)s)->minSubgroupSize = offline.lanes;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRM_PROPERTIES_EXT)
            ((VkPhysicalDeviceDrmPropertiesEXT *)(void *)s)->hasRender = VK_TRUE;
    }
}

/* Opens the device with statistics of pipelines. */
static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice p, const VkDeviceCreateInfo *asked,
                                                    const VkAllocationCallbacks *a, VkDevice *out)
{
    const char *names[16];
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR reports = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pNext = (void *)(uintptr_t)asked->pNext,
        .pipelineExecutableInfo = VK_TRUE};
    VkDeviceCreateInfo info = *asked;
    offline.reports =
        vk_has_extension(&offline.driver, p, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    if (!offline.reports)
        return VK_ERROR_EXTENSION_NOT_PRESENT;
    assert(info.enabledExtensionCount < 16);
    memcpy(names, info.ppEnabledExtensionNames, info.enabledExtensionCount * sizeof *names);
    names[info.enabledExtensionCount++] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    info.ppEnabledExtensionNames = names;
    info.pNext = &reports;
    return offline.driver.CreateDevice(p, &info, a, out);
}

int __wrap_vk_find_of_instance(struct vk *v, VkInstance instance, struct moeflux_err *e)
{
    int rc = __real_vk_find_of_instance(v, instance, e);
    if (rc < 0)
        return rc;
    offline.driver = *v;
    v->GetPhysicalDeviceProperties2 = get_properties;
    v->GetPhysicalDeviceMemoryProperties = get_memory;
    v->GetPhysicalDeviceMemoryProperties2 = get_memory_2;
    v->CreateDevice = create_device;
    return 0;
}

/* ---- pipelines ---- */

/* Returns the number of one of these names, separated by '|'. */
static int64_t find_number(const VkPipelineExecutableStatisticKHR *s, uint32_t n, const char *names)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *at = strstr(names, s[i].name);
        size_t length = strlen(s[i].name);
        if (at && (at == names || at[-1] == '|') && (at[length] == '|' || !at[length]))
            return s[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR
                       ? (int64_t)s[i].value.f64
                       : (int64_t)s[i].value.u64;
    }
    return OFFLINE_UNKNOWN;
}

static void read_statistics(VkDevice device, struct compiled *c)
{
    VkPipelineExecutableStatisticKHR s[MOST_STATISTICS] = {0};
    uint32_t n = MOST_STATISTICS, n_parts = 1;
    VkPipelineInfoKHR pipeline = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = c->handle};
    VkPipelineExecutablePropertiesKHR part = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR};
    VkPipelineExecutableInfoKHR first = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                         .pipeline = c->handle};
    for (uint32_t i = 0; i < n; i++)
        s[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    offline.properties(device, &pipeline, &n_parts, &part);
    if (n_parts == 0 || offline.statistics(device, &first, &n, s) < 0)
        n = 0;
    struct offline_pipeline *w = &c->what;
    w->lanes = part.subgroupSize;
    w->registers = find_number(s, n, "VGPRs|Max live registers");
    w->spills = find_number(s, n, "Spilled VGPRs|Spill Count");
    w->scalar_spills = find_number(s, n, "Spilled SGPRs");
    w->scratch_bytes = find_number(s, n, "Scratch size|Scratch Memory Size");
    w->shared_bytes = find_number(s, n, "LDS size|Workgroup Memory Size");
    w->code_bytes = find_number(s, n, "Code size|Instruction Count");
    w->occupancy = find_number(s, n, "Subgroups per SIMD");
}

static double thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Notes whose code a module has. */
static VKAPI_ATTR VkResult VKAPI_CALL create_module(VkDevice d, const VkShaderModuleCreateInfo *info,
                                                    const VkAllocationCallbacks *a, VkShaderModule *out)
{
    VkShaderModule made;
    VkResult r = offline.driver.CreateShaderModule(d, info, a, &made);
    pthread_mutex_lock(&offline.lock);
    for (size_t i = 0; i < MOST_MODULES; i++) /* the handle of a module that is gone */
        if (offline.modules[i].handle == made)
            offline.modules[i].handle = VK_NULL_HANDLE;
    struct module *m = &offline.modules[offline.n_modules++ % MOST_MODULES];
    *m = (struct module){made, info->pCode};
    pthread_mutex_unlock(&offline.lock);
    *out = made;
    return r;
}

/* Whether another pipeline of the kernel, with other constants, stands for it. Notes the kernel. */
static bool is_left_out(VkShaderModule module, struct compiled *c)
{
    bool found = false;
    pthread_mutex_lock(&offline.lock);
    for (size_t i = 0; i < MOST_MODULES; i++)
        if (offline.modules[i].handle == module)
            c->code = offline.modules[i].code;
    for (size_t i = 0; i < offline.n_codes && !found; i++)
        found = offline.codes[i] == c->code;
    if (!found)
        offline.codes[offline.n_codes++] = c->code;
    pthread_mutex_unlock(&offline.lock);
    return found && offline.is_brief;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t n,
                                                       const VkComputePipelineCreateInfo *asked,
                                                       const VkAllocationCallbacks *a, VkPipeline *out)
{
    VkComputePipelineCreateInfo info = *asked;
    info.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    struct compiled c = {0};
    *out = LEFT_OUT;
    if (is_left_out(info.stage.module, &c))
        return VK_SUCCESS;
    double begin = thread_ms();
    VkResult r = offline.driver.CreateComputePipelines(device, cache, n, &info, a, out);
    double ms = thread_ms() - begin;
    if (r != VK_SUCCESS)
        return r;
    c.handle = *out;
    c.what.compile_ms = ms;
    read_statistics(device, &c);
    pthread_mutex_lock(&offline.lock);
    assert(n == 1 && offline.n < MOST_PIPELINES);
    offline.all[offline.n++] = c;
    pthread_mutex_unlock(&offline.lock);
    return r;
}

static VKAPI_ATTR void VKAPI_CALL destroy_pipeline(VkDevice d, VkPipeline p, const VkAllocationCallbacks *a)
{
    if (p != LEFT_OUT)
        offline.driver.DestroyPipeline(d, p, a);
}

static struct compiled *find_compiled(VkPipeline handle)
{
    struct compiled *found = NULL;
    pthread_mutex_lock(&offline.lock);
    for (size_t i = 0; i < offline.n && !found; i++)
        if (offline.all[i].handle == handle)
            found = &offline.all[i];
    pthread_mutex_unlock(&offline.lock);
    return found;
}

int __wrap_pipeline_set_open(struct pipeline_set *s, const struct gpu *g, struct moeflux_err *e)
{
    offline.set = s;
    offline.gpu = g;
    snprintf(offline.device, sizeof offline.device, "%s", g->info.name);
    return __real_pipeline_set_open(s, g, e);
}

/* ---- commands: none reaches the driver ---- */

static VKAPI_ATTR VkResult VKAPI_CALL begin(VkCommandBuffer c, const VkCommandBufferBeginInfo *info)
{
    (void)c, (void)info;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL end(VkCommandBuffer c)
{
    (void)c;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL bind(VkCommandBuffer c, VkPipelineBindPoint point, VkPipeline p)
{
    (void)c, (void)point;
    struct compiled *found = find_compiled(p);
    if (found)
        found->what.n_runs[offline.phase]++;
}

static VKAPI_ATTR void VKAPI_CALL push(VkCommandBuffer c, VkPipelineLayout layout, VkShaderStageFlags stages,
                                       uint32_t off, uint32_t size, const void *values)
{
    (void)c, (void)layout, (void)stages, (void)off, (void)size, (void)values;
}

static VKAPI_ATTR void VKAPI_CALL dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z)
{
    (void)c, (void)x, (void)y, (void)z;
}

static VKAPI_ATTR void VKAPI_CALL dispatch_from(VkCommandBuffer c, uint32_t x0, uint32_t y0, uint32_t z0,
                                                uint32_t x, uint32_t y, uint32_t z)
{
    (void)c, (void)x0, (void)y0, (void)z0, (void)x, (void)y, (void)z;
}

static VKAPI_ATTR void VKAPI_CALL order(VkCommandBuffer c, const VkDependencyInfo *info)
{
    (void)c, (void)info;
}

static VKAPI_ATTR void VKAPI_CALL copy(VkCommandBuffer c, VkBuffer from, VkBuffer to, uint32_t n,
                                       const VkBufferCopy *regions)
{
    (void)c, (void)from, (void)to, (void)n, (void)regions;
}

static VKAPI_ATTR void VKAPI_CALL fill(VkCommandBuffer c, VkBuffer b, VkDeviceSize off, VkDeviceSize size,
                                       uint32_t value)
{
    (void)c, (void)b, (void)off, (void)size, (void)value;
}

static VKAPI_ATTR void VKAPI_CALL stamp(VkCommandBuffer c, VkPipelineStageFlags2 stage, VkQueryPool pool,
                                        uint32_t i)
{
    (void)c, (void)stage, (void)pool, (void)i;
}

/* A device that takes no work has no semaphores either. */
static VKAPI_ATTR VkResult VKAPI_CALL create_semaphore(VkDevice d, const VkSemaphoreCreateInfo *info,
                                                       const VkAllocationCallbacks *a, VkSemaphore *out)
{
    (void)d, (void)info, (void)a;
    *out = (VkSemaphore)(uintptr_t)1;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_semaphore(VkDevice d, VkSemaphore s, const VkAllocationCallbacks *a)
{
    (void)d, (void)s, (void)a;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t n, const VkSubmitInfo2 *info, VkFence f)
{
    (void)queue, (void)n, (void)info, (void)f;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_for(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t ns)
{
    (void)d, (void)info, (void)ns;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_idle(VkDevice d)
{
    (void)d;
    return VK_SUCCESS;
}

/* Everything is done. */
static VKAPI_ATTR VkResult VKAPI_CALL get_counter(VkDevice d, VkSemaphore s, uint64_t *value)
{
    (void)d, (void)s;
    *value = UINT64_MAX;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL reset_times(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n)
{
    (void)d, (void)pool, (void)first, (void)n;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_times(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n,
                                                size_t bytes, void *out, VkDeviceSize stride,
                                                VkQueryResultFlags flags)
{
    (void)d, (void)pool, (void)first, (void)bytes, (void)flags;
    for (uint32_t i = 0; i < n; i++)
        memcpy((uint8_t *)out + i * stride, &(uint64_t){i}, sizeof(uint64_t));
    return VK_SUCCESS;
}

int __wrap_vk_find_of_device(struct vk *v, VkDevice device, struct moeflux_err *e)
{
    int rc = __real_vk_find_of_device(v, device, e);
    if (rc < 0)
        return rc;
    offline.driver.CreateComputePipelines = v->CreateComputePipelines;
    offline.properties = (PFN_vkGetPipelineExecutablePropertiesKHR)v->GetDeviceProcAddr(
        device, "vkGetPipelineExecutablePropertiesKHR");
    offline.statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)v->GetDeviceProcAddr(
        device, "vkGetPipelineExecutableStatisticsKHR");
    offline.driver.GetBufferMemoryRequirements = v->GetBufferMemoryRequirements;
    v->AllocateMemory = allocate;
    v->FreeMemory = release;
    v->MapMemory = map;
    v->BindBufferMemory = bind_memory;
    v->GetBufferMemoryRequirements = get_requirements;
    v->GetBufferDeviceAddress = get_address;
    if (v->GetMemoryHostPointerPropertiesEXT)
        v->GetMemoryHostPointerPropertiesEXT = get_import;
    offline.driver.CreateShaderModule = v->CreateShaderModule;
    offline.driver.DestroyPipeline = v->DestroyPipeline;
    v->CreateShaderModule = create_module;
    v->DestroyPipeline = destroy_pipeline;
    v->CreateComputePipelines = create_pipelines;
    v->BeginCommandBuffer = begin;
    v->EndCommandBuffer = end;
    v->ResetQueryPool = reset_times;
    v->CmdBindPipeline = bind;
    v->CmdPushConstants = push;
    v->CmdDispatch = dispatch;
    v->CmdDispatchBase = dispatch_from;
    v->CmdPipelineBarrier2 = order;
    v->CmdCopyBuffer = copy;
    v->CmdFillBuffer = fill;
    v->CmdWriteTimestamp2 = stamp;
    v->CreateSemaphore = create_semaphore;
    v->DestroySemaphore = destroy_semaphore;
    v->QueueSubmit2 = submit;
    v->WaitSemaphores = wait_for;
    v->DeviceWaitIdle = wait_idle;
    v->GetSemaphoreCounterValue = get_counter;
    v->GetQueryPoolResults = get_times;
    return 0;
}

/* ---- a model ---- */

static int eval_prompt_and_tokens(struct moeflux_session *s, uint32_t n, struct moeflux_err *e)
{
    int32_t *ids = mem_new(n, sizeof *ids, e);
    if (!ids)
        return ERR_MEMORY;
    offline.phase = OFFLINE_PROMPT;
    int rc = moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){0}, e);
    offline.phase = OFFLINE_DECODE;
    for (uint32_t i = 0; i < N_SINGLE && rc >= 0; i++)
        rc = moeflux_session_eval(s, ids, 1, &(struct moeflux_outputs){0}, e);
    free(ids);
    return rc;
}

/* Every number of sequences that are decoded together. */
static int eval_batches(struct moeflux_model *m, uint32_t context, struct moeflux_err *e)
{
    struct moeflux_session *s[N_BATCHED] = {0};
    uint32_t vocab = moeflux_model_get_info(m).vocab_size, n = 0;
    uint32_t most = (uint32_t)size_min(N_BATCHED, moeflux_max_batched(m));
    const int32_t ids[N_BATCHED] = {0};
    float *logits[N_BATCHED];
    float *rows = mem_new((size_t)N_BATCHED * vocab, sizeof *rows, e);
    int rc = rows ? 0 : ERR_MEMORY;
    offline.phase = OFFLINE_BATCH;
    while (n < most && rc >= 0) {
        logits[n] = rows + (size_t)n * vocab;
        rc = moeflux_session_new(&s[n++], m, context, e);
    }
    for (uint32_t i = 2; i <= most && rc >= 0; i++)
        rc = moeflux_eval_batched(s, ids, i, logits, e);
    for (uint32_t i = 0; i < N_BATCHED; i++)
        moeflux_session_free(s[i]);
    free(rows);
    return rc;
}

/* Those that the first dispatch would compile. */
static int compile_rest(struct moeflux_err *e)
{
    int rc = pipeline_await(offline.set, e);
    for (size_t i = 0; i < offline.set->n && rc >= 0; i++)
        rc = pipeline_make(offline.set, offline.gpu, (int)i, e);
    return rc;
}

static int collect(struct offline_pipeline **out, size_t *n, struct moeflux_err *e)
{
    const struct pipeline_set *s = offline.set;
    struct offline_pipeline *all = mem_new(s->n, sizeof *all, e);
    if (!all)
        return ERR_MEMORY;
    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct pipeline *p = &s->all[i];
        const struct compiled *c = find_compiled(p->handle);
        if (!c)
            continue;
        struct offline_pipeline *to = &all[(*n)++];
        size_t at = 0;
        *to = c->what;
        to->kernel = p->name;
        for (uint32_t k = 0; k < p->n_spec && at < sizeof to->constants; k++)
            at += (size_t)snprintf(to->constants + at, sizeof to->constants - at, "%s%u", k ? "," : "",
                                   p->spec[k]);
    }
    *out = all;
    return 0;
}

static int use(struct moeflux_model *m, const struct offline_request *q, struct moeflux_err *e)
{
    struct moeflux_session *s = NULL;
    uint32_t context = (uint32_t)size_min(q->context, moeflux_model_get_info(m).max_context);
    int rc = moeflux_session_new(&s, m, context, e);
    if (rc >= 0)
        rc = eval_prompt_and_tokens(s, context / 2, e);
    moeflux_session_free(s);
    if (rc >= 0)
        rc = eval_batches(m, context, e);
    return rc < 0 ? rc : compile_rest(e);
}

int offline_compile(const struct offline_request *q, struct offline_pipeline **out, size_t *n, char *device,
                    struct moeflux_err *e)
{
    const struct moeflux_options o = {.dir = q->dir,
                                      .device = "0",
                                      .chunk = q->chunk,
                                      .context = q->context,
                                      .gpu_memory_bytes = q->gpu_memory_bytes};
    struct moeflux_model *m = NULL;
    offline.n = 0;
    offline.n_codes = 0;
    offline.lanes = q->lanes;
    offline.is_brief = q->is_brief;
    offline.phase = OFFLINE_OPEN;
    int rc = moeflux_model_open(&m, &o, e);
    if (rc >= 0)
        rc = use(m, q, e);
    if (rc >= 0)
        rc = collect(out, n, e);
    memcpy(device, offline.device, sizeof offline.device);
    moeflux_model_close(m);
    return rc < 0 ? rc : 0;
}
