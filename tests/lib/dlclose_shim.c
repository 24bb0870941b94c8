/* dlclose_shim.c - keeps libraries loaded to the end, in sanitized programs only. The leak checker runs at
 * exit and looks for pointers in loaded libraries. The Vulkan loader unloads the driver before that: what the
 * driver keeps in its own variables would look like a leak, in an unknown module that no suppression can
 * name. With the driver still there nothing needs to be suppressed, and Vulkan objects that we forget show as
 * leaks. */
#include <dlfcn.h>

__attribute__((visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
