/* Lists the devices of this machine for moeflux.h. */
#include "engine/plan/device_list.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "exec/devices.h"
#include "moeflux.h"

void device_list_convert(struct moeflux_device *to, const struct exec_device *from)
{
    *to = (struct moeflux_device){.memory_bytes = from->memory_bytes,
                                  .subgroup_size = from->subgroup_size,
                                  .n_threads = from->n_threads,
                                  .memory_node = from->memory_node,
                                  .usable = from->is_usable,
                                  .is_default = from->is_default};
    snprintf(to->option, sizeof to->option, "%s", from->option);
    snprintf(to->name, sizeof to->name, "%s", from->name);
    snprintf(to->kind, sizeof to->kind, "%s", from->kind);
    snprintf(to->driver, sizeof to->driver, "%s", from->driver);
    snprintf(to->matrices, sizeof to->matrices, "%s", from->matrices);
    snprintf(to->isa, sizeof to->isa, "%s", from->isa);
    snprintf(to->why_not, sizeof to->why_not, "%s", from->why_not);
}

int moeflux_list_devices(struct moeflux_device *out, uint32_t cap, struct moeflux_err *e)
{
    if (cap > 0 && !out)
        return err_need(e, "list of devices", out);
    struct exec_device *all = mem_new(EXEC_MAX_DEVICES, sizeof *all, e);
    int n = all ? exec_list_devices(all, EXEC_MAX_DEVICES, e) : ERR_MEMORY;
    for (int i = 0; i < n && (uint32_t)i < cap; i++)
        device_list_convert(&out[i], &all[i]);
    free(all);
    return n;
}
