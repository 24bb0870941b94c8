/* nodes.h - the parts of this machine that have memory of their own (NUMA nodes), as the sockets of a board.
 * A core reads the memory of its own node faster than another's.
 *
 * Threads and rows of matrices are divided alike (node_shares): a node that has a quarter of the threads
 * computes a quarter of each matrix's rows, and these bytes belong in its memory. Where pages lie is a wish:
 * on a node without free memory, or where a container forbids it, the system chooses, and only the speed
 * differs. */
#ifndef MOEFLUX_CPU_NODES_H
#define MOEFLUX_CPU_NODES_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct node {
    uint32_t id;       /* the system's number */
    uint32_t first, n; /* its processors: nodes.cpus[first] to [first + n - 1] */
};

/* The nodes that have processors of the affinity mask, in the order of their numbers. */
struct nodes {
    struct node *at;
    uint32_t n;     /* at least 1 */
    uint32_t *cpus; /* [n_cpus] node by node */
    uint32_t n_cpus;
};

/* Where the system does not name a node for each processor, all are of one node. `root` stands before /sys:
 * "", or a test's directory. ERR_MEMORY. */
int nodes_read(struct nodes *n, const char *root, struct moeflux_err *e);
/* The node that a PCI device is attached to: its address as "0000:3b:00.0". -1: the system does not say, or
 * there is no such device. */
int32_t nodes_of_pci(const char *root, const char *address);
/* Zeroed ones are legal. */
void nodes_free(struct nodes *n);

/* Node `id` has the parts [begin, end) of a whole of node_shares.of. */
struct node_share {
    uint32_t id, begin, end;
};
/* Shares one behind the other, from 0 to `of`. */
struct node_shares {
    struct node_share *at;
    uint32_t n, of;
};

/* Where n things (bytes, blocks) are cut for a part number of 0 to `of`: 0 gives 0, `of` gives n. */
static inline uint64_t node_shares_cut(const struct node_shares *s, uint64_t n, uint32_t part)
{
    return n / s->of * part + n % s->of * part / s->of;
}

/* Whether the system places this thread's pages by its own rule. Else the user has chosen another (numactl),
 * which holds, or nobody may choose. */
bool nodes_may_place(void);
/* The pages that this thread brings into memory from now on are to lie on the node; of files, those that were
 * not in the page cache. Only where nodes_may_place. */
void nodes_prefer(uint32_t id);
/* The system's own rule again: they lie on the node that the thread runs on. */
void nodes_prefer_own(void);

/* The pages of anonymous memory that nobody has written to yet are to lie where their shares are, if
 * nodes_may_place. Memory whose shares are smaller than a huge page stays as it is. */
void nodes_place(const struct node_shares *s, const uint8_t *memory, uint64_t bytes);

#endif
