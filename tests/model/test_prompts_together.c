/* Parts of several prompts in one evaluation, and tokens of other sequences with them (batched_eval): results
 * are batch-invariant, and nearly those of an evaluation of the sequence.
 *
 * suites: check vulkan cpu asan */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine/run/batched.h"
#include "engine/test_hooks.h"
#include "sequence.h"

enum { PROMPTS = 6, CHUNK = 64, CONTEXT = 128, PARALLEL = 16, TURNS = 2 };

/* Tokens of each prompt's two parts. */
static const uint32_t lengths[PROMPTS][TURNS] = {{1, 9}, {7, 1}, {16, 21}, {2, 3}, {23, 12}, {13, 17}};

struct prompts {
    struct moeflux_model *m;
    struct moeflux_session *list[PROMPTS];
    uint32_t vocab;
    float *logits[PROMPTS]; /* after the prompt and one more token */
};

static void prompts_open(struct prompts *p, const char *model)
{
    struct moeflux_err e = {0};
    const struct moeflux_options o = {
        .dir = model, .device = device_name(), .context = CONTEXT, .chunk = CHUNK, .n_parallel = PARALLEL};
    const struct test_hooks hooks = {.batches_as_prompts = true, .shelf = device_shelf()};
    check_ok(test_hooks_open(&p->m, &o, &hooks, &e), &e);
    assert_true(batched_takes_prompts(p->m));
    p->vocab = moeflux_model_get_info(p->m).vocab_size;
    for (uint32_t i = 0; i < PROMPTS; i++) {
        check_ok(moeflux_session_new(&p->list[i], p->m, CONTEXT, &e), &e);
        p->logits[i] = malloc(p->vocab * sizeof(float));
    }
}

static void prompts_close(struct prompts *p)
{
    for (uint32_t i = 0; i < PROMPTS; i++) {
        free(p->logits[i]);
        moeflux_session_free(p->list[i]);
    }
    moeflux_model_close(p->m);
}

static void clear(struct prompts *p)
{
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < PROMPTS; i++)
        check_ok(moeflux_session_clear(p->list[i], &e), &e);
}

static int32_t id_of(const struct prompts *p, uint32_t i, uint32_t pos)
{
    return (int32_t)((5 + 13 * i + 29 * pos + pos * pos % 7) % p->vocab);
}

/* Fills the next part of prompt i and returns it. */
static struct batched_prompt part_of(const struct prompts *p, uint32_t i, uint32_t turn, int32_t *ids)
{
    uint32_t from = moeflux_session_position(p->list[i]);
    for (uint32_t k = 0; k < lengths[i][turn]; k++)
        ids[k] = id_of(p, i, from + k);
    return (struct batched_prompt){p->list[i], ids, lengths[i][turn]};
}

/* Evaluates the next parts of n prompts from `first` on, with the last one first, and tokens. */
static void feed_with(struct prompts *p, struct batched_token *tokens, uint32_t n_tokens, uint32_t first,
                      uint32_t n, uint32_t turn)
{
    struct moeflux_err e = {0};
    struct batched_prompt parts[PROMPTS];
    int32_t ids[PROMPTS][CHUNK];
    for (uint32_t i = 0; i < n; i++) {
        parts[i] = part_of(p, first + n - 1 - i, turn, ids[i]);
        assert_true(batched_takes_prompt(&parts[i]));
    }
    check_ok(batched_eval(tokens, n_tokens, parts, n, NULL, NULL, &e), &e);
}

static void feed(struct prompts *p, uint32_t first, uint32_t n, uint32_t turn)
{
    feed_with(p, NULL, 0, first, n, turn);
}

/* The token after the prompt of sequence i. */
static struct batched_token token_of(const struct prompts *p, uint32_t i)
{
    uint32_t pos = moeflux_session_position(p->list[i]);
    assert_int_equal(pos, lengths[i][0] + lengths[i][1]);
    return (struct batched_token){.session = p->list[i], .logits = p->logits[i], .id = id_of(p, i, pos)};
}

/* Decodes a token of each sequence from `first` on. */
static void end_from(struct prompts *p, uint32_t first)
{
    struct moeflux_err e = {0};
    struct batched_token tokens[PROMPTS];
    for (uint32_t i = first; i < PROMPTS; i++)
        tokens[i - first] = token_of(p, i);
    check_ok(batched_eval(tokens, PROMPTS - first, NULL, 0, NULL, NULL, &e), &e);
}

static void end(struct prompts *p)
{
    end_from(p, 0);
}

/* Returns a copy of all logits, [PROMPTS][vocab]. */
static float *keep(const struct prompts *p)
{
    float *to = malloc(sizeof(float) * PROMPTS * p->vocab);
    for (uint32_t i = 0; i < PROMPTS; i++)
        memcpy(to + (size_t)i * p->vocab, p->logits[i], p->vocab * sizeof(float));
    return to;
}

static float *logits_alone(struct prompts *p)
{
    clear(p);
    for (uint32_t i = 0; i < PROMPTS; i++)
        for (uint32_t turn = 0; turn < TURNS; turn++)
            feed(p, i, 1, turn);
    end(p);
    return keep(p);
}

/* Two groups, cut elsewhere in each turn. */
static void feed_together(struct prompts *p)
{
    clear(p);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        feed(p, 0, 2 + 3 * turn, turn);
        feed(p, 2 + 3 * turn, PROMPTS - 2 - 3 * turn, turn);
    }
    end(p);
}

/* Two sequences decode while the others still read their prompts. */
static void feed_beside_tokens(struct prompts *p)
{
    enum { READY = 2 };
    struct batched_token tokens[READY];
    clear(p);
    feed(p, 0, PROMPTS, 0);
    feed(p, 0, READY, 1);
    for (uint32_t i = 0; i < READY; i++)
        tokens[i] = token_of(p, i);
    feed_with(p, tokens, READY, READY, PROMPTS - READY, 1);
    end_from(p, READY);
}

/* The largest difference of two rows, in parts of the largest logit. */
static float distance(const struct prompts *p, const float *a, const float *b)
{
    struct sequence q = {.m = p->m, .vocab = p->vocab};
    return sequence_distance(&q, a, b);
}

/* One token more than a chunk has room for. */
static void too_many_tokens_are_refused(struct prompts *p)
{
    struct moeflux_err e = {0};
    int32_t ids[CHUNK] = {0};
    const struct batched_prompt parts[] = {{p->list[0], ids, CHUNK}, {p->list[1], ids, 1}};
    clear(p);
    sequence_refused(batched_eval(NULL, 0, parts, 2, NULL, NULL, &e), &e, MOEFLUX_ERR_USAGE, "65 tokens");
    assert_int_equal(moeflux_session_position(p->list[0]), 0);
}

static void check_logits(const struct prompts *p, const float *alone)
{
    for (uint32_t i = 0; i < PROMPTS; i++)
        assert_memory_equal(p->logits[i], alone + (size_t)i * p->vocab, p->vocab * sizeof(float));
}

static void check_plain(struct prompts *p, const float *alone)
{
    struct moeflux_err e = {0};
    struct sequence q = {.m = p->m, .vocab = p->vocab};
    clear(p);
    for (uint32_t i = 0; i < PROMPTS; i++)
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            int32_t ids[CHUNK];
            struct batched_prompt part = part_of(p, i, turn, ids);
            check_ok(moeflux_session_eval(part.session, ids, part.n, &(struct moeflux_outputs){0}, &e), &e);
        }
    end(p);
    for (uint32_t i = 0; i < PROMPTS; i++)
        assert_true(distance(p, p->logits[i], alone + (size_t)i * p->vocab) <= sequence_tolerance(&q));
}

static void check_family(const char *model)
{
    struct prompts p;
    prompts_open(&p, model);
    float *alone = logits_alone(&p);
    feed_together(&p);
    check_logits(&p, alone);
    feed_beside_tokens(&p);
    check_logits(&p, alone);
    check_plain(&p, alone);
    too_many_tokens_are_refused(&p);
    free(alone);
    prompts_close(&p);
}

static void attention_and_a_recurrence(void **state)
{
    (void)state;
    check_family("tests/models/qwen-odd/mlx");
}

/* Lavapipe takes minutes to compile their kernels. */
#define FAMILY(name, dir)                                                                                    \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        (void)state;                                                                                         \
        if (device_is_vulkan() && device_is_software())                                                      \
            skip();                                                                                          \
        check_family("tests/models/" dir);                                                                   \
    }
FAMILY(sinks_and_windows, "families/gptoss-odd")
FAMILY(latents, "deepseek-odd/mlx")
FAMILY(latents_with_an_indexer, "families/dsv32")
FAMILY(a_decay_for_each_channel, "families/kimilin-odd")
FAMILY(mamba_2, "families/nemo-odd")
FAMILY(experts_of_a_latent, "families/nemo-latent")
FAMILY(attention_over_blocks_of_layers, "families/k3-plain")
FAMILY(streams_ngrams_and_an_indexer, "families/qw4-odd")
FAMILY(compressed_rows, "families/v4-odd")
FAMILY(rows_of_other_layers, "families/v41-odd")
FAMILY(ngrams_of_words, "sources/v41/hf")
FAMILY(heads_by_layer, "families/gemma4-odd")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_and_a_recurrence),
        cmocka_unit_test(sinks_and_windows),
        cmocka_unit_test(latents),
        cmocka_unit_test(latents_with_an_indexer),
        cmocka_unit_test(a_decay_for_each_channel),
        cmocka_unit_test(mamba_2),
        cmocka_unit_test(experts_of_a_latent),
        cmocka_unit_test(attention_over_blocks_of_layers),
        cmocka_unit_test(streams_ngrams_and_an_indexer),
        cmocka_unit_test(compressed_rows),
        cmocka_unit_test(rows_of_other_layers),
        cmocka_unit_test(ngrams_of_words),
        cmocka_unit_test(heads_by_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
