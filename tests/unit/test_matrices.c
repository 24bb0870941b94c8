/* Which cooperative matrices a device is found to have: a driver made up of what it answers.
 *
 * suites: check fast asan */
#include <string.h>

#include "check.h"
#include "vulkan/khr_matrix.h"
#include "vulkan/matrices.h"

enum { MOST_SHAPES = 4 };

struct fake {
    const char *extensions[2]; /* up to a NULL */
    VkCooperativeMatrixPropertiesNV nv[MOST_SHAPES];
    VkCooperativeMatrixPropertiesKHR khr[MOST_SHAPES];
    uint32_t n_nv, n_khr;
    bool nv_feature, khr_feature, float16, memory_model, device_scope;
    VkShaderStageFlags stages, size_stages;
    uint32_t min_size, max_size, max_subgroups;
};

static const struct fake *fake_of(VkPhysicalDevice p)
{
    return (const struct fake *)p;
}

/* A member of a chain of structures. */
static void *in_chain(void *next, VkStructureType type)
{
    VkBaseOutStructure *s = next;
    while (s && s->sType != type)
        s = s->pNext;
    return s;
}

static VkResult fake_extensions(VkPhysicalDevice p, const char *layer, uint32_t *n,
                                VkExtensionProperties *out)
{
    const struct fake *f = fake_of(p);
    uint32_t all = f->extensions[0] ? 1 + (f->extensions[1] != NULL) : 0;
    (void)layer;
    for (uint32_t i = 0; out && i < all; i++)
        strcpy(out[i].extensionName, f->extensions[i]);
    *n = all;
    return VK_SUCCESS;
}

static void fake_features(VkPhysicalDevice p, VkPhysicalDeviceFeatures2 *out)
{
    const struct fake *f = fake_of(p);
    VkPhysicalDeviceVulkan12Features *v12 =
        in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
    VkPhysicalDeviceCooperativeMatrixFeaturesNV *nv =
        in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV);
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR *khr =
        in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);
    if (v12) {
        v12->shaderFloat16 = f->float16;
        v12->vulkanMemoryModel = f->memory_model;
        v12->vulkanMemoryModelDeviceScope = f->device_scope;
    }
    if (nv)
        nv->cooperativeMatrix = f->nv_feature;
    if (khr)
        khr->cooperativeMatrix = f->khr_feature;
}

static void fake_properties(VkPhysicalDevice p, VkPhysicalDeviceProperties2 *out)
{
    const struct fake *f = fake_of(p);
    VkPhysicalDeviceVulkan13Properties *v13 =
        in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES);
    VkPhysicalDeviceCooperativeMatrixPropertiesKHR *khr =
        in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR);
    if (v13) {
        v13->minSubgroupSize = f->min_size;
        v13->maxSubgroupSize = f->max_size;
        v13->requiredSubgroupSizeStages = f->size_stages;
        v13->maxComputeWorkgroupSubgroups = f->max_subgroups;
    }
    if (khr)
        khr->cooperativeMatrixSupportedStages = f->stages;
}

static VkResult list_nv(VkPhysicalDevice p, uint32_t *n, VkCooperativeMatrixPropertiesNV *out)
{
    for (uint32_t i = 0; out && i < fake_of(p)->n_nv; i++)
        out[i] = fake_of(p)->nv[i];
    *n = fake_of(p)->n_nv;
    return VK_SUCCESS;
}

static VkResult list_khr(VkPhysicalDevice p, uint32_t *n, VkCooperativeMatrixPropertiesKHR *out)
{
    for (uint32_t i = 0; out && i < fake_of(p)->n_khr; i++)
        out[i] = fake_of(p)->khr[i];
    *n = fake_of(p)->n_khr;
    return VK_SUCCESS;
}

static PFN_vkVoidFunction fake_function(VkInstance instance, const char *name)
{
    (void)instance;
    if (strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV") == 0)
        return (PFN_vkVoidFunction)list_nv;
    if (strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") == 0)
        return (PFN_vkVoidFunction)list_khr;
    return NULL;
}

static struct matrices find(struct fake *f)
{
    const struct vk vk = {.GetInstanceProcAddr = fake_function,
                          .EnumerateDeviceExtensionProperties = fake_extensions,
                          .GetPhysicalDeviceFeatures2 = fake_features,
                          .GetPhysicalDeviceProperties2 = fake_properties};
    return matrices_find(&vk, VK_NULL_HANDLE, (VkPhysicalDevice)f);
}

static const VkCooperativeMatrixPropertiesKHR OURS = {.MSize = 16,
                                                      .NSize = 16,
                                                      .KSize = 16,
                                                      .AType = VK_COMPONENT_TYPE_FLOAT16_NV,
                                                      .BType = VK_COMPONENT_TYPE_FLOAT16_NV,
                                                      .CType = VK_COMPONENT_TYPE_FLOAT32_NV,
                                                      .ResultType = VK_COMPONENT_TYPE_FLOAT32_NV,
                                                      .scope = VK_SCOPE_SUBGROUP_NV};

/* Our shape follows another one: a device like AMD's, with 32 or 64 lanes. */
static struct fake amd(void)
{
    struct fake f = {.extensions = {VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME},
                     .khr = {OURS, OURS},
                     .n_khr = 2,
                     .khr_feature = true,
                     .float16 = true,
                     .memory_model = true,
                     .device_scope = true,
                     .stages = VK_SHADER_STAGE_COMPUTE_BIT,
                     .size_stages = VK_SHADER_STAGE_COMPUTE_BIT,
                     .min_size = 32,
                     .max_size = 64,
                     .max_subgroups = 32};
    f.khr[0].AType = f.khr[0].BType = VK_COMPONENT_TYPE_SINT8_NV;
    f.khr[0].CType = f.khr[0].ResultType = VK_COMPONENT_TYPE_SINT32_NV;
    return f;
}

static struct fake nvidia(void)
{
    struct fake f = amd();
    f.extensions[1] = VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME;
    f.nv[0] = (VkCooperativeMatrixPropertiesNV){.MSize = 16,
                                                .NSize = 16,
                                                .KSize = 16,
                                                .AType = VK_COMPONENT_TYPE_FLOAT16_NV,
                                                .BType = VK_COMPONENT_TYPE_FLOAT16_NV,
                                                .CType = VK_COMPONENT_TYPE_FLOAT32_NV,
                                                .DType = VK_COMPONENT_TYPE_FLOAT32_NV,
                                                .scope = VK_SCOPE_SUBGROUP_NV};
    f.n_nv = 1;
    f.nv_feature = true;
    f.max_size = 32;
    return f;
}

static void check_khr(struct fake f, bool expected)
{
    struct matrices m = find(&f);
    assert_false(m.nv);
    assert_int_equal(m.khr, expected);
}

static void a_device_with_both_forms_has_both(void **state)
{
    (void)state;
    struct fake f = nvidia();
    struct matrices m = find(&f);
    assert_true(m.nv && m.khr);
}

static void one_form_does_without_the_other(void **state)
{
    (void)state;
    check_khr(amd(), true);
    struct fake f = nvidia();
    f.khr_feature = false;
    struct matrices m = find(&f);
    assert_true(m.nv && !m.khr);
    f = nvidia();
    f.nv_feature = false;
    check_khr(f, true);
    f = nvidia();
    f.nv[0].KSize = 8;
    check_khr(f, true);
}

static void a_shape_that_differs_in_anything_is_not_taken(void **state)
{
    (void)state;
    static const VkCooperativeMatrixPropertiesKHR others[] = {
        {.MSize = 8}, /* Intel's */
        {.NSize = 8},
        {.KSize = 8},
        {.AType = VK_COMPONENT_TYPE_FLOAT32_NV},
        {.BType = VK_COMPONENT_TYPE_FLOAT32_NV},
        {.CType = VK_COMPONENT_TYPE_SINT32_NV},
        {.ResultType = VK_COMPONENT_TYPE_SINT32_NV},
        {.scope = VK_SCOPE_WORKGROUP_NV},
        {.saturatingAccumulation = VK_TRUE},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const VkCooperativeMatrixPropertiesKHR *o = &others[i];
        struct fake f = amd();
        VkCooperativeMatrixPropertiesKHR *k = &f.khr[1];
        k->MSize = o->MSize ? o->MSize : k->MSize;
        k->NSize = o->NSize ? o->NSize : k->NSize;
        k->KSize = o->KSize ? o->KSize : k->KSize;
        k->AType = o->AType ? o->AType : k->AType;
        k->BType = o->BType ? o->BType : k->BType;
        k->CType = o->CType ? o->CType : k->CType;
        k->ResultType = o->ResultType ? o->ResultType : k->ResultType;
        k->scope = o->scope ? o->scope : k->scope;
        k->saturatingAccumulation = o->saturatingAccumulation;
        check_khr(f, false);
    }
    struct fake f = amd();
    f.khr[1].CType = f.khr[1].ResultType = VK_COMPONENT_TYPE_FLOAT16_NV;
    check_khr(f, false);
}

static void what_kernels_need_in_addition_to_matrices_is_asked_for(void **state)
{
    (void)state;
    struct fake f = amd();
    f.extensions[0] = NULL;
    check_khr(f, false);
    f = amd();
    f.khr_feature = false;
    check_khr(f, false);
    f = amd();
    f.float16 = false;
    check_khr(f, false);
    f = amd();
    f.memory_model = false;
    check_khr(f, false);
    f = amd();
    f.device_scope = false;
    check_khr(f, false);
    f = amd();
    f.stages = VK_SHADER_STAGE_FRAGMENT_BIT;
    check_khr(f, false);
    f = amd();
    f.n_khr = 0;
    check_khr(f, false);
}

static void subgroups_have_32_lanes_or_can(void **state)
{
    (void)state;
    static const struct {
        uint32_t min, max, max_subgroups;
        bool is_asked_for, expected;
    } cases[] = {
        {32, 64, 32, true, true},  {32, 32, 32, true, true},  {8, 32, 64, true, true},
        {64, 64, 16, true, false}, {8, 16, 64, true, false},  {32, 64, 7, true, false},
        {32, 32, 0, false, true},  {64, 64, 0, false, false}, {32, 64, 0, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake f = amd();
        f.min_size = cases[i].min;
        f.max_size = cases[i].max;
        f.max_subgroups = cases[i].max_subgroups;
        f.size_stages = cases[i].is_asked_for ? VK_SHADER_STAGE_COMPUTE_BIT : 0;
        check_khr(f, cases[i].expected);
    }
}

static void a_device_says_by_what_it_multiplies(void **state)
{
    (void)state;
    assert_string_equal(matrices_name((struct matrices){true, true}), "NV and KHR");
    assert_string_equal(matrices_name((struct matrices){true, false}), "NV");
    assert_string_equal(matrices_name((struct matrices){false, true}), "KHR");
    assert_string_equal(matrices_name((struct matrices){false, false}), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_with_both_forms_has_both),
        cmocka_unit_test(one_form_does_without_the_other),
        cmocka_unit_test(a_shape_that_differs_in_anything_is_not_taken),
        cmocka_unit_test(what_kernels_need_in_addition_to_matrices_is_asked_for),
        cmocka_unit_test(subgroups_have_32_lanes_or_can),
        cmocka_unit_test(a_device_says_by_what_it_multiplies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
