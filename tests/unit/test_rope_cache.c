/* Cosines and sines that are computed ahead are those that would be computed when they are needed.
 *
 * suites: check fast asan */
#include <string.h>

#include "check.h"
#include "engine/session.h"

enum { CHUNK = 8, DIM = 6, SECOND_DIM = 4 };

static float frequencies[(DIM + SECOND_DIM) / 2] = {1, 0.1f, 0.003f, 1, 0.2f};

struct fixture {
    struct exec *x;
    struct moeflux_model m;
    struct rope_cache r;
};

static void set_up_tables(struct fixture *f, uint32_t n)
{
    struct moeflux_err e = {0};
    memset(f, 0, sizeof *f);
    f->m.max_chunk = CHUNK;
    f->m.dir.config.ropes[0].dim = DIM;
    f->m.inverse_frequencies = frequencies;
    f->m.dir.config.ropes[1].dim = SECOND_DIM;
    f->m.dir.config.n_ropes = n;
    f->m.rope_multipliers[0] = 1.5;
    f->m.rope_multipliers[1] = 2;
    check_ok(exec_open(&f->x, &(struct exec_options){.device = "reference"}, &e), &e);
    check_ok(rope_cache_open(&f->r, f->x, &f->m, &e), &e);
}

static void set_up(struct fixture *f)
{
    set_up_tables(f, 1);
}

static void tear_down(struct fixture *f)
{
    rope_cache_close(&f->r, f->x);
    exec_close(f->x);
}

/* Asks for a chunk's cosines and sines, and what they have to be. On the host an address is a pointer. */
static const float *expect_chunk(struct fixture *f, uint32_t n, uint32_t pos)
{
    float expected[CHUNK * DIM];
    const float *got = (const float *)(uintptr_t)rope_cache_of_chunk(&f->r, &f->m, n, pos);
    rope_cache_fill(&f->m, expected, n, pos);
    assert_memory_equal(got, expected, n * DIM * sizeof *expected);
    return got;
}

static void consecutive_chunks_have_those_of_their_positions(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    const float *at = expect_chunk(&f, CHUNK, 5);
    float before[CHUNK * DIM];
    memcpy(before, at, sizeof before);
    rope_cache_go_ahead(&f.r, &f.m);
    /* The device may still read them. */
    assert_memory_equal(at, before, sizeof before);
    assert_ptr_not_equal(expect_chunk(&f, CHUNK, 5 + CHUNK), at);
    rope_cache_go_ahead(&f.r, &f.m);
    assert_ptr_equal(expect_chunk(&f, 3, 5 + 2 * CHUNK), at);
    tear_down(&f);
}

static void what_was_computed_ahead_is_for_the_next_chunk_only(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    expect_chunk(&f, 3, 0);
    rope_cache_go_ahead(&f.r, &f.m);
    expect_chunk(&f, 4, 3); /* one more than there are */
    rope_cache_go_ahead(&f.r, &f.m);
    expect_chunk(&f, 4, 0); /* another sequence */
    rope_cache_go_ahead(&f.r, &f.m);
    expect_chunk(&f, 4, 4);
    expect_chunk(&f, 4, 8); /* nothing was computed ahead */
    tear_down(&f);
}

static void single_tokens_stay_at_one_address_and_end_what_was_ahead(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    uint64_t address;
    float *tokens = rope_cache_of_tokens(&f.r, 0, &address);
    assert_int_equal((uint64_t)(uintptr_t)tokens, address);
    expect_chunk(&f, 4, 0);
    rope_cache_go_ahead(&f.r, &f.m);
    expect_chunk(&f, 4, 4);
    rope_cache_go_ahead(&f.r, &f.m); /* fills the half of single tokens */
    assert_ptr_equal(rope_cache_of_tokens(&f.r, 0, &address), tokens);
    memset(tokens, 0, DIM * sizeof *tokens);
    expect_chunk(&f, 4, 8);
    tear_down(&f);
}

static void a_second_table_follows_the_rows_of_the_first(void **state)
{
    (void)state;
    struct fixture f;
    set_up_tables(&f, 2);
    for (uint32_t n = 4, pos = 5; n > 2; pos += n--) {
        const float *got = (const float *)(uintptr_t)rope_cache_of_chunk(&f.r, &f.m, n, pos);
        for (uint32_t t = 0; t < n; t++) {
            float one[DIM + SECOND_DIM];
            rope_cache_fill_token(&f.m, one, 1, 0, pos + t);
            assert_memory_equal(got + t * DIM, one, DIM * sizeof *one);
            assert_memory_equal(got + n * DIM + t * SECOND_DIM, one + DIM, SECOND_DIM * sizeof *one);
        }
        rope_cache_go_ahead(&f.r, &f.m);
    }
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(consecutive_chunks_have_those_of_their_positions),
        cmocka_unit_test(what_was_computed_ahead_is_for_the_next_chunk_only),
        cmocka_unit_test(a_second_table_follows_the_rows_of_the_first),
        cmocka_unit_test(single_tokens_stay_at_one_address_and_end_what_was_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
