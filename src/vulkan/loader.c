#include "vulkan/loader.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static int missing(const char *name, struct moeflux_err *e)
{
    return err_set(e, ERR_DEVICE, "the Vulkan loader or driver has no function %s", name);
}

int vk_open(struct vk *v, struct moeflux_err *e)
{
    *v = (struct vk){.library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!v->library)
        return err_set(e, ERR_DEVICE, "the Vulkan loader cannot be loaded (Debian: install libvulkan1): %s",
                       dlerror());
    /* ISO C has no conversion from an object pointer to a function pointer. */
    *(void **)&v->GetInstanceProcAddr = dlsym(v->library, "vkGetInstanceProcAddr");
    if (!v->GetInstanceProcAddr)
        return missing("vkGetInstanceProcAddr", e);
#define FIND(name)                                                                                           \
    v->name = (PFN_vk##name)v->GetInstanceProcAddr(NULL, "vk" #name);                                        \
    if (!v->name)                                                                                            \
        return missing("vk" #name, e);
    VK_GLOBAL_FUNCTIONS(FIND)
#undef FIND
    return 0;
}

int vk_find_of_instance(struct vk *v, VkInstance instance, struct moeflux_err *e)
{
#define FIND(name)                                                                                           \
    v->name = (PFN_vk##name)v->GetInstanceProcAddr(instance, "vk" #name);                                    \
    if (!v->name)                                                                                            \
        return missing("vk" #name, e);
    VK_INSTANCE_FUNCTIONS(FIND)
#undef FIND
    return 0;
}

int vk_find_of_device(struct vk *v, VkDevice device, struct moeflux_err *e)
{
#define FIND(name)                                                                                           \
    v->name = (PFN_vk##name)v->GetDeviceProcAddr(device, "vk" #name);                                        \
    if (!v->name)                                                                                            \
        return missing("vk" #name, e);
    VK_DEVICE_FUNCTIONS(FIND)
#undef FIND
    v->GetMemoryHostPointerPropertiesEXT = (PFN_vkGetMemoryHostPointerPropertiesEXT)v->GetDeviceProcAddr(
        device, "vkGetMemoryHostPointerPropertiesEXT");
    return 0;
}

void vk_close(struct vk *v)
{
    if (v->library)
        dlclose(v->library);
    *v = (struct vk){0};
}

bool vk_has_extension(const struct vk *vk, VkPhysicalDevice p, const char *name)
{
    uint32_t n = 0;
    bool found = false;
    vk->EnumerateDeviceExtensionProperties(p, NULL, &n, NULL);
    VkExtensionProperties *all = calloc(n ? n : 1, sizeof *all);
    if (all && vk->EnumerateDeviceExtensionProperties(p, NULL, &n, all) == VK_SUCCESS)
        for (uint32_t i = 0; i < n && !found; i++)
            found = strcmp(all[i].extensionName, name) == 0;
    free(all);
    return found;
}
