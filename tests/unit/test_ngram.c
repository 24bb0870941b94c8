/* N-gram hashes against rows that transformers 5.24 computes (Qwen4ExpTextNGramEmbedding), in
 * chunks; of words against numpy's.
 *
 * suites: check fast asan */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "check.h"
#include "model/ngram.h"

enum { N_TOKENS = 10, END = 7 };
static const uint32_t tokens[N_TOKENS] = {3, 9, 7, 7, 100, 2, 50, 7, 1, 248};

struct expected {
    struct ngram_table table;
    uint32_t n_rows;
    uint32_t rows[N_TOKENS][4]; /* n_heads of each */
};
static const struct expected cases[] = {
    {{3, 2, 1000, 128, 250, END, 0, 1234, 0},
     4096,
     {{629, 1278, 2210, 4048},
      {439, 1368, 2813, 3918},
      {733, 1827, 2329, 3361},
      {284, 1866, 2073, 3880},
      {653, 1135, 2814, 3384},
      {811, 1777, 2556, 3974},
      {896, 1204, 3023, 3564},
      {615, 1744, 2218, 3661},
      {795, 1919, 2998, 3958},
      {501, 1534, 2733, 3625}}},
    {{3, 2, 1000, 128, 250, END, 1, 1234, 0},
     4224,
     {{88, 1470, 2754, 3347},
      {432, 1253, 3087, 3887},
      {954, 1067, 2613, 3642},
      {949, 1461, 2091, 3703},
      {214, 1242, 2223, 3434},
      {855, 1113, 2910, 4029},
      {818, 1946, 3020, 3104},
      {1025, 1067, 2154, 3808},
      {970, 1604, 2774, 3197},
      {383, 1768, 2657, 3247}}},
    {{4, 1, 500, 1, 250, END, 0, 99, 0},
     1533,
     {{502, 938, 1414},
      {466, 694, 1417},
      {74, 781, 1196},
      {173, 515, 1473},
      {497, 654, 1117},
      {89, 958, 1519},
      {386, 999, 1303},
      {305, 815, 1216},
      {71, 960, 1117},
      {449, 863, 1217}}},
};

static void rows_are_those_of_the_reference_in_chunks_of_any_size(void **state)
{
    struct moeflux_err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t chunk = 1; chunk <= N_TOKENS; chunk++) {
            struct ngram_hash h;
            uint32_t before[NGRAM_MAX_SIZE], rows[N_TOKENS * 4];
            assert_int_equal(ngram_hash_make(&h, &cases[i].table, &e), 0);
            assert_int_equal(h.n_rows, cases[i].n_rows);
            ngram_before_first(&h, before);
            for (uint32_t t = 0; t < N_TOKENS; t += chunk) {
                uint32_t n = chunk < N_TOKENS - t ? chunk : N_TOKENS - t;
                ngram_hash_rows(&h, before, tokens + t, n, rows + t * h.n_heads);
                ngram_advance(&h, before, tokens + t, n);
            }
            for (uint32_t t = 0; t < N_TOKENS; t++)
                assert_memory_equal(rows + t * h.n_heads, cases[i].rows[t], h.n_heads * sizeof *rows);
        }
}

static void the_published_table_has_its_rows(void **state)
{
    static const struct ngram_table next = {3, 8, 20000000, 128, 248320, 248044, 0, 1234, 0};
    static const uint32_t ids[] = {248044, 5, 248319, 17, 248044, 1};
    static const uint32_t second[16] = {15389869,  39778609,  55713969,  62213332,  88817728,  118483999,
                                        133731511, 155458159, 179763390, 197956758, 205378969, 220499474,
                                        242466248, 265658744, 293662119, 315720898};
    static const uint32_t last[16] = {16121432,  28938500,  59087997,  73487090,  81148277,  104500129,
                                      120276032, 149373875, 176283436, 184305849, 216528839, 231080079,
                                      257961536, 266068568, 289043455, 305959965};
    struct moeflux_err e = {0};
    struct ngram_hash h;
    uint32_t before[NGRAM_MAX_SIZE], rows[6 * 16];
    (void)state;
    assert_int_equal(ngram_hash_make(&h, &next, &e), 0);
    assert_int_equal(h.n_rows, 320001536);
    assert_true(h.multipliers[0] == 23703573157769 && h.multipliers[2] == 8052911324071);
    ngram_before_first(&h, before);
    ngram_hash_rows(&h, before, ids, 6, rows);
    assert_memory_equal(rows + 16, second, sizeof second);
    assert_memory_equal(rows + 5 * 16, last, sizeof last);
}

/* DeepSeek-V4.1's second table, with a padding word that is a word of the text, too. */
static void the_published_table_of_words_has_its_rows(void **state)
{
    static const struct ngram_table table = {4, 8, 16000000, 0, 129280, 2, 1, 140098, 99092};
    static const uint32_t words[] = {5, 99091, 17, 2, 1, 5};
    static const uint32_t second[24] = {6795459,   20749941,  41214806,  48384730,  69228303,  91543400,
                                        97870046,  126509633, 142731587, 154092892, 162777643, 191161677,
                                        201106562, 208417460, 226343142, 253469512, 262964036, 272300957,
                                        301971908, 313261467, 328132432, 349006182, 353935588, 381727688};
    static const uint32_t last[24] = {13657781,  25706812,  46566180,  49805626,  67425916,  84537319,
                                      99122656,  114416835, 142704255, 150425890, 163082957, 178526523,
                                      200577946, 222073084, 225898686, 248508742, 271398640, 276486164,
                                      292891077, 315923347, 325708497, 351916378, 354261799, 381990563};
    struct moeflux_err e = {0};
    struct ngram_hash h;
    uint32_t before[NGRAM_MAX_SIZE], rows[6 * 24];
    (void)state;
    assert_int_equal(ngram_hash_make(&h, &table, &e), 0);
    assert_int_equal(h.n_rows, 384016682);
    assert_true(h.multipliers[0] == 67716810739261 && h.multipliers[3] == 82619226485591);
    ngram_before_first(&h, before);
    ngram_hash_rows(&h, before, words, 6, rows);
    assert_memory_equal(rows + 24, second, sizeof second);
    assert_memory_equal(rows + 5 * 24, last, sizeof last);
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    static const struct ngram_table wrong[] = {
        {1, 8, 1000, 0, 250, END, 0, 0, 0},       {NGRAM_MAX_SIZE + 1, 8, 1000, 0, 250, END, 0, 0, 0},
        {3, 0, 1000, 0, 250, END, 0, 0, 0},       {3, NGRAM_MAX_HEADS, 1000, 0, 250, END, 0, 0, 0},
        {2, 2, UINT32_MAX, 0, 250, END, 0, 0, 0}, {2, 2, 0, 0, 250, END, 0, 0, 0}};
    struct moeflux_err e = {0};
    struct ngram_hash h;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(ngram_hash_make(&h, &wrong[i], &e), ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_the_reference_in_chunks_of_any_size),
        cmocka_unit_test(the_published_table_has_its_rows),
        cmocka_unit_test(the_published_table_of_words_has_its_rows),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
