/* nodes.h - the parts of this machine with memory of their own (NUMA nodes), such as the sockets of a board.
 * A core reads the memory of its own node faster than another's.
 *
 * Threads and rows of matrices are divided in the same way (node_shares): a node with a quarter of the
 * threads computes a quarter of each matrix's rows, and these bytes belong in its memory. The placement of
 * pages is only a preference: if a node has no free memory, or a container forbids it, the system chooses,
 * and only the speed differs. */
#ifndef MOEFLUX_CPU_NODES_H
#define MOEFLUX_CPU_NODES_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct node {
    uint32_t id;       /* the system's number */
    uint32_t first, n; /* its processors: nodes.cpus[first] to [first + n - 1] */
};

/* The nodes with processors of the affinity mask, in the order of their numbers. */
struct nodes {
    struct node *at;
    uint32_t n;     /* 1 or more */
    uint32_t *cpus; /* [n_cpus], node by node */
    uint32_t n_cpus;
};

/* Reads the nodes. If the system does not name a node for each processor, all belong to one. root: prefix of
 * /sys, "" or a test's directory. ERR_MEMORY. */
int nodes_read(struct nodes *n, const char *root, struct moeflux_err *e);
/* Returns the node that a PCI device is attached to; address: such as "0000:3b:00.0". -1: the system does not
 * report it, or there is no such device. */
int32_t nodes_of_pci(const char *root, const char *address);
/* Frees them; zeroed ones are allowed. */
void nodes_free(struct nodes *n);

/* Node `id` has parts [begin, end) of the node_shares.of parts of a whole. */
struct node_share {
    uint32_t id, begin, end;
};
/* Consecutive shares, from 0 to `of`. */
struct node_shares {
    struct node_share *at;
    uint32_t n, of;
};

/* Returns where n things (bytes, blocks) are cut for a part number of 0 to `of`: 0 gives 0, `of` gives n. */
static inline uint64_t node_shares_cut(const struct node_shares *s, uint64_t n, uint32_t part)
{
    return n / s->of * part + n % s->of * part / s->of;
}

/* Returns whether the system places this thread's pages by its default rule. Otherwise the user has chosen
 * another (numactl), which is kept, or the policy cannot be changed. */
bool nodes_may_place(void);
/* Places the pages that this thread brings into memory from now on on the node; pages of files only if they
 * were not in the page cache. Needs nodes_may_place. */
void nodes_prefer(uint32_t id);
/* Restores the default rule: pages lie on the node that the thread runs on. */
void nodes_prefer_own(void);

/* Places pages of anonymous memory that have not been written yet where their shares are, if nodes_may_place.
 * Memory whose shares are smaller than a huge page stays as it is. */
void nodes_place(const struct node_shares *s, const uint8_t *memory, uint64_t bytes);

#endif
