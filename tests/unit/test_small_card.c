/* A device with little memory, and a host that keeps the experts: what moves, what stays where
 * it is, and that the logits are those of a device that holds all. For a Vulkan device (MOEFLUX_DEVICE);
 * hosts have one memory.
 *
 * suites: nightly vulkan */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device.h"
#include "engine/test_hooks.h"
#include "exec/exec.h"
#include "moeflux.h"

static const char TINY[] = "tests/models/tiny";
/* Prompts in chunks that choose nearly every expert. */
enum { N_PROMPT = 64, CHUNK = 32, N_DECODE = 4, N_ROWS = N_DECODE + 1, MAX_CONTEXT = 400 };

struct card {
    struct moeflux_options o;
    struct moeflux_needs needs;
    uint64_t n_experts, slot_bytes;
};

static struct moeflux_plan plan_of(const struct card *c)
{
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    check_ok(
        test_hooks_make_plan(&c->o, &(struct test_hooks){.staged = true, .shelf = device_shelf()}, &p, &e),
        &e);
    return p;
}

/* A quarter of the experts on the device, `part` of them on the host. */
static struct card card_of(double part, enum moeflux_expert_io io)
{
    struct card c = {.o = {.dir = TINY, .device = device_name(), .expert_io = io, .chunk = CHUNK}};
    struct moeflux_err e = {0};
    check_ok(moeflux_get_needs(TINY, &c.needs, &e), &e);
    const struct moeflux_plan p = plan_of(&c);
    c.n_experts = p.n_experts;
    c.slot_bytes = p.slot_bytes;
    c.o.gpu_memory_bytes = p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes +
                           p.n_experts / 4 * p.slot_bytes;
    c.o.memory_bytes = (uint64_t)(part * (double)p.n_experts) * p.slot_bytes;
    return c;
}

/* The host's memory grows by so many experts at a time; 0: all have theirs at once. */
static struct moeflux_model *open_card(const struct card *c, bool staged, uint64_t growth)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    const struct test_hooks h = {
        .staged = staged, .shelf = device_shelf(), .host_chunk_bytes = growth * c->slot_bytes};
    check_ok(test_hooks_open(&m, &c->o, &h, &e), &e);
    return m;
}

static int32_t id_at(uint32_t i)
{
    return (int32_t)((i * 37 + i * i * 5 + 11) % 700);
}

static struct moeflux_session *open_session(struct moeflux_model *m)
{
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_session_new(&s, m, MAX_CONTEXT, &e), &e);
    return s;
}

static void eval(struct moeflux_session *s, uint32_t from, uint32_t n, float *logits)
{
    int32_t ids[N_PROMPT];
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = id_at(from + i);
    check_ok(moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){.logits = logits}, &e), &e);
}

/* The logits after a prompt and after each token more: [N_ROWS][vocab]. To be freed. */
static float *evaluate(struct moeflux_model *m)
{
    uint32_t vocab = moeflux_model_get_info(m).vocab_size;
    float *rows = calloc((size_t)N_ROWS * vocab, sizeof *rows);
    struct moeflux_session *s = open_session(m);
    assert_non_null(rows);
    eval(s, 0, N_PROMPT, rows);
    for (uint32_t i = 0; i < N_DECODE; i++)
        eval(s, N_PROMPT + i, 1, rows + (size_t)(i + 1) * vocab);
    moeflux_session_free(s);
    return rows;
}

static float *evaluate_resident(void)
{
    const struct card c = {.o = {.dir = TINY, .device = device_name(), .chunk = CHUNK}, .slot_bytes = 1};
    struct moeflux_model *m = open_card(&c, false, 0);
    assert_true(moeflux_model_get_info(m).experts_resident);
    float *rows = evaluate(m);
    moeflux_model_close(m);
    return rows;
}

static void check_rows(const struct moeflux_model *m, const float *got, const float *want)
{
    assert_memory_equal(got, want, (size_t)N_ROWS * moeflux_model_get_info(m).vocab_size * sizeof *got);
}

/* The second evaluation finds in memory what the first one brought. */
static void logits_are_those_of_a_device_that_holds_all(void **state)
{
    (void)state;
    static const double parts[] = {0.3, 1};
    static const enum moeflux_expert_io io[] = {MOEFLUX_EXPERT_IO_MMAP, MOEFLUX_EXPERT_IO_PREAD};
    float *want = evaluate_resident();
    for (int i = 0; i < 2; i++) {
        const struct card c = card_of(parts[i], io[i]);
        struct moeflux_model *m = open_card(&c, true, 5);
        for (int round = 0; round < 2; round++) {
            float *got = evaluate(m);
            check_rows(m, got, want);
            free(got);
        }
        struct moeflux_stats s;
        moeflux_model_get_stats(m, &s);
        assert_true(s.n_promoted > 0 && s.n_hits > 0);
        moeflux_model_close(m);
    }
    free(want);
}

static void the_hosts_memory_grows_to_its_budget_and_no_further(void **state)
{
    (void)state;
    const struct card c = card_of(0.6, MOEFLUX_EXPERT_IO_PREAD);
    struct moeflux_model *m = open_card(&c, true, 5);
    struct moeflux_stats s;
    moeflux_model_get_stats(m, &s);
    uint64_t planned = plan_of(&c).n_host_slots, first = s.n_host_slots;
    assert_true(planned > 0 && planned * c.slot_bytes <= c.o.memory_bytes);
    assert_true(first > 0 && first < planned);
    struct moeflux_session *q = open_session(m);
    /* It grows during the evaluations, so how many there must be depends on the
     * machine; each of them asks. */
    for (uint32_t i = 0; i < MAX_CONTEXT / CHUNK && s.n_host_slots < planned; i++) {
        eval(q, i * CHUNK, CHUNK, NULL);
        moeflux_model_get_stats(m, &s);
        assert_true(s.n_host_slots <= planned);
    }
    assert_true(s.n_host_slots > first);
    moeflux_session_free(q);
    moeflux_model_close(m);
}

static void a_host_with_room_for_all_experts_reads_each_once(void **state)
{
    (void)state;
    struct card c = card_of(1, MOEFLUX_EXPERT_IO_PREAD);
    assert_int_equal(plan_of(&c).n_host_slots, c.n_experts);
    struct moeflux_model *m = open_card(&c, true, 0);
    struct moeflux_stats s;
    free(evaluate(m));
    free(evaluate(m));
    moeflux_model_get_stats(m, &s);
    assert_true(s.n_promoted > 0);
    assert_int_equal(s.n_demoted, 0);
    assert_int_equal(s.n_reads, c.n_experts);
    moeflux_model_close(m);
}

static void a_prompts_experts_leave_those_that_were_there(void **state)
{
    (void)state;
    const struct card c = card_of(1, MOEFLUX_EXPERT_IO_PREAD);
    struct moeflux_model *m = open_card(&c, true, 0);
    struct moeflux_stats s;
    free(evaluate(m));
    struct moeflux_session *q = open_session(m);
    moeflux_model_reset_stats(m);
    eval(q, 0, CHUNK, NULL);
    moeflux_model_get_stats(m, &s);
    /* If only the last use counted, every expert of a chunk would find those before it in its slot. */
    assert_true(s.n_promoted < c.n_experts);
    moeflux_session_free(q);
    moeflux_model_close(m);
}

/* The router's choice stays on the device: nothing is to be brought. */
static void a_token_is_one_submission_once_the_host_has_all(void **state)
{
    (void)state;
    struct card c = card_of(1, MOEFLUX_EXPERT_IO_PREAD);
    /* The host's memory grows after the prompts, so that some of their experts are evicted. */
    struct moeflux_model *m = open_card(&c, true, 1);
    struct moeflux_session *q = open_session(m);
    struct moeflux_stats s = {.n_submits = UINT64_MAX};
    eval(q, 0, CHUNK, NULL);
    eval(q, CHUNK, 1, NULL);
    eval(q, CHUNK + 1, CHUNK, NULL);
    for (uint32_t i = 2 * CHUNK + 1; i < MAX_CONTEXT && s.n_submits > 1; i++) {
        moeflux_model_reset_stats(m);
        eval(q, i, 1, NULL);
        moeflux_model_get_stats(m, &s);
    }
    uint64_t n_moe = c.n_experts / c.needs.n_experts;
    assert_int_equal(s.n_submits, 1);
    assert_int_equal(s.n_hits + s.n_host_hits, n_moe * c.needs.top_k);
    assert_int_equal(s.n_misses + s.n_reads, 0);
    moeflux_session_free(q);
    moeflux_model_close(m);
}

/* The size is one that the program allocates itself, with an odd end. */
static void large_host_memory_is_the_devices_too(void **state)
{
    (void)state;
    enum { BYTES = (40 << 20) + 12 };
    struct exec *x;
    struct exec_buffer host, device;
    struct moeflux_err e = {0};
    check_ok(exec_open(&x, &(struct exec_options){.device = device_name(), .staged = true}, &e), &e);
    check_ok(exec_buffer_new(x, &host, EXEC_HOST, BYTES, &e), &e);
    check_ok(exec_buffer_new(x, &device, EXEC_DEVICE, BYTES, &e), &e);
    uint32_t *words = (uint32_t *)(void *)host.host;
    for (uint32_t i = 0; i < BYTES / 4; i++)
        words[i] = i * 2654435761u;
    for (int back = 0; back < 2; back++) {
        uint64_t ticket;
        exec_move(x, back ? &host : &device, 0, back ? &device : &host, 0, BYTES);
        check_ok(exec_move_submit(x, &ticket, &e), &e);
        check_ok(exec_move_wait(x, ticket, &e), &e);
        if (!back)
            memset(host.host, 0, BYTES);
    }
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < BYTES / 4; i++)
        n_wrong += words[i] != i * 2654435761u;
    assert_int_equal(n_wrong, 0);
    exec_buffer_free(x, &device);
    exec_buffer_free(x, &host);
    exec_close(x);
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(logits_are_those_of_a_device_that_holds_all),
        cmocka_unit_test(the_hosts_memory_grows_to_its_budget_and_no_further),
        cmocka_unit_test(a_host_with_room_for_all_experts_reads_each_once),
        cmocka_unit_test(a_prompts_experts_leave_those_that_were_there),
        cmocka_unit_test(a_token_is_one_submission_once_the_host_has_all),
        cmocka_unit_test(large_host_memory_is_the_devices_too)};
    if (device_is_vulkan())
        return cmocka_run_group_tests(everywhere, NULL, NULL);
    print_message("SKIP no device with memory of its own: MOEFLUX_DEVICE names none\n");
    return 0;
}
