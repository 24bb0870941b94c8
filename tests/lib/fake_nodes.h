/* fake_nodes.h - a folder that stands for the system's, on which processors belong to other memory nodes than
 * they do. */
#ifndef MOEFLUX_TESTS_FAKE_NODES_H
#define MOEFLUX_TESTS_FAKE_NODES_H

#include <stdint.h>

/* A folder in which the processors of the affinity mask are shared out in turn among nodes 0 to n - 1; freed
 * by tmp_tree_remove. With fewer processors the later nodes have none. */
char *fake_nodes_new(uint32_t n);

/* Sets sys/devices/system/node/`name`, as "online" or "node0/cpulist". */
void fake_nodes_put(const char *root, const char *name, const char *text);
/* Sets the node that the PCI device is attached to. */
void fake_nodes_put_pci(const char *root, const char *address, const char *text);

#endif
