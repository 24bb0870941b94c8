#include "engine/plan/host_memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_PATH = 1024 };

/* The file names of a version of the cgroups. */
struct cgroup {
    const char *line;  /* start of its line in /proc/self/cgroup, after the number */
    const char *mount; /* path below the root */
    const char *limit, *usage;
    const char *caches[2]; /* lines of memory.stat with the page cache, children included */
};

static const struct cgroup versions[] = {
    {":", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory:",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

/* Returns the number after the word `name` at the start of a line of the file; the file's first number if
 * name is NULL. UINT64_MAX: there is none ("max", no such file). */
static uint64_t find_number(const char *path, const char *name)
{
    char line[256], *end;
    uint64_t found = UINT64_MAX;
    size_t skip = name ? strlen(name) : 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return found;
    while (found == UINT64_MAX && fgets(line, sizeof line, f)) {
        if (name && (strncmp(line, name, skip) != 0 || (line[skip] != ' ' && line[skip] != ':')))
            continue;
        const char *digits = line + skip + (name ? 1 : 0);
        unsigned long long n = strtoull(digits, &end, 10);
        if (end != digits)
            found = n;
        if (!name)
            break;
    }
    fclose(f);
    return found;
}

static uint64_t number_in(const char *dir, const char *file, const char *name)
{
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return find_number(path, name);
}

/* Returns the bytes that one group leaves. Its usage includes the page cache, which does not count here: it
 * is dropped when memory is needed. */
static uint64_t left_by(const char *dir, const struct cgroup *v)
{
    uint64_t limit = number_in(dir, v->limit, NULL), usage = number_in(dir, v->usage, NULL);
    if (limit == UINT64_MAX || usage == UINT64_MAX)
        return UINT64_MAX;
    for (size_t i = 0; i < sizeof v->caches / sizeof *v->caches; i++) {
        uint64_t cached = number_in(dir, "memory.stat", v->caches[i]);
        usage = size_minus(usage, cached == UINT64_MAX ? 0 : cached);
    }
    return size_minus(limit, usage);
}

/* Finds this process's group of a version: the path after "7:memory:" or "0::". */
static bool find_group(const char *root, const struct cgroup *v, char *path, size_t cap)
{
    char file[MAX_PATH], line[MAX_PATH];
    size_t skip = strlen(v->line);
    bool found = false;
    snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    FILE *f = fopen(file, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *rest = strchr(line, ':');
        found = rest && strncmp(rest + 1, v->line, skip) == 0;
        line[strcspn(line, "\n")] = '\0';
        if (found)
            snprintf(path, cap, "%s", rest + 1 + skip);
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t cgroup_free(const char *root, const struct cgroup *v)
{
    char group[MAX_PATH / 2], dir[MAX_PATH];
    uint64_t least = UINT64_MAX;
    if (!find_group(root, v, group, sizeof group))
        return least;
    snprintf(dir, sizeof dir, "%s%s%s", root, v->mount, group);
    size_t top = strlen(root) + strlen(v->mount);
    /* A container may report a path that only the host sees; its mount is then the group itself. */
    while (strlen(dir) >= top) {
        least = size_min(least, left_by(dir, v));
        *strrchr(dir, '/') = '\0';
    }
    return least;
}

uint64_t host_memory_free(const char *root)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib = find_number(path, "MemAvailable");
    uint64_t least = kib == UINT64_MAX ? kib : kib * 1024;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        least = size_min(least, cgroup_free(root, &versions[i]));
    return least;
}
