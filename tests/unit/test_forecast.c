/* The forecast of the time for one decoded token, from bytes, speeds and waits.
 *
 * suites: nightly vulkan asan-nightly */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/test_hooks.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

static const char ODD[] = "tests/models/qwen-odd/mlx", OTHER_FAMILY[] = "tests/models/deepseek-odd/mlx";

/* 10 layers, 1 MB of dense weights and 1 MB of experts a token. */
static const struct moeflux_needs NEEDS = {
    .n_layers = 10, .token_dense_bytes = 1000000, .token_expert_bytes = 1000000};
/* 1 GB/s from disk, 2 GB/s in kernels, 4 GB/s to the device. */
static const struct lab_speeds SPEEDS = {.disk_bytes_s = 1e9, .kernel_bytes_s = 2e9, .copy_bytes_s = 4e9};

static void check_s(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-12))
        fail_msg("%.9f s, expected %.9f", found, expected);
}

static void a_token_is_the_sum_or_the_longer_of_its_parts(void **state)
{
    (void)state;
    const struct moeflux_plan plan = {.n_experts = 4, .n_slots = 2, .n_host_slots = 2};
    struct lab_forecast f = lab_make_forecast(&NEEDS, &plan, &SPEEDS, 0);
    check_s(f.compute_s, 0.001);
    check_s(f.copy_s, 0.00025);
    check_s(f.disk_s, 0.001);
    check_s(f.apart_s, 0.00225);
    check_s(f.overlapped_s, 0.00125);
}

static void hits_in_host_memory_are_copied_and_not_read(void **state)
{
    (void)state;
    const struct moeflux_plan plan = {.n_experts = 4, .n_slots = 1, .n_host_slots = 3};
    struct lab_forecast f = lab_make_forecast(&NEEDS, &plan, &SPEEDS, 1);
    check_s(f.disk_s, 0);
    check_s(f.copy_s, 0.00025 * 3 / 4);
    f = lab_make_forecast(&NEEDS, &plan, &SPEEDS, 0.5);
    check_s(f.disk_s, 0.0005);
    check_s(f.copy_s, 0.00025 * 7 / 8);
}

static void a_resident_model_waits_once_for_a_token(void **state)
{
    (void)state;
    struct lab_speeds s = SPEEDS;
    s.round_trip_s = 0.001;
    struct moeflux_plan plan = {.n_experts = 4, .n_slots = 4, .experts_resident = true};
    check_s(lab_make_forecast(&NEEDS, &plan, &s, 1).compute_s, 0.002);
    plan.experts_resident = false;
    check_s(lab_make_forecast(&NEEDS, &plan, &s, 1).compute_s, 0.011);
}

static void so_does_one_whose_host_holds_all_experts(void **state)
{
    (void)state;
    struct lab_speeds s = SPEEDS;
    s.round_trip_s = 0.001;
    struct moeflux_plan plan = {.n_experts = 4, .n_slots = 1, .n_host_slots = 4};
    check_s(lab_make_forecast(&NEEDS, &plan, &s, 1).compute_s, 0.002);
    check_s(lab_make_forecast(&NEEDS, &plan, &s, 1).copy_s, 0.00025 * 3 / 4);
    plan.n_host_slots = 3;
    check_s(lab_make_forecast(&NEEDS, &plan, &s, 1).compute_s, 0.011);
}

static void what_is_not_known_counts_as_nothing(void **state)
{
    (void)state;
    const struct lab_speeds none = {0};
    struct lab_forecast f = lab_make_forecast(&NEEDS, NULL, &none, 0.5);
    check_s(f.apart_s, 0);
    check_s(f.overlapped_s, 0);
}

/* A card for a quarter of the experts, the host for the others: 10 layers of 4 experts of a byte each, one a
 * token. */
static void the_placement_follows_bus_and_memory(void **state)
{
    (void)state;
    struct moeflux_needs n = NEEDS;
    n.n_experts = 4;
    struct moeflux_plan plan = {
        .n_experts = 40, .slot_bytes = 1, .device_room_bytes = 8, .host_room_bytes = 40};
    struct lab_speeds s = SPEEDS;
    struct lab_placement p;
    assert_false(lab_compare_placements(&n, &plan, &s, &p)); /* the CPU was not measured */
    /* Memory twice as fast as the bus: what does not fit the card is computed where it lies. */
    s.kernel_bytes_s = 1e12;
    s.cpu_bytes_s = 8e9;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_int_equal(p.best_cpu_layers, 8);
    check_s(p.best_s, 1.2e-6 + 0.8e-3 / 8);
    check_s(p.cpu_s, 1e-6 + 1e-3 / 8);
    check_s(p.gpu_s, 2e-6 + 0.8e-3 / 4);
    /* A slow CPU, or a card that holds everything: the GPU. */
    s.cpu_bytes_s = 1e9;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_int_equal(p.best_cpu_layers, 0);
    s.cpu_bytes_s = 8e9;
    plan.device_room_bytes = 40;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_int_equal(p.best_cpu_layers, 0);
    /* No room on the card: the CPU. */
    plan.device_room_bytes = 0;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_int_equal(p.best_cpu_layers, 10);
}

/* The same card, and a bus as fast as the CPU's memory. */
static void a_share_uses_bus_and_memory_at_once(void **state)
{
    (void)state;
    struct moeflux_needs n = NEEDS;
    n.n_experts = 4;
    n.top_k = 4;
    struct moeflux_plan plan = {
        .n_experts = 40, .slot_bytes = 1, .device_room_bytes = 0, .host_room_bytes = 40};
    struct lab_speeds s = SPEEDS;
    struct lab_placement p;
    s.kernel_bytes_s = 1e12;
    s.cpu_bytes_s = 4e9;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_true(p.best_share > 0.3 && p.best_share < 0.7);
    assert_true(p.share_s < 0.9 * p.best_s);
    /* A choice of more experts is divided more evenly; never better than half of the time. */
    double of_few = p.share_s;
    n.top_k = 64;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_true(p.share_s < of_few && p.share_s > 0.5 * p.best_s);
    /* One memory has no second way. */
    plan.is_unified = true;
    plan.device_room_bytes = 40;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    assert_true(p.best_share == 0);
    /* The forecast of a plan with a share has it too. */
    plan = (struct moeflux_plan){
        .n_experts = 4, .n_cpu_experts = 2, .n_cpu_slots = 2, .n_host_slots = 2, .n_cpu_layers = 10};
    double apart = lab_make_forecast(&n, &plan, &s, 1).apart_s;
    plan.cpu_share = 0.5f;
    assert_true(lab_make_forecast(&n, &plan, &s, 1).apart_s < apart);
}

static void experts_on_the_cpu_wait_for_memory_and_for_the_device(void **state)
{
    (void)state;
    struct moeflux_needs n = NEEDS;
    n.n_experts = 4;
    const struct moeflux_plan plan = {
        .n_experts = 40, .slot_bytes = 1, .device_room_bytes = 8, .host_room_bytes = 40};
    struct lab_speeds s = SPEEDS;
    struct lab_placement p;
    s.kernel_bytes_s = 1e12;
    s.cpu_bytes_s = 8e9;
    s.memory_bytes_s = 2e9;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    check_s(p.cpu_s, 1e-6 + 1e-3 / 2);
    s.memory_bytes_s = 16e9; /* more than the products take */
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    check_s(p.cpu_s, 1e-6 + 1e-3 / 8);
    /* The host waits for each choice, the device for each sum, and the host for the logits. */
    s.round_trip_s = 0.001;
    assert_true(lab_compare_placements(&n, &plan, &s, &p));
    check_s(p.cpu_s, 1e-6 + 1e-3 / 8 + 21 * 0.001);
    check_s(p.gpu_s, 2e-6 + 0.8e-3 / 4 + 0.001);
}

/* ---- several devices ---- */

/* 10 layers of 100 kB dense and 100 kB of experts a token; 4 experts of 100 kB in each layer. */
static struct moeflux_needs needs_of_layers(void)
{
    struct moeflux_needs n = NEEDS;
    n.n_experts = 4;
    n.top_k = 1;
    n.n_expert_layers = 10;
    return n;
}

/* Adds a device with n_layers layers and memory of `bytes` bytes. It holds all experts that fit. */
static void add_device(struct moeflux_plan *p, uint32_t n_layers, uint64_t bytes)
{
    struct moeflux_plan_device *d = &p->devices[p->n_devices], *before = d - 1;
    d->first_layer = p->n_devices++ ? before->end_layer : 0;
    d->end_layer = d->first_layer + n_layers;
    d->device_bytes = bytes;
    d->weights_bytes = 100000 * (uint64_t)n_layers;
    d->n_experts = 4 * (uint64_t)n_layers;
    uint64_t room = (bytes - d->weights_bytes) / 100000;
    d->n_slots = room < d->n_experts ? room : d->n_experts;
    d->n_host_slots = d->n_experts - d->n_slots;
    p->slot_bytes = 100000;
    p->n_experts += d->n_experts;
}

static struct lab_speeds speeds_of(uint32_t n, const double *kernel_bytes_s)
{
    struct lab_speeds s = SPEEDS;
    s.n_devices = n;
    for (uint32_t i = 0; i < n; i++)
        s.devices[i] = (struct lab_device_speeds){.kernel_bytes_s = kernel_bytes_s[i], .copy_bytes_s = 1e9};
    return s;
}

static void expect_split(const struct moeflux_plan *p, const struct lab_speeds *s, int rc,
                         const uint32_t *layers, struct lab_split *split)
{
    const struct moeflux_needs n = needs_of_layers();
    struct moeflux_err e = {0};
    assert_int_equal(lab_find_split(&n, p, s, split, &e), rc);
    for (uint32_t i = 0; layers && i < p->n_devices; i++)
        assert_int_equal(split->n_layers[i], layers[i]);
}

static void equal_devices_with_room_share_evenly(void **state)
{
    (void)state;
    const struct lab_speeds s = speeds_of(2, (double[]){2e9, 2.1e9});
    struct moeflux_plan even = {0}, uneven = {0};
    struct lab_split split;
    add_device(&even, 5, 100000000);
    add_device(&even, 5, 100000000);
    expect_split(&even, &s, 0, (uint32_t[]){5, 5}, &split);
    check_s(split.token_s, 1e6 / 2e9 + 1e6 / 2.1e9);
    add_device(&uneven, 9, 100000000);
    add_device(&uneven, 1, 100000000);
    expect_split(&uneven, &s, 1, (uint32_t[]){5, 5}, &split);
    check_s(split.slowest_s, 9 * 2e5 / 2e9);
    check_s(split.best_slowest_s, 5 * 2e5 / 2e9);
}

static void a_faster_device_gets_what_it_has_room_for(void **state)
{
    (void)state;
    struct lab_split split;
    const struct lab_speeds s = speeds_of(2, (double[]){1e9, 10e9});
    struct moeflux_plan roomy = {0}, little = {0};
    add_device(&roomy, 5, 100000000);
    add_device(&roomy, 5, 100000000);
    expect_split(&roomy, &s, 1, (uint32_t[]){1, 9}, &split);
    check_s(split.best_token_s, 2e5 / 1e9 + 9 * 2e5 / 10e9);
    /* A layer takes 500 kB: the second device holds six. A seventh's experts would cross the bus. */
    add_device(&little, 5, 100000000);
    add_device(&little, 5, 3000000);
    struct lab_speeds bus = s;
    bus.devices[1].copy_bytes_s = 1e8;
    expect_split(&little, &bus, 1, (uint32_t[]){4, 6}, &split);
}

static void a_small_device_gives_layers_away(void **state)
{
    (void)state;
    struct lab_split split;
    const struct lab_speeds s = speeds_of(3, (double[]){2e9, 2e9, 2e9});
    struct moeflux_plan p = {0};
    add_device(&p, 4, 600000); /* it holds one layer, and has to copy three quarters of the others */
    add_device(&p, 3, 100000000);
    add_device(&p, 3, 100000000);
    expect_split(&p, &s, 1, NULL, &split);
    assert_int_equal(split.n_layers[0], 1);
    assert_int_equal(split.n_layers[1] + split.n_layers[2], 9);
    assert_true(split.n_layers[1] == 4 || split.n_layers[1] == 5);
}

static void nothing_is_said_of_devices_without_a_speed(void **state)
{
    (void)state;
    struct lab_split split;
    struct moeflux_plan p = {0};
    struct lab_speeds s = speeds_of(2, (double[]){1e9, 0});
    add_device(&p, 9, 100000000);
    add_device(&p, 1, 100000000);
    expect_split(&p, &s, 0, NULL, &split);
    assert_true(split.token_s == 0 && split.n_layers[0] == 0);
}

/* Each device has its own layers' experts. Those of the first layers do not use the first device's memory. */
static void the_placement_of_several_devices_follows_each(void **state)
{
    (void)state;
    const struct moeflux_needs n = needs_of_layers();
    struct lab_speeds s = speeds_of(2, (double[]){1e12, 1e12});
    struct moeflux_plan p = {.host_room_bytes = 4000000};
    struct lab_placement place;
    s.kernel_bytes_s = 1e12;
    s.cpu_bytes_s = 8e9;
    add_device(&p, 5, 100000000);
    add_device(&p, 5, 500000);
    assert_true(lab_compare_placements(&n, &p, &s, &place));
    /* All five layers of the second device cross the bus, however many of the first are the CPU's. */
    check_s(place.gpu_s, 2e-6 + 0.5e6 / 4e9);
    assert_int_equal(place.best_cpu_layers, 10);
}

static struct moeflux_options odd(void)
{
    return (struct moeflux_options){.dir = ODD, .device = "reference"};
}

static void disk_and_device_have_speeds(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_options o = odd();
    struct lab_speeds s;
    check_ok(lab_measure(&o, &s, &e), &e);
    assert_true(s.disk_bytes_s > 0 && s.kernel_bytes_s > 0);
    assert_true(s.copy_bytes_s == 0);
    assert_string_equal(s.device_fault, "");
    assert_true(s.n_devices == 1 && s.devices[0].kernel_bytes_s == s.kernel_bytes_s);
    struct moeflux_needs n;
    check_ok(moeflux_get_needs(ODD, &n, &e), &e);
    assert_true(s.disk_bytes > 0 && s.disk_bytes <= n.expert_bytes);
}

static void copies_are_measured_where_the_device_has_its_own_memory(void **state)
{
    (void)state;
    if (!device_is_vulkan()) {
        puts("SKIP CASE: a host has no memory of its own");
        skip();
    }
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = ODD, .device = device_name()};
    struct lab_speeds s;
    check_ok(test_hooks_measure(&o, &(struct test_hooks){.staged = true}, &s, &e), &e);
    assert_true(s.copy_bytes_s > 0 && s.cpu_bytes_s > 0);
    assert_string_equal(s.device_fault, "");
}

static void each_of_several_devices_has_speeds(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = ODD, .device = "cpu,reference"};
    struct lab_speeds s;
    check_ok(lab_measure(&o, &s, &e), &e);
    assert_int_equal(s.n_devices, 2);
    assert_true(s.devices[0].kernel_bytes_s > s.devices[1].kernel_bytes_s && s.devices[1].kernel_bytes_s > 0);
    assert_true(s.kernel_bytes_s < s.devices[0].kernel_bytes_s);
}

static void a_missing_device_leaves_the_disk_measured(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_options o = {.dir = OTHER_FAMILY, .device = "no such device"};
    struct lab_speeds s;
    check_ok(lab_measure(&o, &s, &e), &e);
    assert_true(s.disk_bytes_s > 0);
    assert_true(s.kernel_bytes_s == 0);
    assert_non_null(strstr(s.device_fault, "no such device"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_the_sum_or_the_longer_of_its_parts),
        cmocka_unit_test(hits_in_host_memory_are_copied_and_not_read),
        cmocka_unit_test(a_resident_model_waits_once_for_a_token),
        cmocka_unit_test(experts_on_the_cpu_wait_for_memory_and_for_the_device),
        cmocka_unit_test(so_does_one_whose_host_holds_all_experts),
        cmocka_unit_test(what_is_not_known_counts_as_nothing),
        cmocka_unit_test(the_placement_follows_bus_and_memory),
        cmocka_unit_test(a_share_uses_bus_and_memory_at_once),
        cmocka_unit_test(equal_devices_with_room_share_evenly),
        cmocka_unit_test(a_faster_device_gets_what_it_has_room_for),
        cmocka_unit_test(a_small_device_gives_layers_away),
        cmocka_unit_test(nothing_is_said_of_devices_without_a_speed),
        cmocka_unit_test(the_placement_of_several_devices_follows_each),
        cmocka_unit_test(each_of_several_devices_has_speeds),
        cmocka_unit_test(disk_and_device_have_speeds),
        cmocka_unit_test(copies_are_measured_where_the_device_has_its_own_memory),
        cmocka_unit_test(a_missing_device_leaves_the_disk_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
