#include "cpu/nodes.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/err.h"
#include "base/mem.h"

/* The most that Linux can be built for. */
enum { MAX_NODES = 1024, WORD_BITS = 8 * sizeof(unsigned long), HUGE_PAGE = 2 << 20 };

/* ---- which nodes there are ---- */

/* Returns the first line of file `name` in a folder of /sys, to be freed with free(); NULL: none. */
static char *read_line(const char *root, const char *folder, const char *name)
{
    char path[1024], *line = NULL;
    size_t cap = 0;
    snprintf(path, sizeof path, "%s/sys/%s/%s", root, folder, name);
    FILE *f = fopen(path, "re");
    bool is_read = f && getline(&line, &cap, f) >= 0;
    if (f)
        fclose(f);
    if (is_read)
        return line;
    free(line);
    return NULL;
}

/* Returns a list of any length; it grows with the machine. */
static char *read_list(const char *root, const char *name)
{
    return read_line(root, "devices/system/node", name);
}

static bool has(const struct nodes *n, uint32_t cpu)
{
    uint32_t i = 0;
    while (i < n->n_cpus && n->cpus[i] != cpu)
        i++;
    return i < n->n_cpus;
}

/* Appends the node with its members of `all`. Returns false if some already belong to another node. */
static bool add_node(struct nodes *n, const char *root, uint32_t id, const uint32_t *all, uint32_t n_all)
{
    char name[32];
    uint32_t first = n->n_cpus, low, high;
    bool fits = true;
    snprintf(name, sizeof name, "node%u/cpulist", id);
    char *list = read_list(root, name);
    for (const char *p = list; p && fits && cores_next_range(&p, &low, &high);)
        for (uint32_t i = 0; i < n_all && fits; i++) {
            if (all[i] < low || all[i] > high)
                continue;
            fits = !has(n, all[i]);
            if (fits)
                n->cpus[n->n_cpus++] = all[i];
        }
    free(list);
    if (n->n_cpus > first)
        n->at[n->n++] = (struct node){id, first, n->n_cpus - first};
    return fits;
}

/* Returns false if some processor has no node, or two. */
static bool find_nodes(struct nodes *n, const char *root, const uint32_t *all, uint32_t n_all)
{
    uint32_t low, high;
    bool fits = true;
    char *online = read_list(root, "online");
    for (const char *p = online; p && fits && cores_next_range(&p, &low, &high);)
        for (uint32_t id = low; id <= high && id < MAX_NODES && n->n < n_all && fits; id++)
            fits = add_node(n, root, id, all, n_all);
    free(online);
    return fits && n->n_cpus == n_all;
}

int nodes_read(struct nodes *n, const char *root, struct moeflux_err *e)
{
    uint32_t n_all, *all = cores_list(&n_all, e);
    *n = (struct nodes){0};
    n->cpus = all ? mem_new(n_all, sizeof *n->cpus, e) : NULL;
    n->at = n->cpus ? mem_new(n_all, sizeof *n->at, e) : NULL;
    if (!n->at) {
        free(all);
        nodes_free(n);
        return ERR_MEMORY;
    }
    if (!find_nodes(n, root, all, n_all)) {
        memcpy(n->cpus, all, n_all * sizeof *all);
        n->at[0] = (struct node){.n = n_all};
        n->n = 1;
        n->n_cpus = n_all;
    }
    free(all);
    return 0;
}

int32_t nodes_of_pci(const char *root, const char *address)
{
    char name[64], *end = NULL;
    snprintf(name, sizeof name, "%s/numa_node", address);
    char *line = read_line(root, "bus/pci/devices", name);
    long id = line ? strtol(line, &end, 10) : -1;
    bool is_number = line && end != line && (*end == '\n' || !*end);
    free(line);
    return is_number && id >= 0 && id < MAX_NODES ? (int32_t)id : -1;
}

void nodes_free(struct nodes *n)
{
    free(n->at);
    free(n->cpus);
    *n = (struct nodes){0};
}

/* ---- where pages lie ---- */

struct mask {
    unsigned long words[MAX_NODES / WORD_BITS];
};

static struct mask mask_of(uint32_t id)
{
    struct mask m = {{0}};
    m.words[id / WORD_BITS] |= 1UL << id % WORD_BITS;
    return m;
}

bool nodes_may_place(void)
{
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL) == 0 && mode == MPOL_DEFAULT;
}

/* The system counts one bit less than the number passed. Refusals are not errors: the pages just lie
 * elsewhere. */
void nodes_prefer(uint32_t id)
{
    struct mask m = mask_of(id);
    syscall(SYS_set_mempolicy, MPOL_PREFERRED, m.words, MAX_NODES + 1UL);
}

void nodes_prefer_own(void)
{
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
}

void nodes_place(const struct node_shares *s, const uint8_t *memory, uint64_t bytes)
{
    if (bytes / s->n < HUGE_PAGE || !nodes_may_place())
        return;
    uintptr_t base = (uintptr_t)memory, last = (base + bytes) / HUGE_PAGE * HUGE_PAGE;
    for (uint32_t i = 0; i < s->n; i++) {
        /* A huge page lies on one node as a whole. */
        uintptr_t begin = size_round_up(base + node_shares_cut(s, bytes, s->at[i].begin), HUGE_PAGE);
        uintptr_t end = size_round_up(base + node_shares_cut(s, bytes, s->at[i].end), HUGE_PAGE);
        struct mask m = mask_of(s->at[i].id);
        end = size_min(end, last);
        if (begin < end)
            syscall(SYS_mbind, begin, end - begin, MPOL_PREFERRED, m.words, MAX_NODES + 1UL, 0);
    }
}
