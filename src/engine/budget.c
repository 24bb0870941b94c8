#include "engine/budget.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "experts/supply.h"
#include "model/model_dir.h"
#include "ops/exec.h"

static uint64_t meminfo_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[256];
    unsigned long long kib = 0;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    if (f)
        fclose(f);
    return found ? kib * 1024 : UINT64_MAX;
}

/* A number in a one-line file, or UINT64_MAX ("max", or no such file). */
static uint64_t number_in(const char *dir, const char *file)
{
    char path[512], text[64] = "";
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    bool got = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    return got && end != text ? n : UINT64_MAX;
}

/* What the memory limits of this process's cgroup and its parents leave (cgroup v2). */
static uint64_t cgroup_free(void)
{
    char line[400] = "", dir[512];
    FILE *f = fopen("/proc/self/cgroup", "re");
    uint64_t least = UINT64_MAX;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, "0::", 3) == 0;
    if (f)
        fclose(f);
    if (!found)
        return least;
    line[strcspn(line, "\n")] = '\0';
    snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
    while (strlen(dir) >= strlen("/sys/fs/cgroup")) {
        uint64_t max = number_in(dir, "memory.max"), now = number_in(dir, "memory.current");
        if (max != UINT64_MAX && now != UINT64_MAX)
            least = size_min(least, max > now ? max - now : 0);
        *strrchr(dir, '/') = '\0';
    }
    return least;
}

uint64_t budget_host_free(void)
{
    return size_min(meminfo_available(), cgroup_free());
}

/* What is left for others: the page cache that reads go through, the desktop, our own small allocations. */
static uint64_t with_margin(uint64_t free_bytes)
{
    return free_bytes / 10 * 9;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps, const struct budget_wish *w,
                       uint64_t *bytes, struct err *e)
{
    uint64_t fixed = m->dense_bytes + w->scratch_bytes, least = supply_floor_bytes(m);
    if (w->memory_bytes && w->memory_bytes < least)
        return err_set(e, ERR_NO_FIT,
                       "--memory is %.2f MiB, the experts of one token and layer need %.2f MiB",
                       (double)w->memory_bytes / 1048576.0, (double)least / 1048576.0);
    uint64_t device = w->gpu_memory_bytes ? w->gpu_memory_bytes : with_margin(caps->free_bytes);
    if (caps->is_unified && !w->gpu_memory_bytes)
        device = size_min(device, with_margin(budget_host_free()));
    if (device < fixed || device - fixed < least)
        return err_set(
            e, ERR_NO_FIT,
            "the model needs at least %.1f MiB (weights %.1f, states %.1f, experts of one token %.1f), "
            "%s %.1f MiB",
            (double)(fixed + least) / 1048576.0, (double)m->dense_bytes / 1048576.0,
            (double)w->scratch_bytes / 1048576.0, (double)least / 1048576.0,
            w->gpu_memory_bytes ? "--gpu-memory is" : "free are", (double)device / 1048576.0);
    *bytes = size_min(minus(device, fixed), supply_full_bytes(m));
    if (w->memory_bytes)
        *bytes = size_min(*bytes, w->memory_bytes);
    return 0;
}
