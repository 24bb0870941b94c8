/* exec/devices.h, engine/plan/device_list.h and cli/report/device.h: GPUs of a made-up machine, and the
 * memory nodes that they are attached to.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cli/report/device.h"
#include "cli/output.h"
#include "engine/plan/device_list.h"
#include "exec/devices.h"
#include "fake_nodes.h"
#include "moeflux.h"
#include "tmp_tree.h"
#include "vulkan/device.h"

enum { MOST = 8 };

/* GPUs at these addresses, consecutively. */
static uint32_t describe(const char *root, const char *const *addresses, uint32_t n,
                         struct moeflux_device *to)
{
    for (uint32_t i = 0; i < n; i++) {
        struct gpu_info g = {.kind = "discrete", .name = "a GPU"};
        struct exec_device d;
        snprintf(g.pci, sizeof g.pci, "%s", addresses[i]);
        exec_describe_gpu(&d, &g, i, root);
        device_list_convert(&to[i], &d);
    }
    return n;
}

static void expect_lines(const struct moeflux_device *all, uint32_t n, const char *want)
{
    char have[512];
    FILE *f = tmpfile();
    struct output out;
    struct moeflux_err e = {0};
    assert_non_null(f);
    output_init(&out, dup(fileno(f)));
    device_report_nodes(all, n, &out);
    check_ok(output_close(&out, &e), &e);
    rewind(f);
    have[fread(have, 1, sizeof have - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(have, want);
}

static void devices_of_one_node_are_named_together(void **state)
{
    static const char *const at[] = {"0000:3b:00.0", "0000:d8:00.0", "0001:3b:00.0", "0000:d9:00.1"};
    struct moeflux_device d[MOST];
    char *root = tmp_tree_new();
    (void)state;
    fake_nodes_put_pci(root, at[0], "0\n");
    fake_nodes_put_pci(root, at[1], "1\n");
    fake_nodes_put_pci(root, at[2], "0\n");
    fake_nodes_put_pci(root, at[3], "1\n");
    uint32_t n = describe(root, at, 4, d);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(d[i].memory_node, i % 2);
    expect_lines(d, n, "host memory node 0: devices 0, 2\nhost memory node 1: devices 1, 3\n");
    expect_lines(d, 2, "host memory node 0: device 0\nhost memory node 1: device 1\n");
    expect_lines(d, 1, "");
    tmp_tree_remove(root);
}

/* -1: the firmware does not report a node. A driver without the extension gives no address. */
static void what_the_system_does_not_say_is_not_reported(void **state)
{
    static const char *const at[] = {"0000:01:00.0", "0000:02:00.0", "", "0000:03:00.0", "0000:04:00.0"};
    struct moeflux_device d[MOST];
    char *root = tmp_tree_new();
    (void)state;
    fake_nodes_put_pci(root, at[0], "-1\n");
    fake_nodes_put_pci(root, at[1], "1\n");
    fake_nodes_put_pci(root, at[3], "none\n");
    uint32_t n = describe(root, at, 5, d);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(d[i].memory_node, i == 1 ? 1 : -1);
    expect_lines(d, n, "");
    tmp_tree_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_of_one_node_are_named_together),
        cmocka_unit_test(what_the_system_does_not_say_is_not_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
