/* Buffers of a card whose memory the host maps through a small window. Its driver is a fake: none here has
 * such a card.
 *
 * suites: check fast asan */
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "pages.h"
#include "vulkan/device.h"
#include "vulkan/memory.h"

enum { ON_CARD, ON_HOST, WINDOW, ON_HOST_CACHED, N_TYPES };
#define MIB          ((uint64_t)1 << 20)
#define CARD_BYTES   (8192 * MIB)
#define WINDOW_BYTES (256 * MIB)

/* ---- the driver ---- */

static bool window_is_full;
static uint32_t last_type;
static uint64_t host_memory[64];

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice d, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *a, VkBuffer *out)
{
    (void)d, (void)a;
    *out = (VkBuffer)(uintptr_t)info->size; /* NOLINT(performance-no-int-to-ptr): a handle */
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL get_requirements(VkDevice d, VkBuffer b, VkMemoryRequirements *out)
{
    (void)d;
    *out = (VkMemoryRequirements){
        .size = (uintptr_t)b, .alignment = 4096, .memoryTypeBits = (1u << N_TYPES) - 1};
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice d, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *a, VkDeviceMemory *out)
{
    (void)d, (void)a;
    last_type = info->memoryTypeIndex;
    if (last_type == WINDOW && window_is_full)
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    *out = (VkDeviceMemory)(uintptr_t)1; /* NOLINT(performance-no-int-to-ptr): a handle */
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL bind(VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize off)
{
    (void)d, (void)b, (void)m, (void)off;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice d, VkDeviceMemory m, VkDeviceSize off, VkDeviceSize n,
                                          VkMemoryMapFlags flags, void **out)
{
    (void)d, (void)m, (void)off, (void)n, (void)flags;
    *out = host_memory;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkDeviceAddress VKAPI_CALL get_address(VkDevice d, const VkBufferDeviceAddressInfo *info)
{
    (void)d, (void)info;
    return 4096;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_host_properties(VkDevice d, VkExternalMemoryHandleTypeFlagBits type,
                                                          const void *host,
                                                          VkMemoryHostPointerPropertiesEXT *out)
{
    (void)d, (void)type, (void)host;
    out->memoryTypeBits = 1u << ON_HOST | 1u << ON_HOST_CACHED;
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_buffer(VkDevice d, VkBuffer b, const VkAllocationCallbacks *a)
{
    (void)d, (void)b, (void)a;
}

static VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice d, VkDeviceMemory m, const VkAllocationCallbacks *a)
{
    (void)d, (void)m, (void)a;
}

static struct gpu card(void)
{
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags mapped =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    window_is_full = false;
    return (struct gpu){
        .vk = {.CreateBuffer = create_buffer,
               .DestroyBuffer = destroy_buffer,
               .GetBufferMemoryRequirements = get_requirements,
               .AllocateMemory = allocate,
               .FreeMemory = free_memory,
               .BindBufferMemory = bind,
               .MapMemory = map,
               .GetBufferDeviceAddress = get_address,
               .GetMemoryHostPointerPropertiesEXT = get_host_properties},
        .info = {.name = "card"},
        .max_alloc_bytes = CARD_BYTES,
        .memory = {.memoryTypeCount = N_TYPES,
                   .memoryTypes = {[ON_CARD] = {local, 0},
                                   [ON_HOST] = {mapped, 1},
                                   [WINDOW] = {local | mapped, 2},
                                   [ON_HOST_CACHED] = {mapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1}},
                   .memoryHeapCount = 3,
                   .memoryHeaps = {{CARD_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT},
                                   {4 * CARD_BYTES, 0},
                                   {WINDOW_BYTES, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT}}}};
}

/* ---- the claims ---- */

static void inputs_lie_in_the_window_until_it_is_full(void **state)
{
    (void)state;
    struct gpu g = card();
    struct gpu_buffer b;
    struct moeflux_err e = {0};
    for (int full = 0; full < 2; full++) {
        window_is_full = full;
        check_ok(gpu_buffer_new(&b, &g, GPU_INPUT, 256, &e), &e);
        assert_int_equal(last_type, full ? ON_HOST : WINDOW);
        assert_non_null(b.host);
        gpu_buffer_free(&b, &g);
    }
}

static void what_is_free_is_what_weights_can_have(void **state)
{
    (void)state;
    struct gpu g = card();
    assert_int_equal(gpu_free_bytes(&g), CARD_BYTES);
}

/* Budgets are obeyed to some percent, whatever the size of a chunk. */
static void large_host_memory_is_rounded_to_one_large_page(void **state)
{
    (void)state;
    struct gpu g = card();
    struct gpu_buffer b;
    struct moeflux_err e = {0};
    need_populate();
    g.import_align = page_bytes();
    check_ok(gpu_buffer_new(&b, &g, GPU_HOST, 32 * MIB + 1, &e), &e);
    assert_true(b.is_own);
    assert_int_equal(b.bytes, 34 * MIB);
    unsigned char there[34 * MIB / 4096];
    assert_int_equal(mincore(b.host, b.bytes, there), 0);
    for (size_t i = 0; i < b.bytes / page_bytes(); i++)
        assert_true(there[i] & 1);
    gpu_buffer_free(&b, &g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_lie_in_the_window_until_it_is_full),
        cmocka_unit_test(what_is_free_is_what_weights_can_have),
        cmocka_unit_test(large_host_memory_is_rounded_to_one_large_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
