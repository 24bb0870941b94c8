/* What a device does not take is an error of the batch: Vulkan leaves open what else would happen.
 *
 * suites: check vulkan fast asan */
#include <string.h>

#include "args.h"
#include "check.h"
#include "device.h"
#include "exec/exec_vulkan.h"
#include "exec/kernel.h"

enum { WORKGROUP = 64 };

static bool always(void *ctx)
{
    (void)ctx;
    return true;
}

/* Sums of no numbers. */
static int run(struct exec *x, const struct kernel *k, uint32_t gx, uint32_t gy, uint32_t gz,
               struct moeflux_err *e)
{
    const struct add_args a = {0};
    *e = (struct moeflux_err){0};
    exec_begin(x);
    exec_dispatch(x, k, &a, gx, gy, gz);
    return exec_finish(x, e);
}

static void more_workgroups_than_the_device_takes_fail_the_batch(void **state)
{
    (void)state;
    struct exec *x;
    struct kernel k;
    struct moeflux_err e = {0};
    const uint32_t spec = WORKGROUP, most[3] = {5, 4, 3};
    const struct exec_watch watch = {always, NULL};
    check_ok(exec_open(&x, &(struct exec_options){.device = device_name()}, &e), &e);
    check_ok(exec_kernel(x, &k, "add", sizeof(struct add_args), &spec, 1, &e), &e);
    memcpy(vulkan_of(x)->gpu.max_groups, most, sizeof most);
    for (int watched = 0; watched < 2; watched++) {
        exec_watch(x, watched ? &watch : NULL);
        check_ok(run(x, &k, 5, 4, 3, &e), &e);
        assert_int_equal(run(x, &k, 6, 1, 1, &e), ERR_UNSUPPORTED);
        assert_int_equal(run(x, &k, 1, 5, 1, &e), ERR_UNSUPPORTED);
        assert_int_equal(run(x, &k, 1, 1, 4, &e), ERR_UNSUPPORTED);
        if (!strstr(e.text, "kernel add: 1 x 1 x 4 workgroups, ") || !strstr(e.text, " takes 5 x 4 x 3"))
            fail_msg("\"%s\"", e.text);
        check_ok(run(x, &k, 1, 1, 1, &e), &e);
    }
    exec_watch(x, NULL);
    exec_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_workgroups_than_the_device_takes_fail_the_batch)};
    if (device_is_vulkan())
        return cmocka_run_group_tests(tests, NULL, NULL);
    print_message("SKIP no Vulkan device: MOEFLUX_DEVICE names none\n");
    return 0;
}
