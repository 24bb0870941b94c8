/* Vulkan devices that are kept between two uses.
 *
 * suites: check vulkan fast asan */
#include "check.h"
#include "device.h"
#include "exec/exec.h"
#include "exec/exec_vulkan.h"
#include "exec/shelf.h"
#include "ops/add.h"

static struct exec *open_on(struct exec_shelf *s, bool staged)
{
    struct exec *x;
    struct moeflux_err e = {0};
    const struct exec_options o = {.device = device_name(), .staged = staged, .shelf = s};
    check_ok(exec_open(&x, &o, &e), &e);
    return x;
}

static float add_on(struct exec *x, float a, float b)
{
    enum { N = 4 };
    struct moeflux_err e = {0};
    struct exec_buffer to, from;
    struct add op;
    float y[N] = {a, a, a, a}, z[N] = {b, b, b, b};
    check_ok(add_open(&op, x, &e), &e);
    check_ok(exec_buffer_new(x, &to, EXEC_DEVICE, sizeof y, &e), &e);
    check_ok(exec_buffer_new(x, &from, EXEC_DEVICE, sizeof z, &e), &e);
    check_ok(exec_write(x, &to, 0, y, sizeof y, &e), &e);
    check_ok(exec_write(x, &from, 0, z, sizeof z, &e), &e);
    exec_begin(x);
    add_run(&op, x, &(struct add_call){.y = to.address, .x = from.address, .n = N});
    check_ok(exec_finish(x, &e), &e);
    check_ok(exec_read(x, &from, 0, z, sizeof z, &e), &e);
    exec_buffer_free(x, &to);
    exec_buffer_free(x, &from);
    return z[N - 1];
}

static void a_device_and_its_kernels_are_taken_up_again(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct exec_shelf *s = exec_shelf_new(&e);
    struct exec *x = open_on(s, false);
    VkDevice device = vulkan_of(x)->gpu.device;
    float sum = add_on(x, 1, 2);
    VkPipeline kernel = vulkan_of(x)->pipelines.all[0].handle;
    exec_close(x);
    x = open_on(s, false);
    assert_ptr_equal(vulkan_of(x)->gpu.device, device);
    assert_true(vulkan_of(x)->pipelines.all[0].handle == kernel);
    assert_true(add_on(x, 1, 2) == sum);
    assert_int_equal(vulkan_of(x)->pipelines.n, 1);
    exec_close(x);
    exec_shelf_free(s);
}

/* Whether its memory counts as the host's is asked anew. */
static void a_device_is_staged_for_one_use(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct exec_shelf *s = exec_shelf_new(&e);
    struct exec *x = open_on(s, false);
    VkDevice device = vulkan_of(x)->gpu.device;
    bool is_unified = exec_get_caps(x).is_unified;
    exec_close(x);
    for (int i = 0; i < 2; i++) {
        x = open_on(s, i == 0);
        assert_ptr_equal(vulkan_of(x)->gpu.device, device);
        assert_int_equal(exec_get_caps(x).is_unified, i == 0 ? false : is_unified);
        assert_true(add_on(x, 0.5f, 0.25f) == 0.75f);
        exec_close(x);
    }
    exec_shelf_free(s);
}

static void a_device_serves_one_exec_at_a_time(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct exec_shelf *s = exec_shelf_new(&e);
    struct exec *a = open_on(s, false), *b = open_on(s, false);
    VkDevice first = vulkan_of(a)->gpu.device, second = vulkan_of(b)->gpu.device;
    assert_ptr_not_equal(first, second);
    exec_close(a);
    exec_close(b);
    a = open_on(s, false);
    b = open_on(s, false);
    assert_true(vulkan_of(a)->gpu.device == first && vulkan_of(b)->gpu.device == second);
    exec_close(b);
    exec_close(a);
    exec_shelf_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_and_its_kernels_are_taken_up_again),
        cmocka_unit_test(a_device_is_staged_for_one_use),
        cmocka_unit_test(a_device_serves_one_exec_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
