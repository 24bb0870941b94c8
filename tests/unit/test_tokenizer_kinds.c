/* The tokenizers of DeepSeek's kind: ids against the Python package `tokenizers`
 * (tests/data/deepseek_tokenizer.json has a small trained vocabulary, DeepSeek-V3's own pre-tokenizer and
 * others, and what the package made of some texts); which token starts a text, and where the chat template
 * is.
 *
 * suites: check fast asan */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "check.h"
#include "gguf_writer.h"
#include "text/tokenizer/tokenizer.h"
#include "tmp_tree.h"
#include "tokenizer_build.h"

static json_t *load(void)
{
    json_t *root = json_load_file("tests/data/deepseek_tokenizer.json", JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    return root;
}

/* ---- ids ---- */

static void check_case(const struct tokenizer *t, const char *set, const json_t *c)
{
    const json_t *text = json_array_get(c, 0), *want = json_array_get(c, 1);
    struct token_list ids = {0};
    struct str back = {0};
    struct moeflux_err e = {0};
    check_ok(tokenizer_encode(t, json_string_value(text), json_string_length(text), SPECIALS_AS_TOKENS, &ids,
                              NULL, &e),
             &e);
    bool same = ids.n == json_array_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(want, i));
    for (size_t i = 0; i < ids.n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(t, ids.ids[i], &bytes);
        str_add(&back, bytes, n);
    }
    if (!same)
        fail_msg("%s: \"%s\": %zu ids, expected %zu", set, json_string_value(text), ids.n,
                 json_array_size(want));
    assert_int_equal(back.len, json_string_length(text));
    assert_memory_equal(str_text(&back), json_string_value(text), back.len);
    str_free(&back);
    token_list_free(&ids);
}

static void ids_are_those_of_the_published_library(void **state)
{
    json_t *root = load();
    const json_t *sets = json_object_get(root, "sets"), *set, *c;
    size_t i, k;
    (void)state;
    assert_int_equal(json_array_size(sets), 8);
    json_array_foreach(sets, i, set)
    {
        struct moeflux_err e = {0};
        const char *name = json_string_value(json_object_get(set, "name"));
        json_t *file = json_deep_copy(json_object_get(root, "tokenizer"));
        json_object_set(file, "pre_tokenizer", json_object_get(set, "pre_tokenizer"));
        struct tokenizer *t = tokenizer_build_open(file, &e);
        if (!t)
            fail_msg("%s: %s", name, e.text);
        assert_true(json_array_size(json_object_get(set, "cases")) > 90);
        json_array_foreach(json_object_get(set, "cases"), k, c)
        {
            check_case(t, name, c);
        }
        tokenizer_free(t);
    }
    json_decref(root);
}

/* ---- splits, merges and Unicode: ids and pieces of tokenizers 0.23.3 ---- */

#define MAX_IDS 12

static void expect_ids(const struct tokenizer *t, const char *what, const char *text,
                       enum token_specials specials, const int32_t *want)
{
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    check_ok(tokenizer_encode(t, text, strlen(text), specials, &ids, NULL, &e), &e);
    for (size_t i = 0; i < ids.n || (i < MAX_IDS && want[i]); i++)
        if (i >= MAX_IDS || i >= ids.n || ids.ids[i] != want[i])
            fail_msg("%s: \"%s\": %zu ids, another one at %zu", what, text, ids.n, i);
    token_list_free(&ids);
}

static void every_behaviour_of_a_split_is_obeyed(void **state)
{
    static const struct {
        const char *behaviour;
        int invert;
        int32_t ids[MAX_IDS];
    } cases[] = {
        {"Isolated", 0, {97, 98, 98, 262, 98, 99, 98, 32, 120, 98}},
        {"Isolated", 1, {97, 98, 98, 262, 98, 99, 98, 32, 120, 98}},
        {"Removed", 0, {97, 262, 99, 32, 120}},
        {"Removed", 1, {98, 98, 98, 98, 98}},
        {"Contiguous", 0, {97, 260, 262, 98, 99, 98, 32, 120, 98}},
        {"Contiguous", 1, {97, 260, 262, 98, 99, 98, 32, 120, 98}},
        {"MergedWithPrevious", 0, {256, 98, 120, 256, 99, 98, 32, 263}},
        {"MergedWithPrevious", 1, {97, 98, 261, 97, 98, 99, 98, 32, 120, 98}},
        {"MergedWithNext", 0, {97, 98, 261, 97, 98, 99, 98, 32, 120, 98}},
        {"MergedWithNext", 1, {256, 98, 120, 256, 99, 98, 32, 263}},
    };
    static const char *const pairs[][2] = {{"b", "b"}, {"b", "x"}, {"x", "a"}, {"x", "b"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        json_t *root = tokenizer_build(), *patterns = json_pack("[s]", "b");
        tokenizer_build_splits(root, patterns);
        json_decref(patterns);
        json_t *steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
        json_t *split = json_array_get(steps, 0);
        json_object_set_new(split, "behavior", json_string(cases[i].behaviour));
        json_object_set_new(split, "invert", json_boolean(cases[i].invert));
        for (int k = 0; k < 4; k++) {
            char both[3];
            snprintf(both, sizeof both, "%s%s", pairs[k][0], pairs[k][1]);
            tokenizer_build_token(root, both, 2, 260 + k);
            tokenizer_build_merge(root, pairs[k][0], pairs[k][1]);
        }
        struct tokenizer *t = tokenizer_build_open(root, &e);
        if (!t)
            fail_msg("%s: %s", cases[i].behaviour, e.text);
        expect_ids(t, cases[i].behaviour, "abbxabcb xb", SPECIALS_AS_TOKENS, cases[i].ids);
        expect_ids(t, cases[i].behaviour, "", SPECIALS_AS_TOKENS, (int32_t[MAX_IDS]){0});
        tokenizer_free(t);
    }
}

static void a_merge_that_makes_a_control_token_is_left_out(void **state)
{
    json_t *root = tokenizer_build();
    struct moeflux_err e = {0};
    (void)state;
    tokenizer_build_token(root, "abcd", 4, 259);
    tokenizer_build_merge(root, "abc", "d");
    tokenizer_build_added(root, "abcd", 259, false, true);
    struct tokenizer *t = tokenizer_build_open(root, &e);
    if (!t)
        fail_msg("%s", e.text);
    expect_ids(t, "tokens", "xabcdabc", SPECIALS_AS_TOKENS, (int32_t[MAX_IDS]){120, 259, 257});
    expect_ids(t, "tokens", "abc d", SPECIALS_AS_TOKENS, (int32_t[MAX_IDS]){257, 32, 100});
    /* A user's text never gives a control token. */
    expect_ids(t, "text", "xabcdabc", SPECIALS_AS_TEXT, (int32_t[MAX_IDS]){120, 257, 100, 257});
    tokenizer_free(t);
}

/* U+105C9, U+1FA89 and U+10D40 are of Unicode 16: a letter, a symbol and a digit. */
static void characters_of_newer_unicode_have_their_categories(void **state)
{
    static const struct {
        const char *pattern, *text;
        int32_t ids[MAX_IDS];
    } cases[] = {
        {"\\s?\\p{L}+", " \xf0\x90\x97\x89", {260, 144, 151, 137}},
        {"\\s?[\\p{S}\\p{N}]+", " \xf0\x9f\xaa\x89", {260, 159, 170, 137}},
        {"\\s?[\\p{S}\\p{N}]+", " \xf0\x90\xb5\x80", {260, 144, 181, 128}},
        {"\\d+|\\s?[^\\p{L}]", " \xf0\x90\x97\x89", {32, 240, 144, 151, 137}},
        {"\\d+|\\s?[^\\p{L}]", " \xf0\x9f\xaa\x89", {260, 159, 170, 137}},
        {"\\d+|\\s?[^\\p{L}]", "\xf0\x90\xb5\x80\xf0\x90\xb5\x80", {240, 144, 181, 261, 144, 181, 128}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        json_t *root = tokenizer_build(), *patterns = json_pack("[s]", cases[i].pattern);
        tokenizer_build_splits(root, patterns);
        json_decref(patterns);
        tokenizer_build_token(root, " \xf0", 2, 260);
        tokenizer_build_merge(root, " ", "\xf0");
        tokenizer_build_token(root, "\x80\xf0", 2, 261);
        tokenizer_build_merge(root, "\x80", "\xf0");
        struct tokenizer *t = tokenizer_build_open(root, &e);
        if (!t)
            fail_msg("%s: %s", cases[i].pattern, e.text);
        expect_ids(t, cases[i].pattern, cases[i].text, SPECIALS_AS_TOKENS, cases[i].ids);
        tokenizer_free(t);
    }
}

/* ---- tiktoken's form ---- */

#define TIKTOKEN "tests/data/tiktoken"

/* tests/data/tiktoken/README.md */
static void a_tiktoken_vocabulary_gives_the_ids_of_the_published_library(void **state)
{
    struct moeflux_err e = {0};
    struct tokenizer *t = tokenizer_open(TIKTOKEN "/tiktoken.model", &e);
    json_t *cases = json_load_file(TIKTOKEN "/ids.json", JSON_ALLOW_NUL, NULL), *c;
    size_t i;
    (void)state;
    if (!t)
        fail_msg("%s", e.text);
    assert_true(json_array_size(cases) > 200);
    json_array_foreach(cases, i, c)
    {
        check_case(t, TIKTOKEN, c);
    }
    assert_int_equal(tokenizer_added_id(t, "<|im_end|>"), 1002);
    assert_true(tokenizer_is_special(t, 1002) && !tokenizer_is_special(t, 1009) &&
                tokenizer_is_added(t, 1009));
    assert_false(tokenizer_has(t, 1005));
    assert_int_equal(tokenizer_n_ids(t), 1010);
    assert_string_equal(json_string_value(json_object_get(tokenizer_special_texts(t), "eos_token")), "[EOS]");
    json_decref(cases);
    tokenizer_free(t);
}

static void a_bad_tiktoken_vocabulary_is_refused_by_its_line(void **state)
{
    static const struct {
        const char *file, *old, *with, *text;
    } cases[] = {
        {"tiktoken.model", "AQ== 1\n", "AQ= 1\n",
         "tiktoken.model: line 2: \"AQ= 1\", expected a token in base64"},
        {"tiktoken.model", "AQ== 1\n", "A?== 1\n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "AQ== \n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "AQ== 1 1\n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "AQ== -1\n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "AQ== 99999999\n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "====\n", "line 2: "},
        {"tiktoken.model", "AQ== 1\n", "AQ== 2\n", "id 2 is given twice"},
        {"tiktoken.model", "AQ== 1\n", "AA== 1\n", "is there twice, with ids 0 and 1"},
        {"tiktoken.model", "AQ== 1\n", "", "no token stands for the byte 0x01"},
        {"tokenizer_config.json", "TikTokenTokenizer", "QWenTokenizer",
         "tokenizer_class is QWenTokenizer, expected TikTokenTokenizer"},
        {"tokenizer_config.json", "\"1000\"", "\"10x\"", "added_tokens_decoder: \"10x\" is no id"},
        {"tokenizer_config.json", "\"1000\"", "\"999\"", "id 999 is given twice"},
        {"tokenizer_config.json", "\"[BOS]\"", "7", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        char *tmp = tmp_tree_new();
        tmp_tree_copy(TIKTOKEN, tmp_tree_path(tmp, "t"));
        const char *dir = tmp_tree_path(tmp, "t");
        tmp_tree_replace(dir, cases[i].file, cases[i].old, cases[i].with);
        struct tokenizer *t = tokenizer_open(tmp_tree_path(dir, "tiktoken.model"), &e);
        if (!t != (cases[i].text != NULL) || (cases[i].text && !strstr(e.text, cases[i].text)))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, e.text, cases[i].text ? cases[i].text : "");
        tokenizer_free(t);
        tmp_tree_remove(tmp);
    }
}

/* ---- the token that starts a text ---- */

static void expect_bos(const char *post, int32_t bos)
{
    struct moeflux_err e = {0};
    json_t *root = tokenizer_build();
    json_object_set_new(root, "post_processor", json_loads(post, JSON_DECODE_ANY, NULL));
    struct tokenizer *t = tokenizer_build_open(root, &e);
    if (!t)
        fail_msg("%s: %s", post, e.text);
    assert_int_equal(tokenizer_bos(t), bos);
    assert_null(tokenizer_chat_template(t));
    tokenizer_free(t);
}

#define SPECIAL "{\"SpecialToken\": {\"id\": \"<end>\", \"type_id\": 0}}"
#define TEXT    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define IDS                                                                                                  \
    "\"special_tokens\": {\"<end>\": {\"id\": \"<end>\", \"ids\": [258], "                                   \
    "\"tokens\": [\"<end>\"]}}"

static void a_template_may_put_one_token_before_a_text(void **state)
{
    (void)state;
    expect_bos("null", -1);
    expect_bos("{\"type\": \"ByteLevel\"}", -1);
    expect_bos("{\"type\": \"TemplateProcessing\", \"single\": [" TEXT "], \"special_tokens\": {}}", -1);
    expect_bos("{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL ", " TEXT "], " IDS "}", 258);
    expect_bos("{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
               "{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL ", " TEXT "], " IDS "}]}",
               258);
}

static void other_post_processors_are_refused(void **state)
{
    static const struct {
        const char *post, *text;
    } cases[] = {
        {"{\"type\": \"BertProcessing\"}",
         "type \"BertProcessing\", expected ByteLevel or TemplateProcessing"},
        {"{\"type\": \"Sequence\"}", "processors is missing"},
        {"{\"type\": \"TemplateProcessing\"}", "single is missing"},
        {"{\"type\": \"TemplateProcessing\", \"single\": [7], " IDS "}", "single[0] is neither"},
        {"{\"type\": \"TemplateProcessing\", \"single\": [" TEXT ", " SPECIAL "], " IDS "}",
         "a token after the text"},
        {"{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL ", " SPECIAL ", " TEXT "], " IDS "}",
         "more than one token"},
        {"{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL "], \"special_tokens\": {}}",
         "special_tokens gives \"<end>\" no single id"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        json_t *root = tokenizer_build();
        json_object_set_new(root, "post_processor", json_loads(cases[i].post, 0, NULL));
        struct tokenizer *t = tokenizer_build_open(root, &e);
        if (t || !strstr(e.text, cases[i].text))
            fail_msg("%s: \"%s\", expected \"%s\"", cases[i].post, e.text, cases[i].text);
    }
}

/* A directory with a tokenizer whose template puts <end> first, and with `config`. */
static struct tokenizer *open_with_config(const char *dir, const char *config, struct moeflux_err *e)
{
    json_t *root = tokenizer_build();
    json_object_set_new(root, "post_processor",
                        json_loads("{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL ", " TEXT
                                   "], " IDS "}",
                                   0, NULL));
    tokenizer_build_added(root, "<s>", 300, false, true);
    char *text = json_dumps(root, 0);
    tmp_tree_write_text(dir, "tokenizer.json", text);
    tmp_tree_write_text(dir, "tokenizer_config.json", config);
    free(text);
    json_decref(root);
    *e = (struct moeflux_err){0};
    return tokenizer_open(tmp_tree_path(dir, "tokenizer.json"), e);
}

static void the_configuration_wins_over_the_post_processor(void **state)
{
    static const struct {
        const char *config;
        int32_t bos;
    } cases[] = {
        {"{}", 258},
        {"{\"bos_token\": \"<s>\"}", 258},
        /* What transformers writes for a length without limit */
        {"{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": \"<s>\"}", 258},
        {"{\"add_bos_token\": false, \"bos_token\": \"<s>\"}", -1},
        {"{\"add_bos_token\": true, \"bos_token\": \"<s>\"}", 300},
        {"{\"add_bos_token\": true, \"bos_token\": {\"__type\": \"AddedToken\", \"content\": \"<s>\"}}", 300},
    };
    (void)state;
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e;
        struct tokenizer *t = open_with_config(tmp, cases[i].config, &e);
        if (!t)
            fail_msg("%s: %s", cases[i].config, e.text);
        assert_int_equal(tokenizer_bos(t), cases[i].bos);
        tokenizer_free(t);
    }
    tmp_tree_remove(tmp);
}

static void a_configuration_that_cannot_be_followed_is_refused(void **state)
{
    static const struct {
        const char *config, *text;
    } cases[] = {
        {"[]", "tokenizer_config.json: expected a JSON object"},
        {"{", "tokenizer_config.json: line 1"},
        {"{\"add_bos_token\": 1}", "add_bos_token is not a boolean"},
        {"{\"add_bos_token\": true}", "bos_token is missing"},
        {"{\"add_bos_token\": true, \"bos_token\": \"<bos>\"}",
         "bos_token \"<bos>\" is not among the added tokens"},
    };
    (void)state;
    char *tmp = tmp_tree_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e;
        if (open_with_config(tmp, cases[i].config, &e) || !strstr(e.text, cases[i].text))
            fail_msg("%s: \"%s\", expected \"%s\"", cases[i].config, e.text, cases[i].text);
    }
    tmp_tree_remove(tmp);
}

static void the_chat_template_is_found_in_each_of_its_places(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct moeflux_err e;
    struct tokenizer *t = open_with_config(tmp, "{\"chat_template\": \"one\"}", &e);
    assert_string_equal(tokenizer_chat_template(t), "one");
    tokenizer_free(t);
    t = open_with_config(
        tmp,
        "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"x\"}, {\"name\": \"default\", "
        "\"template\": \"two\"}]}",
        &e);
    assert_string_equal(tokenizer_chat_template(t), "two");
    assert_null(tokenizer_tool_template(t));
    tokenizer_free(t);
    t = open_with_config(
        tmp,
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"one\"}, {\"name\": \"tool_use\", "
        "\"template\": \"two\"}]}",
        &e);
    assert_string_equal(tokenizer_chat_template(t), "one");
    assert_string_equal(tokenizer_tool_template(t), "two");
    tokenizer_free(t);
    tmp_tree_write_text(tmp, "chat_template.jinja", "three");
    t = open_with_config(tmp, "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"two\"}]}", &e);
    assert_string_equal(tokenizer_chat_template(t), "three");
    assert_null(tokenizer_tool_template(t));
    tokenizer_free(t);
    assert_int_equal(mkdir(tmp_tree_path(tmp, "additional_chat_templates"), 0777), 0);
    tmp_tree_write_text(tmp, "additional_chat_templates/tool_use.jinja", "four");
    t = open_with_config(tmp, "{\"chat_template\": \"one\"}", &e);
    assert_string_equal(tokenizer_chat_template(t), "three");
    assert_string_equal(tokenizer_tool_template(t), "four");
    tokenizer_free(t);
    tmp_tree_remove(tmp);
}

static const char *special(const struct tokenizer *t, const char *name)
{
    return json_string_value(json_object_get(tokenizer_special_texts(t), name));
}

static void the_special_tokens_texts_are_those_of_the_configuration(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct moeflux_err e;
    struct tokenizer *t =
        open_with_config(tmp, "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\"}", &e);
    assert_string_equal(special(t, "bos_token"), "<s>");
    assert_string_equal(special(t, "eos_token"), "</s>");
    assert_null(special(t, "pad_token"));
    tokenizer_free(t);
    /* What it leaves open stands in the older file. */
    tmp_tree_write_text(
        tmp, "special_tokens_map.json",
        "{\"bos_token\": \"other\", \"pad_token\": {\"content\": \"<pad>\"}, \"additional\": 3}");
    t = open_with_config(tmp, "{\"bos_token\": \"<s>\", \"eos_token\": null}", &e);
    assert_string_equal(special(t, "bos_token"), "<s>");
    assert_string_equal(special(t, "pad_token"), "<pad>");
    assert_null(special(t, "eos_token"));
    tokenizer_free(t);
    tmp_tree_write_text(tmp, "special_tokens_map.json", "{\"bos_token\": ");
    assert_null(open_with_config(tmp, "{}", &e));
    assert_non_null(strstr(e.text, "special_tokens_map.json"));
    tmp_tree_remove(tmp);
}

/* ---- GGUF's names of splits ---- */

/* Byte b in the byte alphabet. */
static void write_byte(unsigned b, char text[4])
{
    static unsigned n;
    bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
    n = b == 0 ? 0 : n;
    unsigned code = visible ? b : 0x100 + n++;
    if (code < 0x80)
        snprintf(text, 4, "%c", (char)code);
    else
        snprintf(text, 4, "%c%c", (char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f)));
}

/* A vocabulary of the bytes, of merged "12" and "\n\n", and of "xyz" without merges. */
static struct tokenizer *open_split(const char *pre)
{
    static char bytes[256][4];
    static const char *tokens[259], *const merges[] = {"1 2", "\xc4\x8a \xc4\x8a"};
    struct gguf_writer w = {0};
    struct moeflux_err e = {0};
    char *dir = tmp_tree_new();
    for (unsigned b = 0; b < 256; b++) {
        write_byte(b, bytes[b]);
        tokens[b] = bytes[b];
    }
    tokens[256] = "12";
    tokens[257] = "\xc4\x8a\xc4\x8a";
    tokens[258] = "xyz";
    gguf_writer_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_text(&w, "tokenizer.ggml.pre", pre);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, 259);
    gguf_writer_texts(&w, "tokenizer.ggml.merges", merges, 2);
    gguf_writer_finish(&w, dir, "x.gguf");
    struct tokenizer *t = tokenizer_open(tmp_tree_path(dir, "x.gguf"), &e);
    if (!t)
        fail_msg("%s", e.text);
    tmp_tree_remove(dir);
    return t;
}

static size_t n_ids(const struct tokenizer *t, const char *text)
{
    struct token_list ids = {0};
    struct moeflux_err e = {0};
    check_ok(tokenizer_encode(t, text, strlen(text), SPECIALS_AS_TEXT, &ids, NULL, &e), &e);
    size_t n = ids.n;
    token_list_free(&ids);
    return n;
}

static void each_name_of_a_split_cuts_as_its_tokenizer_does(void **state)
{
    static const struct {
        const char *pre;
        size_t digits, lines, whole, composed; /* tokens of "12", two line ends, "xyz", e and U+0301 */
    } cases[] = {
        {"qwen2", 2, 1, 3, 2},       {"qwen35", 2, 1, 3, 2},      {"deepseek-v3", 1, 1, 3, 3},
        {"joyai-llm", 1, 1, 3, 3},   {"kimi-k2", 1, 1, 1, 3},     {"glm4", 1, 1, 1, 3},
        {"glm5", 1, 1, 1, 3},        {"chatglm-bpe", 1, 1, 3, 3}, {"llama-bpe", 1, 1, 1, 3},
        {"minimax-m2", 1, 1, 3, 2},  {"gpt-4o", 1, 1, 1, 3},      {"bailingmoe", 2, 1, 3, 3},
        {"bailingmoe2", 2, 1, 3, 3}, {"solar-open", 2, 1, 3, 3},  {"tekken", 2, 1, 1, 3},
        {"pixtral", 2, 1, 1, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = open_split(cases[i].pre);
        if (n_ids(t, "12") != cases[i].digits || n_ids(t, "\n\n") != cases[i].lines ||
            n_ids(t, "xyz") != cases[i].whole || n_ids(t, "e\xcc\x81") != cases[i].composed)
            fail_msg("%s: %zu, %zu, %zu and %zu tokens", cases[i].pre, n_ids(t, "12"), n_ids(t, "\n\n"),
                     n_ids(t, "xyz"), n_ids(t, "e\xcc\x81"));
        tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_published_library),
        cmocka_unit_test(every_behaviour_of_a_split_is_obeyed),
        cmocka_unit_test(a_merge_that_makes_a_control_token_is_left_out),
        cmocka_unit_test(characters_of_newer_unicode_have_their_categories),
        cmocka_unit_test(a_tiktoken_vocabulary_gives_the_ids_of_the_published_library),
        cmocka_unit_test(a_bad_tiktoken_vocabulary_is_refused_by_its_line),
        cmocka_unit_test(a_template_may_put_one_token_before_a_text),
        cmocka_unit_test(other_post_processors_are_refused),
        cmocka_unit_test(the_configuration_wins_over_the_post_processor),
        cmocka_unit_test(a_configuration_that_cannot_be_followed_is_refused),
        cmocka_unit_test(the_chat_template_is_found_in_each_of_its_places),
        cmocka_unit_test(the_special_tokens_texts_are_those_of_the_configuration),
        cmocka_unit_test(each_name_of_a_split_cuts_as_its_tokenizer_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
