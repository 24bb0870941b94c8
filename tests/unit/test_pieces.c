/* SentencePiece's BPE with byte fallback, from tokenizer.json and from GGUF. tests/data/pieces.json, written
 * by tests/data/pieces_cases.py, has the ids of sentencepiece and of tokenizers.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "check.h"
#include "gguf_writer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"
#include "tmp_tree.h"
#include "tokenizer_build.h"

#define MARK "\xe2\x96\x81"

static json_t *load(const char *part)
{
    json_t *root = json_load_file("tests/data/pieces.json", JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    json_t *found = json_incref(json_object_get(root, part));
    json_decref(root);
    assert_non_null(found);
    return found;
}

static struct tokenizer *open_merged(void)
{
    json_t *set = load("merged");
    struct moeflux_err e = {0};
    struct tokenizer *t = tokenizer_build_open(json_incref(json_object_get(set, "tokenizer")), &e);
    if (!t)
        fail_msg("%s", e.text);
    json_decref(set);
    return t;
}

static struct token_list encode(const struct tokenizer *t, const char *text, size_t n,
                                enum token_specials specials)
{
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    check_ok(tokenizer_encode(t, text, n, specials, &ids, NULL, &e), &e);
    return ids;
}

/* Every piece of the ids is one byte of a stream, so a character comes once its last byte is there. */
static struct str decode(const struct tokenizer *t, const struct token_list *ids)
{
    struct utf8_stream stream = {0};
    struct str text = {0};
    for (size_t i = 0; i < ids->n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(t, ids->ids[i], &bytes);
        utf8_stream_push(&stream, bytes, n, &text);
        assert_true(utf8_is_valid(str_text(&text), text.len));
    }
    utf8_stream_end(&stream, &text);
    return text;
}

/* prefix: what the text has in front once it is decoded. */
static void check_cases(const struct tokenizer *t, const json_t *cases, const char *prefix)
{
    size_t i, n_prefix = strlen(prefix);
    json_t *c;
    assert_true(json_array_size(cases) > 100);
    json_array_foreach(cases, i, c)
    {
        const char *text = json_string_value(json_array_get(c, 0));
        const json_t *want = json_array_get(c, 1);
        size_t n = json_string_length(json_array_get(c, 0));
        struct token_list ids = encode(t, text, n, SPECIALS_AS_TOKENS);
        struct str back = decode(t, &ids);
        bool same = ids.n == json_array_size(want);
        for (size_t k = 0; same && k < ids.n; k++)
            same = ids.ids[k] == json_integer_value(json_array_get(want, k));
        if (!same)
            fail_msg("other ids for \"%s\"", text);
        if (n > 0 && !strstr(text, MARK)) {
            assert_int_equal(back.len, n + n_prefix);
            assert_memory_equal(back.data, prefix, n_prefix);
            assert_memory_equal(back.data + n_prefix, text, n);
        }
        str_free(&back);
        token_list_free(&ids);
    }
}

static void a_tokenizer_in_gemmas_form_gives_the_ids_of_tokenizers(void **state)
{
    json_t *set = load("merged");
    struct tokenizer *t = open_merged();
    (void)state;
    check_cases(t, json_object_get(set, "cases"), "");
    assert_int_equal(tokenizer_bos(t), 1);
    json_decref(set);
    tokenizer_free(t);
}

/* Whole cut at every place, which decodes to the same text: a character without a token is bytes. */
static void bytes_become_a_character_when_it_is_whole(void **state)
{
    static const char text[] = "a \xf0\x9f\x99\x82\xe2\x98\x83\xef\xb8\x8f";
    struct tokenizer *t = open_merged();
    struct token_list ids = encode(t, text, sizeof text - 1, SPECIALS_AS_TOKENS);
    struct utf8_stream stream = {0};
    struct str out = {0};
    size_t n_empty = 0;
    (void)state;
    for (size_t i = 0; i < ids.n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(t, ids.ids[i], &bytes), before = out.len;
        utf8_stream_push(&stream, bytes, n, &out);
        n_empty += out.len == before;
    }
    assert_int_equal(n_empty, 3 + 2); /* U+FE0F has a token */
    assert_string_equal(str_text(&out), text);
    str_free(&out);
    token_list_free(&ids);
    tokenizer_free(t);
}

static void tags_and_byte_tokens_in_a_users_text_stay_text(void **state)
{
    static const char *const texts[] = {"<|turn>", "</s>", "<0x41>", "a<turn|>b"};
    struct tokenizer *t = open_merged();
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct token_list ids = encode(t, texts[i], strlen(texts[i]), SPECIALS_AS_TEXT);
        for (size_t k = 0; k < ids.n; k++) {
            const char *bytes;
            assert_false(tokenizer_is_added(t, ids.ids[k]));
            assert_true(tokenizer_bytes(t, ids.ids[k], &bytes) < 6);
        }
        token_list_free(&ids);
    }
    tokenizer_free(t);
}

/* A sign that is listed as added, too, such as a line end: a user's text gets its token, not its bytes. */
static void a_sign_that_is_an_added_token_is_found_in_text(void **state)
{
    json_t *set = load("merged"), *root = json_incref(json_object_get(set, "tokenizer"));
    struct moeflux_err e = {0};
    const json_t *known = json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), "z");
    int32_t id = (int32_t)json_integer_value(known);
    (void)state;
    assert_non_null(known);
    tokenizer_build_added(root, "z", id, false, false);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    if (!t)
        fail_msg("%s", e.text);
    struct token_list ids = encode(t, "z", 1, SPECIALS_AS_TEXT);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.ids[0], id);
    token_list_free(&ids);
    tokenizer_free(t);
    json_decref(set);
}

/* ---- GGUF ---- */

struct scored {
    json_t *set;
    const char *tokens[1000];
    float scores[1000];
    uint32_t types[1000];
    size_t n;
};

static void load_scored(struct scored *s)
{
    s->set = load("scored");
    s->n = json_array_size(json_object_get(s->set, "tokens"));
    assert_in_range(s->n, 500, 1000);
    for (size_t i = 0; i < s->n; i++) {
        s->tokens[i] = json_string_value(json_array_get(json_object_get(s->set, "tokens"), i));
        s->scores[i] = (float)json_number_value(json_array_get(json_object_get(s->set, "scores"), i));
        s->types[i] = (uint32_t)json_integer_value(json_array_get(json_object_get(s->set, "types"), i));
    }
}

static void put_scored(struct gguf_writer *w, const struct scored *s)
{
    gguf_writer_text(w, "tokenizer.ggml.model", "llama");
    gguf_writer_texts(w, "tokenizer.ggml.tokens", s->tokens, s->n);
    gguf_writer_wholes(w, "tokenizer.ggml.token_type", s->types, s->n);
    gguf_writer_whole(w, "tokenizer.ggml.bos_token_id", 1);
}

static struct tokenizer *open_gguf(struct gguf_writer *w, struct moeflux_err *e)
{
    char *dir = tmp_tree_new();
    gguf_writer_finish(w, dir, "x.gguf");
    struct tokenizer *t = tokenizer_open(tmp_tree_path(dir, "x.gguf"), e);
    tmp_tree_remove(dir);
    return t;
}

static void a_gguf_file_with_scores_gives_the_ids_of_sentencepiece(void **state)
{
    struct scored s;
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    (void)state;
    load_scored(&s);
    put_scored(&w, &s);
    gguf_writer_floats(&w, "tokenizer.ggml.scores", s.scores, s.n);
    struct tokenizer *t = open_gguf(&w, &e);
    if (!t)
        fail_msg("%s", e.text);
    check_cases(t, json_object_get(s.set, "cases"), " ");
    assert_int_equal(tokenizer_bos(t), 1);
    tokenizer_free(t);
    json_decref(s.set);
}

/* The merged vocabulary as llama.cpp's converter writes Gemma 4's. */
static void a_gguf_file_with_gemmas_merges_gives_the_ids_of_tokenizers(void **state)
{
    json_t *set = load("merged"), *root = json_object_get(set, "tokenizer"), *value, *added;
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"),
           *merges = json_object_get(json_object_get(root, "model"), "merges");
    static const char *tokens[1000], *lines[1000];
    static char texts[1000][64];
    uint32_t types[1000];
    size_t i, n = 0;
    const char *key;
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    (void)state;
    json_object_foreach(vocab, key, value)
    {
        size_t id = (size_t)json_integer_value(value);
        tokens[id] = key;
        types[id] = strlen(key) == 6 && !strncmp(key, "<0x", 3) ? 6 : 1;
        n = id >= n ? id + 1 : n;
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, added)
    {
        size_t id = (size_t)json_integer_value(json_object_get(added, "id"));
        tokens[id] = json_string_value(json_object_get(added, "content"));
        types[id] = id % 2 ? 3 : 4;
        n = id >= n ? id + 1 : n;
    }
    json_array_foreach(merges, i, value)
    {
        snprintf(texts[i], sizeof texts[i], "%s %s", json_string_value(json_array_get(value, 0)),
                 json_string_value(json_array_get(value, 1)));
        lines[i] = texts[i];
    }
    gguf_writer_text(&w, "tokenizer.ggml.model", "gemma4");
    /* Published files have this wrong value: BOS is added all the same. */
    gguf_writer_whole(&w, "tokenizer.ggml.bos_token_id", 2);
    gguf_writer_whole(&w, "tokenizer.ggml.add_bos_token", 0);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, n);
    gguf_writer_wholes(&w, "tokenizer.ggml.token_type", types, n);
    gguf_writer_texts(&w, "tokenizer.ggml.merges", lines, json_array_size(merges));
    struct tokenizer *t = open_gguf(&w, &e);
    if (!t)
        fail_msg("%s", e.text);
    check_cases(t, json_object_get(set, "cases"), "");
    assert_int_equal(tokenizer_bos(t), 2);
    tokenizer_free(t);
    json_decref(set);
}

static void expect_refused(struct gguf_writer *w, int code, const char *part)
{
    struct moeflux_err e = {0};
    assert_null(open_gguf(w, &e));
    assert_int_equal(e.code, code);
    if (!strstr(e.text, part))
        fail_msg("%s", e.text);
}

static void scores_that_do_not_fit_are_refused(void **state)
{
    struct scored s;
    struct gguf_writer w = {0};
    (void)state;
    load_scored(&s);
    put_scored(&w, &s);
    expect_refused(&w, ERR_FORMAT, "key tokenizer.ggml.scores is missing");
    put_scored(&w, &s);
    gguf_writer_floats(&w, "tokenizer.ggml.scores", s.scores, s.n - 1);
    expect_refused(&w, ERR_FORMAT, "899 scores of 900 tokens");
    put_scored(&w, &s);
    gguf_writer_wholes(&w, "tokenizer.ggml.scores", s.types, s.n);
    expect_refused(&w, ERR_FORMAT, "expected a list of float32 numbers");
    s.scores[300] = NAN;
    put_scored(&w, &s);
    gguf_writer_floats(&w, "tokenizer.ggml.scores", s.scores, s.n);
    expect_refused(&w, ERR_FORMAT, "key tokenizer.ggml.scores: item 300 is not finite");
    json_decref(s.set);
}

/* ---- what is refused ---- */

static void expect_changed_refused(const char *where, const char *text, const char *part)
{
    json_t *set = load("merged"), *root = json_incref(json_object_get(set, "tokenizer"));
    struct moeflux_err e = {0};
    assert_int_equal(json_object_set_new(root, where, json_loads(text, JSON_DECODE_ANY, NULL)), 0);
    assert_null(tokenizer_build_open(root, &e));
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    if (!strstr(e.text, part))
        fail_msg("%s", e.text);
    json_decref(set);
}

static void other_normalizers_and_decoders_are_refused(void **state)
{
    (void)state;
    expect_changed_refused("normalizer", "{\"type\": \"Lowercase\"}", "normalizer: type \"Lowercase\"");
    expect_changed_refused(
        "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"" MARK "\"}",
        "normalizer: type \"Replace\"");
    expect_changed_refused("normalizer", "null", "byte_fallback is set");
    expect_changed_refused("decoder", "null", "byte_fallback is set");
    expect_changed_refused("decoder", "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Metaspace\"}]}",
                           "decoder: type \"Metaspace\"");
    expect_changed_refused("decoder", "{\"type\": \"Fuse\"}", "decoder: type \"Fuse\", expected Sequence");
    expect_changed_refused("decoder",
                           "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Strip\", \"content\": "
                           "\" \", \"start\": 2, \"stop\": 0}]}",
                           "decoder: type \"Strip\", expected");
    expect_changed_refused("pre_tokenizer", "{\"type\": \"Metaspace\"}", "type \"Metaspace\"");
    expect_changed_refused("pre_tokenizer", "{\"type\": \"ByteLevel\"}", "type \"ByteLevel\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_in_gemmas_form_gives_the_ids_of_tokenizers),
        cmocka_unit_test(bytes_become_a_character_when_it_is_whole),
        cmocka_unit_test(tags_and_byte_tokens_in_a_users_text_stay_text),
        cmocka_unit_test(a_sign_that_is_an_added_token_is_found_in_text),
        cmocka_unit_test(a_gguf_file_with_scores_gives_the_ids_of_sentencepiece),
        cmocka_unit_test(a_gguf_file_with_gemmas_merges_gives_the_ids_of_tokenizers),
        cmocka_unit_test(scores_that_do_not_fit_are_refused),
        cmocka_unit_test(other_normalizers_and_decoders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
