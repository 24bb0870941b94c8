/* Faults that are planted in small kernels (tests/lanes/faults): the interpreter reports each, at every size
 * of a subgroup, and does not report the same kernel once it is mended.
 *
 * suites: check fast asan */
#include <string.h>

#include "check.h"
#include "lib/spirv/run.h"

enum { N = 128, LEAST = 4, MOST = 128, SEEDS = 4 };

struct kernel {
    const uint32_t *words;
    size_t n;
};
#define KERNEL(name) static const uint32_t name##_words[] =
#define WORDS(name)                                                                                          \
    {                                                                                                        \
        name##_words, sizeof name##_words / sizeof *name##_words                                             \
    }
#define PAIR(name)                                                                                           \
    {                                                                                                        \
        WORDS(name), WORDS(name##_mended)                                                                    \
    }
#include "lanes/faults/faults.inc"

/* What a run gives: the fault's text, or numbers. */
struct outcome {
    char fault[400];
    uint32_t y[N];
};

static struct outcome run(const struct kernel *k, uint32_t lanes, uint64_t seed)
{
    struct moeflux_err e = {0};
    struct spirv_program p = {.name = "fault", .lanes = lanes};
    struct spirv_memory memory = {0};
    struct outcome out = {0};
    uint32_t x[N];
    uint64_t args[2] = {(uint64_t)(uintptr_t)x, (uint64_t)(uintptr_t)out.y}, n_operations = 0;
    for (uint32_t i = 0; i < N; i++)
        x[i] = i + 1;
    check_ok(spirv_compile(&p, k->words, k->n, NULL, 0, &e), &e);
    check_ok(spirv_memory_add(&memory, args[0], sizeof x, &e), &e);
    check_ok(spirv_memory_add(&memory, args[1], sizeof out.y, &e), &e);
    check_ok(
        spirv_dispatch(&p, &memory, args, sizeof args, (const uint32_t[]){1, 1, 1}, seed, &n_operations, &e),
        &e);
    assert_true(n_operations > 0);
    memcpy(out.fault, memory.fault, sizeof out.fault);
    spirv_memory_close(&memory);
    spirv_program_free(&p);
    return out;
}

static void check_mended(const struct kernel *k)
{
    const struct outcome first = run(k, LEAST, 1);
    for (uint32_t lanes = LEAST; lanes <= MOST; lanes *= 2)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const struct outcome now = run(k, lanes, seed);
            assert_string_equal(now.fault, "");
            assert_memory_equal(now.y, first.y, sizeof now.y);
        }
}

/* Kernel 0 has the fault, kernel 1 does not. */
static void check_reported(const struct kernel pair[2], const char *text)
{
    for (uint32_t lanes = LEAST; lanes <= MOST; lanes *= 2)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const struct outcome now = run(&pair[0], lanes, seed);
            if (!strstr(now.fault, text))
                fail_msg("%u lanes, seed %u: expected \"%s\", found \"%s\"", lanes, (unsigned)seed, text,
                         now.fault);
        }
    check_mended(&pair[1]);
}

#define REPORTED(claim, name, text)                                                                          \
    static void claim(void **state)                                                                          \
    {                                                                                                        \
        (void)state;                                                                                         \
        check_reported((const struct kernel[2])PAIR(name), text);                                            \
    }
REPORTED(a_missing_barrier_is_a_race, barrier, "race: one lane")
REPORTED(a_read_past_the_end_of_a_buffer_is_reported, past, "read of 4 bytes outside of every buffer")
REPORTED(a_read_past_the_end_of_a_shared_array_is_reported, shared_past, "element 128 of an array of 128")
REPORTED(a_sum_under_divergence_is_reported, sum, "lanes are at an instruction of all of them")
REPORTED(an_exchange_with_an_absent_lane_is_reported, shuffle, "which is not active")
REPORTED(shared_memory_that_nobody_wrote_is_reported, unwritten, "read of shared memory that nobody wrote")
REPORTED(a_counter_that_nobody_set_is_reported, counter, "read of shared memory that nobody wrote")
REPORTED(two_writes_of_one_word_of_a_buffer_are_a_race, race, "race: two lanes write a word")
REPORTED(a_barrier_of_shared_memory_does_not_order_buffers, order, "race: one lane")
REPORTED(a_barrier_under_divergence_is_reported, apart, "a barrier that not all lanes of the workgroup reach")

static void a_size_taken_for_32_gives_other_numbers_at_other_sizes(void **state)
{
    (void)state;
    const struct kernel pair[2] = PAIR(size);
    const struct outcome at_32 = run(&pair[0], 32, 1);
    for (uint32_t lanes = LEAST; lanes <= MOST; lanes *= 2) {
        const struct outcome now = run(&pair[0], lanes, 1);
        assert_string_equal(now.fault, "");
        assert_int_equal(memcmp(now.y, at_32.y, sizeof now.y) == 0, lanes == 32);
    }
    check_mended(&pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_is_a_race),
        cmocka_unit_test(a_read_past_the_end_of_a_buffer_is_reported),
        cmocka_unit_test(a_read_past_the_end_of_a_shared_array_is_reported),
        cmocka_unit_test(a_sum_under_divergence_is_reported),
        cmocka_unit_test(an_exchange_with_an_absent_lane_is_reported),
        cmocka_unit_test(shared_memory_that_nobody_wrote_is_reported),
        cmocka_unit_test(a_counter_that_nobody_set_is_reported),
        cmocka_unit_test(two_writes_of_one_word_of_a_buffer_are_a_race),
        cmocka_unit_test(a_barrier_of_shared_memory_does_not_order_buffers),
        cmocka_unit_test(a_barrier_under_divergence_is_reported),
        cmocka_unit_test(a_size_taken_for_32_gives_other_numbers_at_other_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
