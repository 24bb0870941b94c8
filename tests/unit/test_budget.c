/* The division of memory among weights, states, checkpoints and experts.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "engine/plan/budget.h"
#include "engine/plan/host_memory.h"
#include "experts/store.h"
#include "model/model_dir.h"
#include "exec/exec.h"
#include "tmp_tree.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
/* 4 layers of 16 experts of a MiB each, 2 for a token; 100 MiB of dense weights. */
enum { N_LAYERS = 4, N_EXPERTS = 16, TOP_K = 2, DENSE_MIB = 100, SCRATCH_MIB = 20 };
#define FIXED (DENSE_MIB * MIB + SCRATCH_MIB * MIB)
#define ALL   (N_LAYERS * N_EXPERTS * MIB)

static struct model_dir make_model(uint64_t expert_bytes)
{
    static struct config_layer layers[N_LAYERS];
    for (uint32_t i = 0; i < N_LAYERS; i++)
        layers[i].n_blocks = 1;
    return (struct model_dir){.config = {.layers = layers,
                                         .parts = {{.kind = PART_EXPERTS}},
                                         .n_parts = 1,
                                         .n_layers = N_LAYERS,
                                         .n_experts = N_EXPERTS,
                                         .top_k = TOP_K},
                              .dense_bytes = DENSE_MIB * MIB,
                              .max_expert_bytes = expert_bytes};
}

static struct exec_caps unified(uint64_t free_bytes)
{
    return (struct exec_caps){.is_unified = true, .free_bytes = free_bytes};
}

static struct exec_caps discrete(uint64_t free_bytes)
{
    return (struct exec_caps){.free_bytes = free_bytes};
}

/* --memory, --gpu-memory (0: not said) and the free host memory. */
static struct budget_request request(uint64_t memory, uint64_t gpu_memory, uint64_t host_free)
{
    const struct model_dir m = make_model(MIB);
    return (struct budget_request){.gpu = {.layers = {0, m.config.n_layers}},
                                   .weights_bytes = m.dense_bytes,
                                   .memory_bytes = memory,
                                   .gpu_memory_bytes = gpu_memory,
                                   .scratch_bytes = SCRATCH_MIB * MIB,
                                   .host_free_bytes = host_free};
}

static struct budget share(struct exec_caps caps, struct budget_request w)
{
    struct model_dir m = make_model(MIB);
    struct budget b;
    struct moeflux_err e = {0};
    check_ok(budget_for_experts(&m, &caps, &w, &b, &e), &e);
    return b;
}

static void check_refused(struct exec_caps caps, struct budget_request w, const char *text)
{
    struct model_dir m = make_model(MIB);
    struct budget b;
    struct moeflux_err e = {0};
    assert_int_equal(budget_for_experts(&m, &caps, &w, &b, &e), ERR_NO_FIT);
    if (!strstr(e.text, text))
        fail_msg("\"%s\" lacks \"%s\"", e.text, text);
}

/* --- device memory is host memory --- */

static void unified_memory_holds_everything_where_it_fits(void **state)
{
    (void)state;
    struct budget b = share(unified(8 * GIB), request(0, 0, 4 * GIB));
    assert_int_equal(b.slot_bytes, ALL);
    assert_int_equal(b.host_bytes, 0);
    assert_int_equal(b.map_bytes, 4 * GIB - FIXED - ALL);
}

static void unified_memory_takes_nine_tenths_of_the_smaller_free(void **state)
{
    (void)state;
    /* 9/10 of 160 MiB, less weights and states. */
    assert_int_equal(share(unified(160 * MIB), request(0, 0, GIB)).slot_bytes, 160 * MIB / 10 * 9 - FIXED);
    assert_int_equal(share(unified(GIB), request(0, 0, 160 * MIB)).slot_bytes, 160 * MIB / 10 * 9 - FIXED);
}

static void memory_bounds_the_slots_of_unified_memory(void **state)
{
    (void)state;
    assert_int_equal(share(unified(GIB), request(10 * MIB, 0, GIB)).slot_bytes, 10 * MIB);
    assert_int_equal(share(unified(GIB), request(TOP_K * MIB, 0, GIB)).slot_bytes, TOP_K * MIB);
    assert_int_equal(share(unified(GIB), request(GIB, 0, GIB)).slot_bytes, ALL);
    check_refused(unified(GIB), request(TOP_K * MIB - 1, 0, GIB),
                  "`memory_bytes` is 2.00 MiB, the experts of one token and layer need 2.00 MiB");
}

static void gpu_memory_bounds_weights_states_and_slots(void **state)
{
    (void)state;
    struct exec_caps both[] = {unified(GIB), discrete(GIB)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(share(both[i], request(0, FIXED + 7 * MIB, GIB)).slot_bytes, 7 * MIB);
        assert_int_equal(share(both[i], request(0, FIXED + TOP_K * MIB, GIB)).slot_bytes, TOP_K * MIB);
        check_refused(both[i], request(0, FIXED + TOP_K * MIB - 1, GIB),
                      "needs at least 122.0 MiB (weights 100.0, states 20.0, experts of one token 2.0), "
                      "`gpu_memory_bytes` is 122.0 MiB");
        check_refused(both[i], request(0, MIB, GIB), "`gpu_memory_bytes` is 1.0 MiB");
    }
}

static void more_than_is_free_is_not_given(void **state)
{
    (void)state;
    assert_int_equal(share(discrete(FIXED + 9 * MIB), request(0, GIB, GIB)).slot_bytes, 9 * MIB);
    assert_int_equal(share(unified(GIB), request(0, GIB, FIXED + 9 * MIB)).slot_bytes, 9 * MIB);
    check_refused(discrete(FIXED), request(0, GIB, GIB), "free are 120.0 MiB");
    check_refused(unified(GIB), request(0, 0, 100 * MIB), "free are 90.0 MiB");
}

static void the_memory_of_a_software_device_is_the_hosts(void **state)
{
    (void)state;
    struct exec_caps caps = unified(160 * MIB);
    caps.is_software = true;
    assert_int_equal(share(caps, request(0, 0, GIB)).slot_bytes, ALL);
    assert_int_equal(share(caps, request(0, 0, 160 * MIB)).slot_bytes, 160 * MIB / 10 * 9 - FIXED);
}

/* --- a device of its own --- */

static void a_device_that_holds_all_needs_no_host_tier(void **state)
{
    (void)state;
    struct budget b = share(discrete(GIB), request(0, FIXED + ALL, GIB));
    assert_int_equal(b.slot_bytes, ALL);
    assert_int_equal(b.host_bytes, 0);
    assert_int_equal(b.map_bytes, GIB);
    assert_int_equal(share(discrete(GIB), request(0, 0, GIB)).host_bytes, 0);
    assert_int_equal(share(discrete(GIB), request(4 * MIB, 0, GIB)).host_bytes, 0);
}

static void a_host_with_room_for_all_experts_holds_all(void **state)
{
    (void)state;
    struct budget b = share(discrete(GIB), request(0, FIXED + 20 * MIB, GIB));
    assert_int_equal(b.slot_bytes, 20 * MIB);
    assert_int_equal(b.host_bytes, ALL);
    assert_int_equal(b.map_bytes, GIB - ALL);
    assert_int_equal(share(discrete(GIB), request(ALL, FIXED + 20 * MIB, GIB)).host_bytes, ALL);
}

static void the_host_tier_holds_what_the_device_does_not(void **state)
{
    (void)state;
    struct budget b = share(discrete(GIB), request(ALL - MIB, FIXED + 20 * MIB, GIB));
    assert_int_equal(b.slot_bytes, 20 * MIB);
    assert_int_equal(b.host_bytes, ALL - 20 * MIB);
    assert_int_equal(b.map_bytes, GIB - b.host_bytes);
}

static void the_host_tier_has_room_for_the_reads_of_a_layer(void **state)
{
    (void)state;
    assert_int_equal(share(discrete(GIB), request(ALL - MIB, FIXED + ALL - MIB, GIB)).host_bytes,
                     TOP_K * MIB);
}

static void the_host_tier_takes_three_quarters_at_most(void **state)
{
    (void)state;
    assert_int_equal(share(discrete(GIB), request(0, FIXED + 20 * MIB, 40 * MIB)).host_bytes, 30 * MIB);
    check_refused(discrete(GIB), request(0, FIXED + 20 * MIB, 2 * MIB), "free host memory is 1.50 MiB");
}

static void memory_bounds_the_host_tier(void **state)
{
    (void)state;
    struct budget b = share(discrete(GIB), request(5 * MIB, FIXED + 20 * MIB, GIB));
    assert_int_equal(b.slot_bytes, 20 * MIB);
    assert_int_equal(b.host_bytes, 5 * MIB);
    assert_int_equal(share(discrete(GIB), request(5 * MIB, FIXED + 20 * MIB, 3 * MIB)).host_bytes, 3 * MIB);
    check_refused(discrete(GIB), request(MIB, FIXED + 20 * MIB, GIB), "`memory_bytes` is 1.00 MiB");
}

/* --- checkpoints --- */

static struct budget_request with_checkpoints(uint64_t each, struct budget_request w)
{
    w.checkpoint_bytes = each;
    return w;
}

static void checkpoints_get_what_resident_experts_leave(void **state)
{
    (void)state;
    static const struct {
        uint64_t left, each;
        uint32_t n;
    } cases[] = {
        {7 * MIB, 2 * MIB, 3}, {6 * MIB, 2 * MIB, 3}, {6 * MIB - 1, 2 * MIB, 2}, {2 * MIB, 2 * MIB, 1},
        {MIB, 2 * MIB, 1},     {0, 2 * MIB, 1},       {64 * MIB, 2 * MIB, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct budget b = share(
            unified(GIB), with_checkpoints(cases[i].each, request(0, FIXED + ALL + cases[i].left, GIB)));
        assert_int_equal(b.slot_bytes, ALL);
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.map_bytes, GIB - FIXED - ALL - cases[i].n * cases[i].each);
        /* Only host memory counts for them on a discrete device. --memory has to hold a token's experts. */
        if (cases[i].left < TOP_K * MIB)
            continue;
        b = share(discrete(GIB), with_checkpoints(cases[i].each, request(cases[i].left, FIXED + ALL, GIB)));
        assert_int_equal(b.slot_bytes, ALL);
        assert_int_equal(b.host_bytes, 0);
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.map_bytes, GIB - cases[i].n * cases[i].each);
    }
}

static void checkpoints_get_an_eighth_of_what_streamed_experts_share(void **state)
{
    (void)state;
    /* 32 MiB in addition to the experts of a token. */
    static const struct {
        uint64_t each;
        uint32_t n;
        uint64_t experts;
    } cases[] = {
        {MIB, 4, 30 * MIB},     {2 * MIB, 2, 30 * MIB}, {3 * MIB, 1, 31 * MIB},
        {4 * MIB, 1, 30 * MIB}, {5 * MIB, 1, 34 * MIB}, {MIB / 64, 32, 34 * MIB - MIB / 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t room = (TOP_K + 32) * MIB;
        struct budget b = share(unified(GIB), with_checkpoints(cases[i].each, request(room, 0, GIB)));
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.slot_bytes, cases[i].experts);
        b = share(unified(GIB), with_checkpoints(cases[i].each, request(0, FIXED + room, GIB)));
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.slot_bytes, cases[i].experts);
        b = share(discrete(GIB), with_checkpoints(cases[i].each, request(room, FIXED + 20 * MIB, GIB)));
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.slot_bytes, 20 * MIB);
        assert_int_equal(b.host_bytes, cases[i].experts);
    }
}

static void checkpoints_are_bounded_by_bytes_and_number(void **state)
{
    (void)state;
    static const struct {
        uint64_t each;
        uint32_t n;
    } cases[] = {{0, 32},        {1, 32},        {32 * MIB, 32}, {33 * MIB, 31},
                 {128 * MIB, 8}, {200 * MIB, 6}, {4 * GIB, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct budget b =
            share(unified(100 * GIB), with_checkpoints(cases[i].each, request(0, 0, 100 * GIB)));
        assert_int_equal(b.n_checkpoints, cases[i].n);
        assert_int_equal(b.slot_bytes, ALL);
    }
}

static void no_model_is_refused_for_its_checkpoints(void **state)
{
    (void)state;
    static const uint64_t each[] = {MIB, GIB, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        struct budget b = share(unified(GIB), with_checkpoints(each[i], request(TOP_K * MIB, 0, GIB)));
        assert_int_equal(b.slot_bytes, TOP_K * MIB);
        assert_int_equal(b.n_checkpoints, 1);
        b = share(unified(GIB), with_checkpoints(each[i], request(0, FIXED + TOP_K * MIB, GIB)));
        assert_int_equal(b.slot_bytes, TOP_K * MIB);
        b = share(discrete(GIB), with_checkpoints(each[i], request(TOP_K * MIB, FIXED + TOP_K * MIB, GIB)));
        assert_int_equal(b.host_bytes, TOP_K * MIB);
        assert_int_equal(b.n_checkpoints, 1);
    }
}

/* --- sizes --- */

static void nothing_overflows_at_the_ends_of_the_range(void **state)
{
    (void)state;
    struct budget b = share(unified(UINT64_MAX), request(0, 0, UINT64_MAX));
    assert_int_equal(b.slot_bytes, ALL);
    assert_int_equal(share(discrete(UINT64_MAX), request(UINT64_MAX, UINT64_MAX, UINT64_MAX)).slot_bytes,
                     ALL);
    struct model_dir m = make_model((uint64_t)1 << 56);
    struct exec_caps caps = discrete(UINT64_MAX);
    struct budget_request w = request(0, 0, UINT64_MAX);
    struct moeflux_err e = {0};
    check_ok(budget_for_experts(&m, &caps, &w, &b, &e), &e);
    assert_int_equal(b.slot_bytes, (uint64_t)N_LAYERS * N_EXPERTS << 56);
    check_refused(discrete(0), request(0, 0, 0), "free are 0.0 MiB");
    w = request(0, 0, GIB);
    w.scratch_bytes = UINT64_MAX - 1;
    assert_int_equal(budget_for_experts(&m, &caps, &w, &b, &e), ERR_NO_FIT);
}

/* --- what is free --- */

static void write_file(const char *root, const char *path, const char *text)
{
    char full[1024], *slash;
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void available_memory_counts_without_cgroups(void **state)
{
    const char *root = *state;
    assert_true(host_memory_free(root) == UINT64_MAX);
    write_file(root, "proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2048 kB\n");
    assert_int_equal(host_memory_free(root), 2 * MIB);
    write_file(root, "proc/self/cgroup", "0::/a\n");
    assert_int_equal(host_memory_free(root), 2 * MIB);
}

static void a_parents_limit_counts_and_page_cache_is_free(void **state)
{
    const char *root = *state;
    write_file(root, "proc/meminfo", "MemAvailable: 1048576 kB\n");
    write_file(root, "proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "1000\n");
    assert_int_equal(host_memory_free(root), GIB);
    write_file(root, "sys/fs/cgroup/a/memory.max", "500000\n");
    write_file(root, "sys/fs/cgroup/a/memory.current", "450000\n");
    assert_int_equal(host_memory_free(root), 50000);
    write_file(root, "sys/fs/cgroup/a/memory.stat",
               "anon 100000\ninactive_file 200000\nactive_file 100000\nactive_filex 1\n");
    assert_int_equal(host_memory_free(root), 350000);
    write_file(root, "sys/fs/cgroup/a/memory.current", "900000\n");
    assert_int_equal(host_memory_free(root), 0);
}

static void the_first_version_of_cgroups_counts_too(void **state)
{
    const char *root = *state;
    write_file(root, "proc/meminfo", "MemAvailable: 1048576 kB\n");
    write_file(root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/c/d\n0::/\n");
    write_file(root, "sys/fs/cgroup/memory/c/d/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(root, "sys/fs/cgroup/memory/c/d/memory.usage_in_bytes", "1000\n");
    assert_int_equal(host_memory_free(root), GIB);
    write_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
    write_file(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "50000\n");
    write_file(root, "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 10000\n");
    assert_int_equal(host_memory_free(root), 30000);
}

static void this_machine_has_some_memory(void **state)
{
    (void)state;
    uint64_t n = host_memory_free("");
    assert_true(n > 0 && n < UINT64_MAX);
}

static int make_root(void **state)
{
    *state = tmp_tree_new();
    return 0;
}

static int remove_root(void **state)
{
    tmp_tree_remove(*state);
    return 0;
}

#define with_root(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

/* --- experts on the CPU, the rest on the device --- */

static struct budget_request split(uint32_t n_cpu_layers, uint64_t memory, uint64_t gpu_memory,
                                   uint64_t host_free)
{
    struct budget_request w = request(memory, gpu_memory, host_free);
    w.gpu.layers.first = w.cpu.layers.end = n_cpu_layers;
    w.cpu_scratch_bytes = MIB;
    return w;
}

static void experts_of_the_cpu_are_host_memory(void **state)
{
    (void)state;
    /* Three of four layers; the card has room for all. */
    struct budget b = share(discrete(GIB), split(3, 0, 0, GIB));
    assert_int_equal(b.slot_bytes, ALL / 4);
    assert_int_equal(b.cpu_slot_bytes, ALL / 4 * 3);
    assert_int_equal(b.host_bytes, 0);
    b = share(unified(GIB), split(3, 0, 0, GIB));
    assert_int_equal(b.slot_bytes, ALL / 4);
    assert_int_equal(b.cpu_slot_bytes, ALL / 4 * 3);
    assert_int_equal(b.map_bytes, GIB - FIXED - ALL - MIB);
    /* All layers: the card needs no room for experts. */
    b = share(discrete(FIXED * 10 / 9 + MIB), split(4, 0, 0, GIB));
    assert_int_equal(b.slot_bytes + b.host_bytes, 0);
    assert_int_equal(b.cpu_slot_bytes, ALL);
}

static void host_memory_is_shared_out_by_what_each_side_lacks(void **state)
{
    (void)state;
    /* The device lacks 32 - 16 experts, the CPU 32: 1 to 2 of 24 MiB, of which the activations take one. */
    struct budget b = share(discrete(GIB), split(2, 25 * MIB, FIXED + 16 * MIB, GIB));
    assert_int_equal(b.slot_bytes, 16 * MIB);
    assert_int_equal(b.host_bytes, 8 * MIB);
    assert_int_equal(b.cpu_slot_bytes, 16 * MIB);
    b = share(unified(GIB), split(1, 24 * MIB, 0, GIB));
    assert_int_equal(b.slot_bytes, 18 * MIB);
    assert_int_equal(b.cpu_slot_bytes, 6 * MIB);
    /* Neither gets less than a token's experts. */
    b = share(unified(GIB), split(1, 2 * TOP_K * MIB, 0, GIB));
    assert_int_equal(b.slot_bytes, TOP_K * MIB);
    assert_int_equal(b.cpu_slot_bytes, TOP_K * MIB);
    check_refused(unified(GIB), split(1, 2 * TOP_K * MIB - 1, 0, GIB), "`memory_bytes` is 4.00 MiB");
    check_refused(discrete(GIB), split(4, TOP_K * MIB, 0, GIB),
                  "the host's activations need 1.00 MiB and the experts of one token and layer 2.00 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unified_memory_holds_everything_where_it_fits),
        cmocka_unit_test(unified_memory_takes_nine_tenths_of_the_smaller_free),
        cmocka_unit_test(memory_bounds_the_slots_of_unified_memory),
        cmocka_unit_test(gpu_memory_bounds_weights_states_and_slots),
        cmocka_unit_test(more_than_is_free_is_not_given),
        cmocka_unit_test(the_memory_of_a_software_device_is_the_hosts),
        cmocka_unit_test(a_device_that_holds_all_needs_no_host_tier),
        cmocka_unit_test(a_host_with_room_for_all_experts_holds_all),
        cmocka_unit_test(the_host_tier_holds_what_the_device_does_not),
        cmocka_unit_test(the_host_tier_has_room_for_the_reads_of_a_layer),
        cmocka_unit_test(the_host_tier_takes_three_quarters_at_most),
        cmocka_unit_test(memory_bounds_the_host_tier),
        cmocka_unit_test(checkpoints_get_what_resident_experts_leave),
        cmocka_unit_test(checkpoints_get_an_eighth_of_what_streamed_experts_share),
        cmocka_unit_test(checkpoints_are_bounded_by_bytes_and_number),
        cmocka_unit_test(no_model_is_refused_for_its_checkpoints),
        cmocka_unit_test(nothing_overflows_at_the_ends_of_the_range),
        with_root(available_memory_counts_without_cgroups),
        with_root(a_parents_limit_counts_and_page_cache_is_free),
        with_root(the_first_version_of_cgroups_counts_too),
        cmocka_unit_test(this_machine_has_some_memory),
        cmocka_unit_test(experts_of_the_cpu_are_host_memory),
        cmocka_unit_test(host_memory_is_shared_out_by_what_each_side_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
