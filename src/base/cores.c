#include "base/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/mem.h"

enum { MAX_PATH = 1024, MAX_CPUS = 1 << 15 };

static bool read_line(const char *path, char *line, int cap)
{
    FILE *f = fopen(path, "re");
    bool got = f && fgets(line, cap, f);
    if (f)
        fclose(f);
    return got;
}

/* Returns the affinity mask of the process, freed with CPU_FREE; NULL: it cannot be read. */
static cpu_set_t *affinity(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(MAX_CPUS), set) == 0)
        return set;
    CPU_FREE(set);
    return NULL;
}

uint32_t cores_allowed(void)
{
    cpu_set_t *set = affinity();
    int n = set ? CPU_COUNT_S(CPU_ALLOC_SIZE(MAX_CPUS), set) : 1;
    CPU_FREE(set);
    return n > 1 ? (uint32_t)n : 1;
}

uint32_t *cores_list(uint32_t *n, struct moeflux_err *e)
{
    cpu_set_t *set = affinity();
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    uint32_t *list = mem_new(set ? (uint64_t)CPU_COUNT_S(bytes, set) + 1 : 1, sizeof *list, e);
    *n = 0;
    for (uint32_t cpu = 0; list && set && cpu < MAX_CPUS; cpu++)
        if (CPU_ISSET_S(cpu, bytes, set))
            list[(*n)++] = cpu;
    CPU_FREE(set);
    *n += *n == 0;
    return list;
}

bool cores_next_range(const char **list, uint32_t *first, uint32_t *last)
{
    char *end;
    unsigned long low = strtoul(*list, &end, 10), high = low;
    if (end == *list)
        return false;
    if (*end == '-')
        high = strtoul(end + 1, &end, 10);
    *list = end + (*end == ',');
    *first = (uint32_t)size_min(low, UINT32_MAX);
    *last = (uint32_t)size_min(high, UINT32_MAX);
    return true;
}

/* Returns whether an earlier processor of the set shares the core of `cpu`. Its siblings are a list like
 * "3,67" or "0-1". */
static bool is_second_of_core(const char *root, const cpu_set_t *set, uint32_t cpu)
{
    char path[MAX_PATH], line[256];
    uint32_t first, last;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", root, cpu);
    if (!read_line(path, line, sizeof line))
        return false;
    for (const char *p = line; cores_next_range(&p, &first, &last);)
        for (; first <= last && first < cpu; first++)
            if (CPU_ISSET_S(first, CPU_ALLOC_SIZE(MAX_CPUS), set))
                return true;
    return false;
}

/* Returns the cgroup's quota in processors, rounded up; UINT64_MAX: none. second: cgroups version 2. */
static uint64_t quota_in(const char *dir, bool second)
{
    char path[MAX_PATH + 32], line[128], *end;
    snprintf(path, sizeof path, "%s/%s", dir, second ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_line(path, line, sizeof line))
        return UINT64_MAX;
    long long quota = strtoll(line, &end, 10); /* "max" and -1 stand for none */
    if (end == line || quota <= 0)
        return UINT64_MAX;
    if (!second) {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        end = read_line(path, line, sizeof line) ? line : NULL;
    }
    long long period = end ? strtoll(end, NULL, 10) : 0;
    return period > 0 ? (uint64_t)((quota + period - 1) / period) : UINT64_MAX;
}

/* Finds the path of this process's cgroup in a line like "0::/path" (version 2) or "4:cpu,cpuacct:/path". */
static bool find_group(const char *root, bool second, char *path, size_t cap)
{
    char file[MAX_PATH], line[MAX_PATH];
    bool found = false;
    snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    FILE *f = fopen(file, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *rest = names ? strchr(names + 1, ':') : NULL;
        if (!rest)
            continue;
        *rest = '\0';
        rest[1 + strcspn(rest + 1, "\n")] = '\0';
        found = second && names[1] == '\0';
        char *save = NULL;
        for (char *name = strtok_r(names + 1, ",", &save); name && !second; name = strtok_r(NULL, ",", &save))
            found = found || strcmp(name, "cpu") == 0;
        if (found)
            snprintf(path, cap, "%s", rest + 1);
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t cgroup_quota(const char *root, bool second)
{
    char group[MAX_PATH / 2], dir[MAX_PATH];
    const char *mount = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    uint64_t least = UINT64_MAX;
    if (!find_group(root, second, group, sizeof group))
        return least;
    snprintf(dir, sizeof dir, "%s%s%s", root, mount, group);
    size_t top = strlen(root) + strlen(mount);
    /* A container may see the host's path; its mount is then the group itself. */
    while (strlen(dir) >= top) {
        least = size_min(least, quota_in(dir, second));
        *strrchr(dir, '/') = '\0';
    }
    return least;
}

uint32_t cores_useful(const char *root)
{
    cpu_set_t *set = affinity();
    uint64_t n = 0;
    for (uint32_t cpu = 0; set && cpu < MAX_CPUS; cpu++)
        if (CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(MAX_CPUS), set) && !is_second_of_core(root, set, cpu))
            n++;
    CPU_FREE(set);
    n = size_min(n, size_min(cgroup_quota(root, true), cgroup_quota(root, false)));
    return n > 1 ? (uint32_t)n : 1;
}

void cores_name(const char *root, char *name, size_t cap)
{
    char path[MAX_PATH], line[512];
    struct utsname machine;
    snprintf(name, cap, "%s", uname(&machine) == 0 ? machine.machine : "CPU");
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(name, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f)
        fclose(f);
}
