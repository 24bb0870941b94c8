/* Describes this machine and its devices, for a report. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "cpu/isa.h"
#include "engine/lab/lab.h"
#include "engine/plan/devices.h"
#include "engine/plan/host_memory.h"
#include "engine/plan/load_plan.h"

int lab_describe_host(const struct moeflux_options *o, struct lab_host *out, struct moeflux_err *e)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    const struct cpu_isa *isa = cpu_isa_find(o->cpu_isa, e);
    *out = (struct lab_host){.n_allowed = cores_allowed(),
                             .n_threads = o->n_threads ? o->n_threads : cores_useful(""),
                             .free_bytes = host_memory_free("")};
    if (!isa)
        return ERR_USAGE;
    cores_name("", out->cpu, sizeof out->cpu);
    snprintf(out->isa, sizeof out->isa, "%s", isa->name);
    if (pages > 0 && page_bytes > 0)
        out->total_bytes = (uint64_t)pages * (uint64_t)page_bytes;
    return 0;
}

static void describe(const struct exec *x, const char *name, struct lab_device *out)
{
    const struct exec_caps c = exec_get_caps(x);
    const struct exec_details d = exec_get_details(x);
    *out = (struct lab_device){.is_host = c.is_host,
                               .is_software = c.is_software,
                               .is_unified = c.is_unified,
                               .subgroup_size = c.subgroup_size,
                               .max_workgroup = c.max_workgroup,
                               .max_shared_bytes = c.max_shared_bytes,
                               .n_processors = c.n_processors,
                               .max_alloc_bytes = c.max_alloc_bytes,
                               .total_bytes = c.total_bytes,
                               .free_bytes = c.free_bytes,
                               .sets_subgroup_size = d.sets_subgroup_size,
                               .has_nv = d.has_nv,
                               .has_khr = d.has_khr,
                               .uses_matrices = c.has_coopmat,
                               .uses_khr = c.uses_khr,
                               .kv_is_f16 = c.kv_default_is_f16,
                               .has_denorm = c.has_denorm,
                               .has_budget = d.has_budget,
                               .imports_host = d.imports_host,
                               .has_copy_queue = d.has_copy_queue,
                               .has_timestamps = d.has_timestamps,
                               .cuts_dispatches = d.cuts_dispatches,
                               .n_heaps = d.n_heaps};
    if (name[0] && strcmp(name, "auto") != 0)
        snprintf(out->option, sizeof out->option, "%s", name);
    else if (c.is_host)
        snprintf(out->option, sizeof out->option, "cpu");
    else
        snprintf(out->option, sizeof out->option, "%u", c.index);
    snprintf(out->name, sizeof out->name, "%s", c.name);
    snprintf(out->kind, sizeof out->kind, "%s", d.kind ? d.kind : c.is_native ? "cpu" : "reference");
    snprintf(out->driver, sizeof out->driver, "%s", d.driver ? d.driver : "");
    for (uint32_t i = 0; i < d.n_heaps; i++)
        out->heaps[i] = (struct lab_heap){d.heaps[i].bytes, d.heaps[i].budget, d.heaps[i].used,
                                          d.heaps[i].is_local, d.heaps[i].is_mapped};
}

int lab_describe_devices(const struct moeflux_options *o, struct lab_device out[MOEFLUX_MAX_DEVICES],
                         uint32_t *n, struct moeflux_err *e)
{
    struct devices d;
    *n = 0;
    int rc = devices_parse(&d, o->device, e);
    for (uint32_t i = 0; rc == 0 && i < d.n; i++) {
        struct devices one = {.n = 1};
        struct moeflux_options of = *o;
        memcpy(one.names[0], d.names[i], sizeof one.names[0]);
        /* The instruction set applies only to the cpu. */
        of.cpu_isa = d.n > 1 && strcmp(d.names[i], "cpu") != 0 ? NULL : o->cpu_isa;
        rc = devices_open(&one, &of, NULL, NULL, e);
        if (rc == 0)
            describe(one.execs[0], d.names[i], &out[(*n)++]);
        devices_close(&one);
    }
    return rc;
}
