/* vulkan_layer.c - a Vulkan layer that makes a device fail, or pose as another kind, for programs in
 * tests.
 *
 * VK_LAYER_PATH names the directory with moeflux_test.json, VK_INSTANCE_LAYERS=VK_LAYER_MOEFLUX_test loads
 * it.
 *
 * $MOEFLUX_VK_FAULT names a file with "KIND N": it is read at each call that it may concern.
 *   lost N       submission N, counted from the start of the program, and everything after it on its device
 *                fail with VK_ERROR_DEVICE_LOST. A device that is opened later works. The file is replaced by
 *                the one with the same name and ".next", if there is one, or else removed
 *   memory N     allocation N alone fails with VK_ERROR_OUT_OF_DEVICE_MEMORY
 *   full N       allocation N and later ones fail likewise, until the file says something else
 *   hold N       allocation N and later ones wait until the file says something else
 *   none 0       nothing fails
 * $MOEFLUX_VK_EMPTY=1: pipelines are not compiled, and dispatches do nothing. Copies and semaphores work, so
 * that a program does what it always does in a hundredth of the time, with numbers that are mostly 0.
 * $MOEFLUX_VK_SLOW=NS, with $MOEFLUX_VK_EMPTY: by the time stamps of a device, each workgroup takes so long,
 * and so does the host's call that submits it.
 * $MOEFLUX_VK_LOG: at the end of each device a line with the numbers of submissions and allocations so
 * far, of the memory objects that were not freed, the nanoseconds that its longest submission took by
 * $MOEFLUX_VK_SLOW, their sum, and the bytes of copies between buffers.
 * $MOEFLUX_VK_KIND=integrated: devices are integrated GPUs. $MOEFLUX_VK_BUDGET="BUDGET USED", in bytes: what
 * VK_EXT_memory_budget reports of each heap; the extension is reported, too. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))

/* A program opens its devices one after the other, all on one driver: the last instance's functions do for
 * all, and each device is known by its handle. */
static PFN_vkGetInstanceProcAddr next_instance_proc;
static VkInstance instance;
enum { MAX_DEVICES = 64 };
static struct device {
    VkDevice handle;
    PFN_vkGetDeviceProcAddr next;
    atomic_bool is_lost;
    atomic_long n_memory;
} devices[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long n_submits, n_allocations;

/* Work of the command buffers, and the time stamps that they wrote, on a slow device. */
enum { MAX_COMMANDS = 1024, MAX_STAMPS = 8192 };
static struct {
    VkCommandBuffer commands;
    uint64_t ns;
} works[MAX_COMMANDS];
static struct {
    VkQueryPool pool;
    uint32_t query;
    uint64_t ns;
} stamps[MAX_STAMPS];
static uint64_t longest_ns, sum_ns;
static atomic_ullong copied_bytes;

static struct device *device_of(VkDevice handle)
{
    struct device *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES && !found; i++)
        found = devices[i].handle == handle ? &devices[i] : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Queues are dispatched through their device's table, which is their first word, as it is the device's. */
static struct device *device_of_queue(VkQueue queue)
{
    struct device *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES && !found; i++)
        if (devices[i].handle && *(void **)devices[i].handle == *(void **)queue)
            found = &devices[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_hit(const char *kind, long n)
{
    const char *path = getenv("MOEFLUX_VK_FAULT");
    char text[64] = "", found[16] = "";
    long at = -1;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    return bytes > 0 && sscanf(text, "%15s %ld", found, &at) == 2 && strcmp(found, kind) == 0 &&
           (strcmp(kind, "memory") == 0 ? n == at : n >= at);
}

static bool is_empty(void)
{
    return getenv("MOEFLUX_VK_EMPTY") != NULL;
}

/* Returns whether submission n loses its device. If so, it removes the fault, or puts the next one in its
 * place: one file, one loss. */
static bool take_loss(long n)
{
    char next[4096];
    const char *path = getenv("MOEFLUX_VK_FAULT");
    pthread_mutex_lock(&lock);
    bool is = is_hit("lost", n);
    snprintf(next, sizeof next, "%s.next", path ? path : "");
    if (is && rename(next, path))
        unlink(path);
    pthread_mutex_unlock(&lock);
    return is;
}

#define NEXT(d, name) ((PFN_vk##name)(d)->next((d)->handle, "vk" #name))

/* Returns the device whose table is the handle's first word. */
static struct device *device_of_commands(VkCommandBuffer c)
{
    return device_of_queue((VkQueue)c);
}

static VKAPI_ATTR void VKAPI_CALL layer_CmdCopyBuffer(VkCommandBuffer c, VkBuffer from, VkBuffer to,
                                                      uint32_t n, const VkBufferCopy *regions)
{
    struct device *d = device_of_commands(c);
    for (uint32_t i = 0; i < n; i++)
        copied_bytes += regions[i].size;
    NEXT(d, CmdCopyBuffer)(c, from, to, n, regions);
}

/* ---- a slow device ---- */

static uint64_t group_ns(void)
{
    const char *text = getenv("MOEFLUX_VK_SLOW");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Returns the work of a command buffer. The caller holds the lock. */
static uint64_t *work_of(VkCommandBuffer c)
{
    for (int i = 0; i < MAX_COMMANDS; i++)
        if (!works[i].commands || works[i].commands == c) {
            works[i].commands = c;
            return &works[i].ns;
        }
    abort();
}

/* Returns the value of a time stamp. The caller holds the lock. */
static uint64_t *stamp_of(VkQueryPool pool, uint32_t query)
{
    for (int i = 0; i < MAX_STAMPS; i++)
        if (!stamps[i].pool || (stamps[i].pool == pool && stamps[i].query == query)) {
            stamps[i].pool = pool;
            stamps[i].query = query;
            return &stamps[i].ns;
        }
    abort();
}

static void add_groups(VkCommandBuffer c, uint64_t n)
{
    pthread_mutex_lock(&lock);
    if (group_ns())
        *work_of(c) += n * group_ns();
    pthread_mutex_unlock(&lock);
}

static void count_submission(const VkSubmitInfo2 *info)
{
    uint64_t ns = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; group_ns() && i < info->commandBufferInfoCount; i++)
        ns += *work_of(info->pCommandBufferInfos[i].commandBuffer);
    longest_ns = ns > longest_ns ? ns : longest_ns;
    sum_ns += ns;
    pthread_mutex_unlock(&lock);
    /* The host's clock measures the device, too. */
    if (ns)
        usleep((useconds_t)(ns / 1000));
}

static VKAPI_ATTR void VKAPI_CALL slow_write_stamp(VkCommandBuffer c, VkPipelineStageFlags2 stage,
                                                   VkQueryPool pool, uint32_t query)
{
    (void)stage;
    pthread_mutex_lock(&lock);
    *stamp_of(pool, query) = *work_of(c);
    pthread_mutex_unlock(&lock);
}

static VKAPI_ATTR VkResult VKAPI_CALL slow_stamps(VkDevice handle, VkQueryPool pool, uint32_t first,
                                                  uint32_t n, size_t bytes, void *out, VkDeviceSize stride,
                                                  VkQueryResultFlags flags)
{
    (void)handle, (void)bytes, (void)flags;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n; i++)
        memcpy((char *)out + i * stride, stamp_of(pool, first + i), sizeof(uint64_t));
    pthread_mutex_unlock(&lock);
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_QueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *info,
                                                         VkFence fence)
{
    struct device *d = device_of_queue(queue);
    long at = n_submits++;
    count_submission(info);
    if (!d->is_lost && take_loss(at)) {
        /* Nothing runs on a device that is lost: the program may free its memory. */
        NEXT(d, QueueWaitIdle)(queue);
        d->is_lost = true;
    }
    return d->is_lost ? VK_ERROR_DEVICE_LOST : NEXT(d, QueueSubmit2)(queue, n, info, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_WaitSemaphores(VkDevice handle, const VkSemaphoreWaitInfo *info,
                                                           uint64_t ns)
{
    struct device *d = device_of(handle);
    return d->is_lost ? VK_ERROR_DEVICE_LOST : NEXT(d, WaitSemaphores)(handle, info, ns);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_GetSemaphoreCounterValue(VkDevice handle, VkSemaphore s,
                                                                     uint64_t *value)
{
    struct device *d = device_of(handle);
    return d->is_lost ? VK_ERROR_DEVICE_LOST : NEXT(d, GetSemaphoreCounterValue)(handle, s, value);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_DeviceWaitIdle(VkDevice handle)
{
    struct device *d = device_of(handle);
    return d->is_lost ? VK_ERROR_DEVICE_LOST : NEXT(d, DeviceWaitIdle)(handle);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_GetQueryPoolResults(VkDevice handle, VkQueryPool pool,
                                                                uint32_t first, uint32_t n, size_t bytes,
                                                                void *out, VkDeviceSize stride,
                                                                VkQueryResultFlags flags)
{
    struct device *d = device_of(handle);
    return d->is_lost ? VK_ERROR_DEVICE_LOST
                      : NEXT(d, GetQueryPoolResults)(handle, pool, first, n, bytes, out, stride, flags);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_CreateComputePipelines(VkDevice handle, VkPipelineCache cache,
                                                                   uint32_t n,
                                                                   const VkComputePipelineCreateInfo *info,
                                                                   const VkAllocationCallbacks *a,
                                                                   VkPipeline *out)
{
    struct device *d = device_of(handle);
    if (!is_empty())
        return NEXT(d, CreateComputePipelines)(handle, cache, n, info, a, out);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (VkPipeline)(uintptr_t)1;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL layer_DestroyPipeline(VkDevice handle, VkPipeline p,
                                                        const VkAllocationCallbacks *a)
{
    struct device *d = device_of(handle);
    if (!is_empty())
        NEXT(d, DestroyPipeline)(handle, p, a);
}

/* What replaces the recording of pipelines and dispatches on an empty device. */
static VKAPI_ATTR void VKAPI_CALL skip_bind(VkCommandBuffer c, VkPipelineBindPoint at, VkPipeline p)
{
    (void)c, (void)at, (void)p;
}

static VKAPI_ATTR void VKAPI_CALL skip_dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z)
{
    add_groups(c, (uint64_t)x * y * z);
}

static VKAPI_ATTR void VKAPI_CALL skip_dispatch_base(VkCommandBuffer c, uint32_t x0, uint32_t y0, uint32_t z0,
                                                     uint32_t x, uint32_t y, uint32_t z)
{
    (void)x0, (void)y0, (void)z0;
    add_groups(c, (uint64_t)x * y * z);
}

static bool is_import(const VkMemoryAllocateInfo *info)
{
    const VkBaseInStructure *s = info->pNext;
    while (s && s->sType != VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT)
        s = s->pNext;
    return s != NULL;
}

/* Clears memory that the host can map: dispatches write no results there, and old bytes may be a NaN. */
static void clear(const struct device *d, VkDeviceMemory m, VkDeviceSize bytes)
{
    void *host;
    if (NEXT(d, MapMemory)(d->handle, m, 0, VK_WHOLE_SIZE, 0, &host) != VK_SUCCESS)
        return;
    memset(host, 0, bytes);
    NEXT(d, UnmapMemory)(d->handle, m);
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_AllocateMemory(VkDevice handle, const VkMemoryAllocateInfo *info,
                                                           const VkAllocationCallbacks *a,
                                                           VkDeviceMemory *out)
{
    struct device *d = device_of(handle);
    long at = n_allocations++;
    while (is_hit("hold", at))
        usleep(5000);
    if (is_hit("memory", at) || is_hit("full", at))
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult r = NEXT(d, AllocateMemory)(handle, info, a, out);
    d->n_memory += r == VK_SUCCESS;
    if (r == VK_SUCCESS && is_empty() && !is_import(info))
        clear(d, *out, info->allocationSize);
    return r;
}

static VKAPI_ATTR void VKAPI_CALL layer_FreeMemory(VkDevice handle, VkDeviceMemory m,
                                                   const VkAllocationCallbacks *a)
{
    struct device *d = device_of(handle);
    if (!d)
        return;
    d->n_memory -= m != VK_NULL_HANDLE;
    NEXT(d, FreeMemory)(handle, m, a);
}

static VKAPI_ATTR void VKAPI_CALL layer_DestroyDevice(VkDevice handle, const VkAllocationCallbacks *a)
{
    struct device *d = device_of(handle);
    const char *log = getenv("MOEFLUX_VK_LOG");
    FILE *f = log ? fopen(log, "a") : NULL;
    if (f) {
        fprintf(f, "%ld %ld %ld %llu %llu %llu\n", (long)n_submits, (long)n_allocations, (long)d->n_memory,
                (unsigned long long)longest_ns, (unsigned long long)sum_ns, (unsigned long long)copied_bytes);
        fclose(f);
    }
    PFN_vkDestroyDevice destroy = NEXT(d, DestroyDevice);
    pthread_mutex_lock(&lock);
    d->handle = VK_NULL_HANDLE;
    pthread_mutex_unlock(&lock);
    destroy(handle, a);
}

/* Looked up while the instance is created: later the loader returns this layer's own. */
static PFN_vkGetPhysicalDeviceProperties2 next_properties;
static PFN_vkGetPhysicalDeviceMemoryProperties2 next_memory;
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;

static VKAPI_ATTR void VKAPI_CALL layer_GetPhysicalDeviceProperties2(VkPhysicalDevice p,
                                                                     VkPhysicalDeviceProperties2 *out)
{
    const char *kind = getenv("MOEFLUX_VK_KIND");
    next_properties(p, out);
    if (kind && strcmp(kind, "integrated") == 0)
        out->properties.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
}

static VKAPI_ATTR void VKAPI_CALL
layer_GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties2 *out)
{
    const char *text = getenv("MOEFLUX_VK_BUDGET");
    unsigned long long budget = 0, used = 0;
    VkBaseOutStructure *next = out->pNext;
    /* The driver may not know the structure. */
    out->pNext = text ? NULL : next;
    next_memory(p, out);
    out->pNext = next;
    if (!text || sscanf(text, "%llu %llu", &budget, &used) != 2 || !next ||
        next->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
        return;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT *b = (void *)next;
    for (uint32_t i = 0; i < out->memoryProperties.memoryHeapCount; i++) {
        b->heapBudget[i] = budget;
        b->heapUsage[i] = used;
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_EnumerateDeviceExtensionProperties(VkPhysicalDevice p,
                                                                               const char *layer, uint32_t *n,
                                                                               VkExtensionProperties *out)
{
    const bool adds = getenv("MOEFLUX_VK_BUDGET") && !layer;
    uint32_t cap = *n;
    VkResult r = next_extensions(p, layer, n, out);
    if (!adds || r != VK_SUCCESS)
        return r;
    if (out && *n >= cap)
        return VK_INCOMPLETE;
    if (out)
        out[*n] = (VkExtensionProperties){VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, 1};
    (*n)++;
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_CreateInstance(const VkInstanceCreateInfo *info,
                                                           const VkAllocationCallbacks *a, VkInstance *out)
{
    VkLayerInstanceCreateInfo *link = (void *)(uintptr_t)info->pNext;
    while (link && !(link->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO &&
                     link->function == VK_LAYER_LINK_INFO))
        link = (void *)(uintptr_t)link->pNext;
    if (!link)
        return VK_ERROR_INITIALIZATION_FAILED;
    next_instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult r = ((PFN_vkCreateInstance)next_instance_proc(NULL, "vkCreateInstance"))(info, a, out);
    if (r != VK_SUCCESS)
        return r;
    instance = *out;
#define FIND(to, name) to = (PFN_vk##name)next_instance_proc(instance, "vk" #name)
    FIND(next_properties, GetPhysicalDeviceProperties2);
    FIND(next_memory, GetPhysicalDeviceMemoryProperties2);
    FIND(next_extensions, EnumerateDeviceExtensionProperties);
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_CreateDevice(VkPhysicalDevice p, const VkDeviceCreateInfo *info,
                                                         const VkAllocationCallbacks *a, VkDevice *out)
{
    const char *kept[64];
    VkDeviceCreateInfo own = *info;
    VkLayerDeviceCreateInfo *link = (void *)(uintptr_t)info->pNext;
    while (link && !(link->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO &&
                     link->function == VK_LAYER_LINK_INFO))
        link = (void *)(uintptr_t)link->pNext;
    if (!link)
        return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetDeviceProcAddr next = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    PFN_vkCreateDevice create =
        (PFN_vkCreateDevice)link->u.pLayerInfo->pfnNextGetInstanceProcAddr(instance, "vkCreateDevice");
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    /* The driver has no budgets. */
    own.enabledExtensionCount = 0;
    own.ppEnabledExtensionNames = kept;
    for (uint32_t i = 0; i < info->enabledExtensionCount && i < 64; i++)
        if (!getenv("MOEFLUX_VK_BUDGET") ||
            strcmp(info->ppEnabledExtensionNames[i], VK_EXT_MEMORY_BUDGET_EXTENSION_NAME) != 0)
            kept[own.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
    VkResult r = create(p, &own, a, out);
    pthread_mutex_lock(&lock);
    for (int i = 0; r == VK_SUCCESS && i < MAX_DEVICES; i++)
        if (!devices[i].handle) {
            devices[i].next = next;
            devices[i].is_lost = false;
            devices[i].n_memory = 0;
            devices[i].handle = *out;
            break;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice handle, const char *name);
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance i, const char *name);

#define ENTRY(name)                                                                                          \
    {                                                                                                        \
        "vk" #name, (PFN_vkVoidFunction)layer_##name                                                         \
    }
static const struct {
    const char *name;
    PFN_vkVoidFunction function;
} of_device[] = {ENTRY(QueueSubmit2),
                 ENTRY(WaitSemaphores),
                 ENTRY(GetSemaphoreCounterValue),
                 ENTRY(DeviceWaitIdle),
                 ENTRY(CmdCopyBuffer),
                 ENTRY(GetQueryPoolResults),
                 ENTRY(CreateComputePipelines),
                 ENTRY(DestroyPipeline),
                 ENTRY(AllocateMemory),
                 ENTRY(FreeMemory),
                 ENTRY(DestroyDevice),
                 {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc}},
  of_instance[] = {ENTRY(CreateInstance),
                   ENTRY(CreateDevice),
                   ENTRY(GetPhysicalDeviceProperties2),
                   ENTRY(GetPhysicalDeviceMemoryProperties2),
                   ENTRY(EnumerateDeviceExtensionProperties),
                   {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc}},
  of_empty[] = {{"vkCmdBindPipeline", (PFN_vkVoidFunction)skip_bind},
                {"vkCmdDispatch", (PFN_vkVoidFunction)skip_dispatch},
                {"vkCmdDispatchBase", (PFN_vkVoidFunction)skip_dispatch_base}};

static VKAPI_ATTR VkResult VKAPI_CALL slow_begin(VkCommandBuffer c, const VkCommandBufferBeginInfo *info)
{
    pthread_mutex_lock(&lock);
    *work_of(c) = 0;
    pthread_mutex_unlock(&lock);
    struct device *d = device_of_commands(c);
    return NEXT(d, BeginCommandBuffer)(c, info);
}

static const struct {
    const char *name;
    PFN_vkVoidFunction function;
} of_slow[] = {{"vkBeginCommandBuffer", (PFN_vkVoidFunction)slow_begin},
               {"vkCmdWriteTimestamp2", (PFN_vkVoidFunction)slow_write_stamp},
               {"vkGetQueryPoolResults", (PFN_vkVoidFunction)slow_stamps}};

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice handle, const char *name)
{
    for (size_t i = 0; group_ns() && i < sizeof of_slow / sizeof *of_slow; i++)
        if (strcmp(name, of_slow[i].name) == 0)
            return of_slow[i].function;
    for (size_t i = 0; i < sizeof of_device / sizeof *of_device; i++)
        if (strcmp(name, of_device[i].name) == 0)
            return of_device[i].function;
    for (size_t i = 0; is_empty() && i < sizeof of_empty / sizeof *of_empty; i++)
        if (strcmp(name, of_empty[i].name) == 0)
            return of_empty[i].function;
    const struct device *d = device_of(handle);
    return d ? d->next(handle, name) : NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance i, const char *name)
{
    for (size_t k = 0; k < sizeof of_instance / sizeof *of_instance; k++)
        if (strcmp(name, of_instance[k].name) == 0)
            return of_instance[k].function;
    for (size_t k = 0; k < sizeof of_device / sizeof *of_device; k++)
        if (strcmp(name, of_device[k].name) == 0)
            return of_device[k].function;
    return next_instance_proc ? next_instance_proc(i, name) : NULL;
}

/* The loader's own functions have these names, so that nothing here may refer to them. */
EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char *name)
{
    return device_proc(device, name);
}

EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name)
{
    return instance_proc(i, name);
}
