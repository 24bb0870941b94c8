#include "vulkan/memory.h"

/* glibc has MADV_POPULATE_WRITE from 2.35 on. */
#include <linux/mman.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "vulkan/device.h"

#define MAPPED (VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)
#define CACHED VK_MEMORY_PROPERTY_HOST_CACHED_BIT
#define LOCAL  VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT

enum { HUGE_PAGE = 2 << 20, OWN_BYTES = 32 << 20, POPULATORS = 4 };

/* The wanted properties of each kind, best first; the last is what Vulkan guarantees. Mapped types are always
 * coherent, so no flush is needed. GPU_DEVICE does not exclude mapped types: they do no harm. */
static const VkMemoryPropertyFlags wishes[][3] = {
    [GPU_DEVICE] = {LOCAL, LOCAL, 0},
    [GPU_INPUT] = {LOCAL | MAPPED, MAPPED, MAPPED},
    [GPU_HOST] = {MAPPED | CACHED, MAPPED, MAPPED},
};

static int find_type(const struct gpu *g, uint32_t allowed, enum gpu_memory kind)
{
    for (int w = 0; w < 3; w++) {
        VkMemoryPropertyFlags want = wishes[kind][w];
        if (kind == GPU_DEVICE && w == 0 && g->is_unified)
            want |= MAPPED | CACHED;
        for (uint32_t i = 0; i < g->memory.memoryTypeCount; i++)
            if ((allowed & (1u << i)) && (g->memory.memoryTypes[i].propertyFlags & want) == want)
                return (int)i;
    }
    return -1;
}

/* --- free and used memory --- */

static VkPhysicalDeviceMemoryBudgetPropertiesEXT budget_of(const struct gpu *g)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 m = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
                                           .pNext = &budget};
    if (g->has_budget)
        g->vk.GetPhysicalDeviceMemoryProperties2(g->physical, &m);
    return budget;
}

static bool is_local(const struct gpu *g, uint32_t heap)
{
    return g->memory.memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
}

uint64_t gpu_free_bytes(const struct gpu *g)
{
    const VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = budget_of(g);
    int type = find_type(g, UINT32_MAX, GPU_DEVICE);
    if (type < 0)
        return 0;
    uint32_t heap = g->memory.memoryTypes[type].heapIndex;
    uint64_t size = g->memory.memoryHeaps[heap].size, used = budget.heapUsage[heap];
    if (!g->has_budget)
        return size;
    /* Drivers of integrated GPUs have counted memory of other heaps as used. More than the heap has cannot
     * be; then only the budget is believed. */
    used = used > size ? 0 : used;
    return budget.heapBudget[heap] > used ? budget.heapBudget[heap] - used : 0;
}

uint64_t gpu_used_bytes(const struct gpu *g)
{
    const VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = budget_of(g);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->memory.memoryHeapCount; i++)
        sum += is_local(g, i) ? budget.heapUsage[i] : 0;
    return sum;
}

uint32_t gpu_list_heaps(const struct gpu *g, struct gpu_heap *out)
{
    const VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = budget_of(g);
    for (uint32_t i = 0; i < g->memory.memoryHeapCount; i++)
        out[i] = (struct gpu_heap){.bytes = g->memory.memoryHeaps[i].size,
                                   .budget = g->has_budget ? budget.heapBudget[i] : UINT64_MAX,
                                   .used = g->has_budget ? budget.heapUsage[i] : UINT64_MAX,
                                   .is_local = is_local(g, i)};
    for (uint32_t i = 0; i < g->memory.memoryTypeCount; i++)
        if (g->memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)
            out[g->memory.memoryTypes[i].heapIndex].is_mapped = true;
    return g->memory.memoryHeapCount;
}

/* --- buffers --- */

static uint32_t local_types(const struct gpu *g)
{
    uint32_t types = 0;
    for (uint32_t i = 0; i < g->memory.memoryTypeCount; i++)
        if (g->memory.memoryTypes[i].propertyFlags & LOCAL)
            types |= 1u << i;
    return types;
}

static VkResult take(const struct gpu *g, int type, uint64_t bytes, VkDeviceMemory *out)
{
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .pNext = &flags,
                                 .allocationSize = bytes,
                                 .memoryTypeIndex = (uint32_t)type};
    return g->vk.AllocateMemory(g->device, &info, NULL, out);
}

static bool is_full(VkResult r)
{
    return r == VK_ERROR_OUT_OF_DEVICE_MEMORY || r == VK_ERROR_OUT_OF_HOST_MEMORY;
}

static int no_fit(const struct gpu *g, uint64_t bytes, struct moeflux_err *e)
{
    bool is_small = bytes < 1048576;
    return err_set(e, ERR_NO_FIT, "%s: %.1f %s of device memory were asked for, %.1f MiB are free",
                   g->info.name, (double)bytes / (is_small ? 1024.0 : 1048576.0), is_small ? "KiB" : "MiB",
                   (double)gpu_free_bytes(g) / 1048576.0);
}

static int allocate(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, struct moeflux_err *e)
{
    VkMemoryRequirements need;
    g->vk.GetBufferMemoryRequirements(g->device, b->buffer, &need);
    int type = find_type(g, need.memoryTypeBits, kind);
    if (type < 0)
        return err_set(e, ERR_DEVICE, "%s has no memory type for %llu bytes", g->info.name,
                       (unsigned long long)b->bytes);
    VkResult r = take(g, type, need.size, &b->memory);
    /* The part of a card's memory that the host can map may be 256 MiB, shared with other programs. */
    int other = kind == GPU_DEVICE ? -1 : find_type(g, need.memoryTypeBits & ~local_types(g), kind);
    if (is_full(r) && other >= 0 && other != type) {
        type = other;
        r = take(g, type, need.size, &b->memory);
    }
    if (is_full(r))
        return no_fit(g, need.size, e);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkAllocateMemory", e);
    r = g->vk.BindBufferMemory(g->device, b->buffer, b->memory, 0);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkBindBufferMemory", e);
    if (!(g->memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT))
        return 0;
    if (kind == GPU_DEVICE && !g->is_unified)
        /* write-combined memory across a bus is not mapped: reads of it would be very slow */
        return 0;
    void *host;
    r = g->vk.MapMemory(g->device, b->memory, 0, VK_WHOLE_SIZE, 0, &host);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkMapMemory", e);
    b->host = host;
    return 0;
}

static int create_buffer(struct gpu_buffer *b, const struct gpu *g, const void *next, struct moeflux_err *e)
{
    const uint32_t families[] = {g->queue_family, g->transfer_family};
    bool is_shared = g->queue_family != g->transfer_family;
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .sharingMode = is_shared ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = is_shared ? 2 : 0,
        .pQueueFamilyIndices = families,
        .size = b->bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
    VkResult r = g->vk.CreateBuffer(g->device, &info, NULL, &b->buffer);
    return r == VK_SUCCESS ? 0 : gpu_error(r, "vkCreateBuffer", e);
}

static void find_address(struct gpu_buffer *b, const struct gpu *g)
{
    VkBufferDeviceAddressInfo where = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                       .buffer = b->buffer};
    b->address = g->vk.GetBufferDeviceAddress(g->device, &where);
}

/* Returns the memory types that host memory can be imported as. */
static uint32_t importable_types(const struct gpu *g, const uint8_t *host)
{
    PFN_vkGetMemoryHostPointerPropertiesEXT get = g->vk.GetMemoryHostPointerPropertiesEXT;
    VkMemoryHostPointerPropertiesEXT p = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    if (!get ||
        get(g->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, host, &p) != VK_SUCCESS)
        return 0;
    return p.memoryTypeBits;
}

static int import(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint8_t *host,
                  struct moeflux_err *e)
{
    VkMemoryRequirements need;
    g->vk.GetBufferMemoryRequirements(g->device, b->buffer, &need);
    int type = find_type(g, need.memoryTypeBits & importable_types(g, host), kind);
    if (type < 0 || need.size > b->bytes)
        return err_set(e, ERR_UNSUPPORTED, "%s cannot import host memory", g->info.name);
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkImportMemoryHostPointerInfoEXT from = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                             .pNext = &flags,
                                             .handleType =
                                                 VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
                                             .pHostPointer = host};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .pNext = &from,
                                 .allocationSize = b->bytes,
                                 .memoryTypeIndex = (uint32_t)type};
    VkResult r = g->vk.AllocateMemory(g->device, &info, NULL, &b->memory);
    if (r == VK_SUCCESS)
        r = g->vk.BindBufferMemory(g->device, b->buffer, b->memory, 0);
    return r == VK_SUCCESS ? 0 : err_set(e, ERR_UNSUPPORTED, "%s cannot import mapped files", g->info.name);
}

int gpu_buffer_import(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint8_t *host,
                      uint64_t bytes, struct moeflux_err *e)
{
    const VkExternalMemoryBufferCreateInfo from = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    *b = (struct gpu_buffer){.bytes = bytes};
    if (g->import_align == 0 || bytes > g->max_alloc_bytes)
        return err_set(e, ERR_UNSUPPORTED, "%s cannot import %llu bytes of host memory", g->info.name,
                       (unsigned long long)bytes);
    int rc = create_buffer(b, g, &from, e);
    if (rc == 0)
        rc = import(b, g, kind, host, e);
    if (rc < 0) {
        gpu_buffer_free(b, g);
        return rc;
    }
    find_address(b, g);
    b->host = host;
    return 0;
}

struct pages {
    uint8_t *host;
    uint64_t bytes, each; /* total; size of every part except the last */
    bool failed[POPULATORS];
};

static void populate_part(void *ctx, uint32_t i)
{
    struct pages *p = ctx;
    uint64_t bytes = i + 1 < POPULATORS ? p->each : p->bytes - i * p->each;
    p->failed[i] = madvise(p->host + i * p->each, bytes, MADV_POPULATE_WRITE) != 0;
}

/* Populates the pages on several threads: the system clears them, which one thread does slowly. */
static int populate(void *host, uint64_t bytes)
{
    struct pages p = {
        .host = host, .bytes = bytes, .each = bytes / POPULATORS / HUGE_PAGE * (uint64_t)HUGE_PAGE};
    struct pool *pool = pool_new(POPULATORS, NULL);
    if (!pool)
        return ERR_MEMORY;
    pool_for(pool, POPULATORS, populate_part, &p);
    pool_free(pool);
    for (uint32_t i = 0; i < POPULATORS; i++)
        if (p.failed[i])
            return ERR_MEMORY;
    return 0;
}

/* Allocates host memory in huge pages, which the driver only has to pin. An H200's driver takes 280 ms to
 * allocate a gigabyte itself, but 35 ms to pin one, whose allocation here takes 45 ms. */
static int own_buffer(struct gpu_buffer *b, const struct gpu *g, uint64_t bytes)
{
    uint64_t all = size_round_up(bytes, size_max(g->import_align, HUGE_PAGE));
    void *host = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED)
        return ERR_MEMORY;
    (void)madvise(host, all, MADV_HUGEPAGE);
    int rc = populate(host, all);
    if (rc == 0)
        rc = gpu_buffer_import(b, g, GPU_HOST, host, all, NULL);
    if (rc < 0)
        munmap(host, all);
    b->is_own = rc == 0;
    return rc;
}

int gpu_buffer_new(struct gpu_buffer *b, const struct gpu *g, enum gpu_memory kind, uint64_t bytes,
                   struct moeflux_err *e)
{
    /* Kernels read whole vectors of 16 bytes that contain a byte. */
    bytes = size_round_up(size_max(bytes, 1), 16);
    *b = (struct gpu_buffer){.bytes = bytes};
    if (b->bytes > g->max_alloc_bytes)
        return err_set(e, ERR_UNSUPPORTED, "%s: a buffer of %llu bytes is needed, the driver allows %llu",
                       g->info.name, (unsigned long long)b->bytes, (unsigned long long)g->max_alloc_bytes);
    if (kind == GPU_HOST && bytes >= OWN_BYTES && g->import_align && own_buffer(b, g, bytes) == 0)
        return 0;
    *b = (struct gpu_buffer){.bytes = bytes};
    int rc = create_buffer(b, g, NULL, e);
    if (rc == 0)
        rc = allocate(b, g, kind, e);
    if (rc < 0) {
        gpu_buffer_free(b, g);
        return rc;
    }
    find_address(b, g);
    return 0;
}

void gpu_buffer_free(struct gpu_buffer *b, const struct gpu *g)
{
    if (b->buffer)
        g->vk.DestroyBuffer(g->device, b->buffer, NULL);
    if (b->memory)
        g->vk.FreeMemory(g->device, b->memory, NULL);
    if (b->is_own)
        munmap(b->host, b->bytes);
    *b = (struct gpu_buffer){0};
}
