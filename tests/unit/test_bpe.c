/* Byte-pair merging of one piece: the order of merges, ties, very long pieces.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "fuzz.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_TOKENS 64

/* The definition, word for word: merge the adjacent pair of lowest rank, the leftmost on a tie; repeat. */
struct naive {
    int32_t result[MAX_TOKENS][MAX_TOKENS];
    uint32_t rank[MAX_TOKENS][MAX_TOKENS];
};

static size_t naive_encode(const struct naive *m, int32_t *ids, size_t n)
{
    for (;;) {
        size_t best = n;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (m->rank[ids[i]][ids[i + 1]] < rank) {
                rank = m->rank[ids[i]][ids[i + 1]];
                best = i;
            }
        if (best == n)
            return n;
        ids[best] = m->result[ids[best]][ids[best + 1]];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
    }
}

static void init(struct bpe *b, size_t n_merges)
{
    struct moeflux_err e = {0};
    assert_int_equal(bpe_init(b, n_merges, &e), 0);
}

static void encode(const struct bpe *b, const char *piece, size_t len, struct bpe_scratch *s,
                   struct token_list *got)
{
    s->piece.n = 0;
    for (size_t i = 0; i < len; i++)
        assert_int_equal(token_list_add(&s->piece, piece[i], NULL), 0);
    assert_int_equal(bpe_encode(b, s, got, NULL), 0);
}

static void random_merges(struct fuzz *f, struct bpe *b, struct naive *m)
{
    memset(m->rank, 0xff, sizeof m->rank);
    uint32_t rank = 0;
    for (int32_t id = 4; id < MAX_TOKENS; id++) {
        int32_t left = (int32_t)fuzz_below(f, (uint64_t)id), right = (int32_t)fuzz_below(f, (uint64_t)id);
        m->result[left][right] = id;
        m->rank[left][right] = rank;
        bpe_add(b, left, right, rank++, id);
    }
}

/* Lengths around the change from the scan to the heap, and beyond. */
static void pieces_of_every_length_merge_as_defined(void **state)
{
    struct fuzz f = {1};
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct bpe b;
        struct bpe_scratch scratch = {0};
        struct naive m;
        init(&b, MAX_TOKENS);
        random_merges(&f, &b, &m);
        for (size_t len = 0; len < 130; len++) {
            char piece[130];
            int32_t want[130] = {0};
            struct token_list got = {0};
            for (size_t i = 0; i < len; i++) {
                want[i] = (int32_t)fuzz_below(&f, 4);
                piece[i] = (char)want[i];
            }
            encode(&b, piece, len, &scratch, &got);
            assert_int_equal(got.n, naive_encode(&m, want, len));
            if (got.n)
                assert_memory_equal(got.ids, want, got.n * sizeof *want);
            token_list_free(&got);
        }
        bpe_scratch_free(&scratch);
        bpe_free(&b);
    }
}

static void a_megabyte_of_one_letter_is_merged_whole(void **state)
{
    static char piece[1000003];
    struct bpe b;
    struct bpe_scratch scratch = {0};
    struct token_list got = {0};
    (void)state;
    init(&b, 3);
    bpe_add(&b, 0, 0, 0, 10);
    bpe_add(&b, 10, 10, 1, 11);
    bpe_add(&b, 11, 11, 2, 12);
    encode(&b, piece, sizeof piece, &scratch, &got);
    assert_int_equal(got.n, 125002);
    for (size_t i = 0; i < 125000; i++)
        assert_int_equal(got.ids[i], 12);
    assert_int_equal(got.ids[125000], 10);
    assert_int_equal(got.ids[125001], 0);
    token_list_free(&got);
    bpe_scratch_free(&scratch);
    bpe_free(&b);
}

static void the_later_of_two_merges_of_one_pair_counts(void **state)
{
    struct bpe b;
    struct bpe_scratch scratch = {0};
    struct token_list got = {0};
    (void)state;
    init(&b, 3);
    bpe_add(&b, 0, 1, 0, 10);
    bpe_add(&b, 1, 2, 1, 11);
    bpe_add(&b, 0, 1, 2, 12);
    encode(&b, "\0\1\2", 3, &scratch, &got);
    assert_int_equal(got.n, 2);
    assert_int_equal(got.ids[0], 0);
    assert_int_equal(got.ids[1], 11);
    token_list_free(&got);
    bpe_scratch_free(&scratch);
    bpe_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_every_length_merge_as_defined),
        cmocka_unit_test(a_megabyte_of_one_letter_is_merged_whole),
        cmocka_unit_test(the_later_of_two_merges_of_one_pair_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
