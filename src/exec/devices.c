#include "exec/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/nodes.h"
#include "cpu/isa.h"
#include "vulkan/device.h"

enum { MAX_GPUS = EXEC_MAX_DEVICES - 1 };

static void add_nodes(struct exec_device *d)
{
    struct nodes nodes;
    size_t at = strlen(d->name);
    if (nodes_read(&nodes, "", NULL) < 0)
        return;
    if (nodes.n > 1)
        snprintf(d->name + at, sizeof d->name - at, ", %u NUMA nodes", nodes.n);
    nodes_free(&nodes);
}

static void describe_cpu(struct exec_device *d)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    *d = (struct exec_device){
        .option = "cpu", .kind = "cpu", .is_usable = true, .n_threads = cores_useful(""), .memory_node = -1};
    cores_name("", d->name, sizeof d->name);
    add_nodes(d);
    snprintf(d->isa, sizeof d->isa, "%s", cpu_isa_find(NULL, NULL)->name);
    if (pages > 0 && page_bytes > 0)
        d->memory_bytes = (uint64_t)pages * (uint64_t)page_bytes;
}

void exec_describe_gpu(struct exec_device *d, const struct gpu_info *from, uint32_t idx, const char *root)
{
    *d = (struct exec_device){.memory_bytes = from->memory_bytes,
                              .subgroup_size = from->subgroup_size,
                              .memory_node = from->pci[0] ? nodes_of_pci(root, from->pci) : -1,
                              .is_usable = !from->missing[0],
                              .is_default = idx == 0 && gpu_is_preferred(from)};
    snprintf(d->option, sizeof d->option, "%u", idx);
    snprintf(d->name, sizeof d->name, "%s", from->name);
    snprintf(d->kind, sizeof d->kind, "%s", from->kind);
    snprintf(d->driver, sizeof d->driver, "%s", from->driver);
    snprintf(d->matrices, sizeof d->matrices, "%s", matrices_name(from->matrices));
    snprintf(d->why_not, sizeof d->why_not, "%s", from->missing);
}

int exec_list_devices(struct exec_device *out, uint32_t cap, struct moeflux_err *e)
{
    struct moeflux_err none = {0};
    struct gpu_info *all = mem_new(MAX_GPUS, sizeof *all, e);
    uint32_t at = 0, n_preferred = 0;
    int n = all ? gpu_list(all, MAX_GPUS, &none) : ERR_MEMORY;
    /* Without a loader or driver there is still the CPU. */
    if (n == ERR_DEVICE)
        n = 0;
    else if (n < 0 && all && e)
        *e = none;
    while (n > (int)n_preferred && gpu_is_preferred(&all[n_preferred]))
        n_preferred++;
    for (int i = 0; i <= n && at < cap; i++) {
        if (i == (int)n_preferred) {
            describe_cpu(&out[at]);
            out[at++].is_default = n_preferred == 0;
        }
        if (i < n && at < cap)
            exec_describe_gpu(&out[at++], &all[i], (uint32_t)i, "");
    }
    free(all);
    return n < 0 ? n : n + 1;
}
