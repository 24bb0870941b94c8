/* The plan (--plan, inspect) says what opening the model then does.
 *
 * suites: check vulkan fast */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/plan/load_plan.h"
#include "engine/test_hooks.h"
#include "model/model_dir.h"
#include "moeflux.h"
#include "exec/exec.h"

static const char ODD[] = "tests/models/qwen-odd/mlx", OTHER_FAMILY[] = "tests/models/deepseek-odd/mlx";

static struct moeflux_options odd(uint64_t memory)
{
    return (struct moeflux_options){.dir = ODD, .memory_bytes = memory, .device = "reference", .chunk = 4};
}

static void open_does_what_the_plan_says(void **state)
{
    (void)state;
    /* --memory, --gpu-memory, and whether host memory is a tier of its own. */
    static const struct {
        const char *dir;
        uint64_t memory, gpu_memory;
        bool staged;
    } cases[] = {
        {ODD, 0, 0, false},
        {ODD, 24576 * 4, 0, false},
        {ODD, 24576 * 30 + 5, 0, false},
        {ODD, 0, 15900000 + (64 << 20), true}, /* the driver of a device apart gets 64 MiB */
        {OTHER_FAMILY, 0, 0, false},
        {OTHER_FAMILY, 28672 * 4, 0, false},
        {OTHER_FAMILY, 28672 * 30 + 5, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        struct moeflux_options o = odd(cases[i].memory);
        o.dir = cases[i].dir;
        o.gpu_memory_bytes = cases[i].gpu_memory;
        const struct test_hooks hooks = {.staged = cases[i].staged, .shelf = device_shelf()};
        o.device = hooks.staged ? getenv("MOEFLUX_DEVICE") : "reference";
        struct moeflux_plan plan;
        struct moeflux_model *m;
        struct moeflux_stats s;
        check_ok(test_hooks_make_plan(&o, &hooks, &plan, &e), &e);
        /* The host has no memory apart. */
        if (hooks.staged && plan.is_unified)
            continue;
        check_ok(test_hooks_open(&m, &o, &hooks, &e), &e);
        moeflux_model_get_stats(m, &s);
        assert_int_equal(plan.n_slots, s.n_slots);
        assert_int_equal(plan.slot_bytes, s.slot_bytes);
        assert_int_equal(plan.n_host_slots > 0, cases[i].staged);
        assert_true(plan.n_host_slots <= s.n_host_slots);
        assert_int_equal(plan.experts_resident, moeflux_model_get_info(m).experts_resident);
        assert_int_equal(strncmp(plan.expert_io, moeflux_model_get_info(m).expert_io, 8), 0);
        moeflux_model_close(m);
    }
}

static void the_plan_refuses_what_open_refuses(void **state)
{
    (void)state;
    static const struct {
        struct moeflux_options o;
        int code;
    } cases[] = {
        {{.dir = ODD, .memory_bytes = 1, .device = "reference"}, ERR_NO_FIT},
        {{.dir = ODD, .gpu_memory_bytes = 4096, .device = "reference"}, ERR_NO_FIT},
        {{.dir = ODD, .chunk = 5000, .device = "reference"}, ERR_USAGE},
        {{.dir = ODD, .expert_io = (enum moeflux_expert_io)5, .device = "reference"}, ERR_USAGE},
        {{.dir = ODD, .device = "no such device"}, ERR_USAGE},
        {{.dir = OTHER_FAMILY, .memory_bytes = 1, .device = "reference"}, ERR_NO_FIT},
        {{.dir = "tests/models/none", .device = "reference"}, ERR_IO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err from_plan = {0}, from_open = {0};
        struct moeflux_plan plan;
        struct moeflux_model *m;
        assert_int_equal(moeflux_make_plan(&cases[i].o, &plan, &from_plan), cases[i].code);
        assert_int_equal(moeflux_model_open(&m, &cases[i].o, &from_open), cases[i].code);
        assert_string_equal(from_plan.text, from_open.text);
    }
}

static void room_is_kept_for_the_context_that_is_asked_for(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_options o = odd(0);
    struct moeflux_plan small, large;
    o.context = 256;
    check_ok(moeflux_make_plan(&o, &small, &e), &e);
    o.context = 1000;
    check_ok(moeflux_make_plan(&o, &large, &e), &e);
    struct moeflux_needs n;
    check_ok(moeflux_get_needs(ODD, &n, &e), &e);
    assert_int_equal(small.context, 256);
    assert_int_equal(large.state_bytes - small.state_bytes, (1024 - 256) * n.kv_bytes_per_pos);
}

static void a_session_has_as_many_checkpoints_as_the_plan(void **state)
{
    (void)state;
    enum { MANY = 40, DEFAULT = 4 };
    static const struct {
        uint64_t memory;
        uint32_t n;
    } cases[] = {{24576 * 4, 1}, {24576 * 72 + 3 * 884736, 3}, {0, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        struct moeflux_options o = odd(cases[i].memory);
        struct moeflux_plan plan;
        struct moeflux_model *m;
        struct moeflux_session *s;
        uint32_t n = cases[i].n, n_default = n < DEFAULT ? n : DEFAULT, pos[MANY];
        check_ok(moeflux_make_plan(&o, &plan, &e), &e);
        assert_int_equal(plan.n_checkpoints, n);
        check_ok(moeflux_model_open(&m, &o, &e), &e);
        check_ok(moeflux_session_new(&s, m, MANY, &e), &e);
        assert_int_equal(plan.checkpoint_bytes, moeflux_session_checkpoint_bytes(s));
        assert_int_equal(moeflux_session_checkpoint_cap(s), n_default);
        check_ok(moeflux_session_set_checkpoint_cap(s, UINT32_MAX, &e), &e);
        assert_int_equal(moeflux_session_checkpoint_cap(s), n);
        for (int32_t id = 0; id < MANY; id++) {
            check_ok(moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){0}, &e), &e);
            check_ok(moeflux_session_checkpoint(s, &e), &e);
        }
        assert_int_equal(moeflux_session_list_checkpoints(s, pos, MANY), n);
        check_ok(moeflux_session_set_checkpoint_cap(s, 1, &e), &e);
        assert_int_equal(moeflux_session_checkpoint_cap(s), 1);
        moeflux_session_free(s);
        moeflux_model_close(m);
    }
}

static void checkpoints_without_recurrent_layers_take_nothing(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct moeflux_options o = odd(28672 * 4);
    struct moeflux_plan plan;
    o.dir = OTHER_FAMILY;
    check_ok(moeflux_make_plan(&o, &plan, &e), &e);
    assert_int_equal(plan.checkpoint_bytes, 0);
    assert_int_equal(plan.n_checkpoints, 32);
    assert_int_equal(plan.n_slots, 4);
}

/* What else runs on a device shall not change a digit of the results. */
static void the_chunk_follows_total_memory_and_not_what_is_free(void **state)
{
    (void)state;
    const uint64_t gib = (uint64_t)1 << 30;
    const struct {
        uint64_t total;
        bool is_software, is_native;
        uint32_t chunk;
    } devices[] = {{80 * gib, false, false, 2048},
                   {20 * gib, false, false, 2048},
                   {16 * gib, false, false, 512},
                   {64 * gib, true, false, 128},
                   {64 * gib, true, true, 512}};
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, ODD, &e), &e);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        for (uint64_t part = 1; part <= 16; part *= 4) {
            const struct exec_caps caps = {.name = "a device",
                                           .is_software = devices[i].is_software,
                                           .is_native = devices[i].is_native,
                                           .is_host = devices[i].is_native,
                                           .is_unified = devices[i].is_software,
                                           .subgroup_size = 32,
                                           .max_shared_bytes = 32768,
                                           .max_workgroup = 1024,
                                           .max_alloc_bytes = UINT64_MAX,
                                           .total_bytes = devices[i].total,
                                           .free_bytes = devices[i].total / part};
            const struct moeflux_options o = {.dir = ODD};
            struct load_plan p;
            check_ok(load_plan_make(&p, &m, &caps, &o, &e), &e);
            assert_int_equal(p.max_chunk, devices[i].chunk);
        }
    model_dir_close(&m);
}

/* Experts with a slot do not need the page cache, so that an n-gram table may have it. */
static void experts_without_a_slot_are_read_again(void **state)
{
    (void)state;
    struct model_dir m;
    struct moeflux_err e = {0};
    check_ok(model_dir_open(&m, ODD, &e), &e);
    struct load_plan p = {.layers = {0, m.config.n_layers}};
    assert_int_equal(load_plan_reread_bytes(&p, &m), m.expert_bytes);
    p.budget.slot_bytes = p.budget.host_bytes = p.budget.cpu_slot_bytes = m.expert_bytes / 4;
    assert_int_equal(load_plan_reread_bytes(&p, &m), m.expert_bytes - 3 * (m.expert_bytes / 4));
    p.budget.slot_bytes = 2 * m.expert_bytes; /* slots are rounded up to pages */
    assert_int_equal(load_plan_reread_bytes(&p, &m), 0);
    model_dir_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_does_what_the_plan_says),
        cmocka_unit_test(the_chunk_follows_total_memory_and_not_what_is_free),
        cmocka_unit_test(experts_without_a_slot_are_read_again),
        cmocka_unit_test(the_plan_refuses_what_open_refuses),
        cmocka_unit_test(room_is_kept_for_the_context_that_is_asked_for),
        cmocka_unit_test(a_session_has_as_many_checkpoints_as_the_plan),
        cmocka_unit_test(checkpoints_without_recurrent_layers_take_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
