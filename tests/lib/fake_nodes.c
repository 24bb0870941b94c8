#include "fake_nodes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/cores.h"
#include "tmp_tree.h"

/* path: changed on the way. */
static void put(const char *root, char *path, const char *text)
{
    for (char *p = path; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(tmp_tree_path(root, path), 0755);
        *p = '/';
    }
    tmp_tree_write_text(root, path, text);
}

void fake_nodes_put(const char *root, const char *name, const char *text)
{
    char path[512];
    int at = snprintf(path, sizeof path, "sys/devices/system/node/%s", name);
    assert_true(at > 0 && (size_t)at < sizeof path);
    put(root, path, text);
}

void fake_nodes_put_pci(const char *root, const char *address, const char *text)
{
    char path[128];
    int at = snprintf(path, sizeof path, "sys/bus/pci/devices/%s/numa_node", address);
    assert_true(at > 0 && (size_t)at < sizeof path);
    put(root, path, text);
}

char *fake_nodes_new(uint32_t n)
{
    char *root = tmp_tree_new(), text[4096], name[64];
    uint32_t n_cpus, *cpus = cores_list(&n_cpus, NULL);
    assert_non_null(cpus);
    snprintf(text, sizeof text, "0-%u\n", n - 1);
    fake_nodes_put(root, "online", text);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = 0;
        for (uint32_t c = i; c < n_cpus; c += n)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", at ? "," : "", cpus[c]);
        assert_true(at + 1 < sizeof text);
        strcpy(text + at, "\n");
        snprintf(name, sizeof name, "node%u/cpulist", i);
        fake_nodes_put(root, name, text);
    }
    free(cpus);
    return root;
}
