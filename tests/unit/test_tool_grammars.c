/* Grammars of calls: every text of a form's grammar is calls, and arguments fit the tool's schema.
 * suites: check fast asan */
#include "check.h"

#include <jansson.h>
#include <string.h>

#include "fuzz.h"
#include "heard_calls.h"
#include "tool_texts.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/token_trie.h"
#include "text/chat/tool_calls.h"

/* ---- grammars of calls ---- */

enum { N_IDS = 256, LENGTH = 400, MOST = 3000 };

/* Id 0 ends the text, the others are their bytes; those from GRAMMAR_FIRST_MARK on stand for marks. */
static bool byte_of(const void *ctx, int32_t id, struct token_text *out)
{
    static char bytes[N_IDS][2];
    (void)ctx;
    bytes[id][0] = (char)id;
    *out = (struct token_text){bytes[id], id > 0};
    return true;
}

/* The tags of a form that published vocabularies have as tokens. */
static struct grammar_marks marks_of(const struct tool_form *form)
{
    static const char *const tokens[] = {"<tool_call>",
                                         "</tool_call>",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "<minimax:tool_call>",
                                         "</minimax:tool_call>",
                                         "]<]minimax[>[",
                                         DSML,
                                         "<|tool_call>",
                                         "<tool_call|>",
                                         "<|\"|>",
                                         "<\uff5ctool\u2581calls\u2581begin\uff5c>",
                                         "<\uff5ctool\u2581calls\u2581end\uff5c>",
                                         "<\uff5ctool\u2581call\u2581begin\uff5c>",
                                         "<\uff5ctool\u2581call\u2581end\uff5c>",
                                         "<\uff5ctool\u2581sep\uff5c>",
                                         "<|tool_calls_section_begin|>",
                                         "<|tool_calls_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_end|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|open|>",
                                         "<|close|>",
                                         "<|sep|>"};
    struct grammar_marks m = {0};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (tool_form_has_tag(form, tokens[i], strlen(tokens[i]))) {
            m.text[m.n] = tokens[i];
            m.len[m.n++] = strlen(tokens[i]);
        }
    return m;
}

/* How often the text has one of the marks. */
static uint32_t count_marks(const struct grammar_marks *m, const struct str *text)
{
    uint32_t n = 0;
    for (size_t i = 0; i < text->len; i++)
        n += grammar_find_mark(m, text->data + i, text->len - i) < GRAMMAR_MAX_MARKS;
    return n;
}

/* The tag that ends a value in the template's form. */
static const char *value_end(const char *template)
{
    return strstr(template, "<arg_")       ? "</arg_value>"
           : strstr(template, "minimax:")  ? "</parameter>"
           : strstr(template, "<function") ? "\n</parameter>"
           : strstr(template, "<|open|>")  ? "<|close|>argument<|sep|>"
           : strstr(template, "' calls>")  ? "</" DSML " parameter>"
           : strstr(template, DSML)        ? "</" DSML "parameter>"
                                           : "<|\"|>";
}

/* The next byte of the tag, which has begun at the end of the text; 0: it has not, or must not go on. */
static unsigned char next_of_tag(const uint64_t *allowed, const struct str *text, const char *tag)
{
    for (size_t k = strlen(tag) - 1; k > 0; k--) {
        unsigned char c = (unsigned char)tag[k];
        if (memcmp(text->data + text->len - k, tag, k) == 0 && allowed[c / 64] >> c % 64 & 1)
            return c;
    }
    return 0;
}

/* One of the allowed ids; after a while those that lead to the end. */
static int32_t choose(const uint64_t *allowed, const struct str *text, const char *tag, struct fuzz *f)
{
    size_t len = text->len;
    unsigned char next = len > LENGTH ? next_of_tag(allowed, text, tag) : 0;
    if (next)
        return next;
    static const uint8_t closing[] = {0, '}', ']', '"', '/', '<', ',', '\n', '|'};
    int32_t ids[N_IDS];
    uint32_t n = 0;
    for (int32_t i = GRAMMAR_FIRST_MARK; len > LENGTH && i < N_IDS; i++)
        if (allowed[i / 64] >> i % 64 & 1)
            ids[n++] = i;
    if (n > 0)
        return ids[fuzz_below(f, n)];
    for (size_t i = 0; len > LENGTH && i < sizeof closing; i++)
        if (allowed[closing[i] / 64] >> closing[i] % 64 & 1)
            ids[n++] = closing[i];
    if (n > 0)
        return ids[ids[0] == 0 ? 0 : fuzz_below(f, n)];
    for (int32_t i = 0; i < N_IDS; i++)
        if (allowed[i / 64] >> i % 64 & 1)
            ids[n++] = i;
    assert_true(n > 0);
    return ids[fuzz_below(f, n)];
}

/* False: the text became too long. marks NULL: there are none. *n_marks: how many the text has. */
static bool walk_marked(struct constraint *c, const struct grammar_marks *marks, const char *tag,
                        struct fuzz *f, struct str *text, uint32_t *n_marks)
{
    struct moeflux_err e = {0};
    *n_marks = 0;
    check_ok(constraint_reset(c, &e), &e);
    str_clear(text);
    while (text->len < MOST) {
        const uint64_t *allowed;
        check_ok(constraint_mask(c, &allowed, &e), &e);
        int32_t id = choose(allowed, text, tag, f);
        if (id == 0)
            return true;
        check_ok(constraint_accept(c, id, &e), &e);
        if (id < GRAMMAR_FIRST_MARK) {
            str_add(text, (const char[]){(char)id}, 1);
            continue;
        }
        str_add(text, marks->text[id - GRAMMAR_FIRST_MARK], marks->len[id - GRAMMAR_FIRST_MARK]);
        ++*n_marks;
    }
    return false;
}

static bool walk(struct constraint *c, const char *tag, struct fuzz *f, struct str *text)
{
    uint32_t none;
    return walk_marked(c, NULL, tag, f, text, &none);
}

/* Every text of the grammar is calls and nothing else. marked: tags are tokens, and are not spelled. */
static uint32_t walk_all(const char *template, const char *name, bool marked, struct fuzz *f)
{
    const struct grammar_marks marks = marks_of(tool_form_find(template));
    static const int32_t end = 0;
    struct moeflux_err e = {0};
    struct grammar *g;
    struct token_trie *trie;
    struct constraint *c;
    struct str gbnf = {0}, text = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    uint32_t n = 0, n_marks;
    const char *tag = value_end(template);
    /* The letters of a mark may be in a JSON string. The walk does not look for them. */
    if (marked && count_marks(&marks, &(struct str){.data = (char *)(uintptr_t)tag, .len = strlen(tag)}))
        tag = "-";
    check_ok(tool_form_grammar(tool_form_find(template),
                               &(struct tool_choice){.tools = tools, .name = name, .where = "a test"}, &gbnf,
                               &e),
             &e);
    /* Gemma's strings and names have none of JSON's quotes. */
    assert_true(strcmp(template, GEMMA) != 0 || !strstr(str_text(&gbnf), "::= \"\\\"\""));
    check_ok(grammar_compile_marked(&g, str_text(&gbnf), gbnf.len, "tools", marked ? &marks : NULL, &e), &e);
    check_ok(token_trie_new(&trie, &(struct token_source){N_IDS, byte_of, NULL}, &e), &e);
    check_ok(constraint_new(&c, g, trie, &end, 1, &e), &e);
    for (int i = 0; i < 40; i++) {
        if (!walk_marked(c, &marks, tag, f, &text, &n_marks))
            continue;
        if (marked && (n_marks == 0 || n_marks != count_marks(&marks, &text)))
            fail_msg("%u of %u marks are tokens: %s", n_marks, count_marks(&marks, &text), str_text(&text));
        struct heard h = heard_of(template, str_text(&text), f, 0);
        const char *said = str_text(&h.all);
        if (said[0] != '[' || said[h.all.len - 1] != ']' || strstr(said, "tool_call>"))
            fail_msg("%s\nis %s", str_text(&text), said);
        assert_true(!name || (strncmp(said, "[put|", 5) == 0 && h.n_calls == 1));
        assert_true(strcmp(template, GLM47) != 0 || !strstr(str_text(&text), ">\n<"));
        if (strcmp(template, XML) == 0 && strncmp(said, "[put|", 5) == 0)
            assert_true(strncmp(said, "[put|{\"path\": \"", 15) == 0 && strstr(said, ", \"n\": "));
        str_free(&h.all);
        n++;
    }
    constraint_free(c);
    token_trie_free(trie);
    json_decref(tools);
    str_free(&gbnf);
    str_free(&text);
    return n;
}

static void every_text_of_a_forms_grammar_is_calls_and_nothing_else(void **state)
{
    static const char *const templates[] = {
        HERMES, XML,    DEEPSEEK, DEEPSEEK "```json", KIMI, GLM, GLM47, MINIMAX, NESTED, GEMMA, DSML32,
        DSML4,  DSML41, KIMI3};
    struct fuzz f = {11};
    (void)state;
    assert_int_equal(marks_of(tool_form_find(GLM)).n, 6);
    for (size_t i = 0; i < 4 * sizeof templates / sizeof *templates; i++)
        assert_true(walk_all(templates[i / 4], i % 2 ? "put" : NULL, i / 2 % 2, &f) > 10);
}

/* The tool has the name of a tag, a value that it may have is one, and so is a member's name. */
static void letters_that_look_like_a_tag_are_no_tag(void **state)
{
    static const char LIKE[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"<tool_call>\", \"parameters\": "
        "{\"properties\": {\"</tool_call>\": {\"const\": \"<tool_call>\"}}, "
        "\"additionalProperties\": false, \"required\": [\"</tool_call>\"]}}}]";
    static const int32_t end = 0;
    const struct tool_form *form = tool_form_find(HERMES);
    const struct grammar_marks marks = marks_of(form);
    struct moeflux_err e = {0};
    struct grammar *g;
    struct token_trie *trie;
    struct constraint *c;
    struct fuzz f = {3};
    struct str gbnf = {0}, text = {0};
    uint32_t n_marks;
    json_t *tools = json_loads(LIKE, 0, NULL);
    const struct tool_choice choice = {.tools = tools, .name = "<tool_call>", .where = "a test"};
    (void)state;
    check_ok(tool_form_grammar(form, &choice, &gbnf, &e), &e);
    check_ok(grammar_compile_marked(&g, str_text(&gbnf), gbnf.len, "tools", &marks, &e), &e);
    check_ok(token_trie_new(&trie, &(struct token_source){N_IDS, byte_of, NULL}, &e), &e);
    check_ok(constraint_new(&c, g, trie, &end, 1, &e), &e);
    while (!walk_marked(c, &marks, "}", &f, &text, &n_marks))
        ;
    assert_int_equal(n_marks, 2);
    assert_int_equal(count_marks(&marks, &text), 5);
    /* A text that is there already has the tags as letters. */
    check_ok(constraint_reset(c, &e), &e);
    check_ok(constraint_accept_bytes(c, str_text(&text), text.len, &e), &e);
    assert_true(constraint_may_end(c));
    constraint_free(c);
    token_trie_free(trie);
    json_decref(tools);
    str_free(&gbnf);
    str_free(&text);
}

/* Whether the grammar of calls of f(a: string) has this text. */
static bool allows(const char *template, const char *text)
{
    static const int32_t end = 0;
    struct moeflux_err e = {0};
    struct grammar *g;
    struct token_trie *trie;
    struct constraint *c;
    struct str gbnf = {0};
    json_t *tools = json_loads(
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
        "{\"a\": {\"type\": \"string\"}}, \"required\": [\"a\"]}}}]",
        0, NULL);
    const struct tool_choice choice = {.tools = tools, .name = "f", .where = "a test"};
    check_ok(tool_form_grammar(tool_form_find(template), &choice, &gbnf, &e), &e);
    check_ok(grammar_compile(&g, str_text(&gbnf), gbnf.len, "tools", &e), &e);
    check_ok(token_trie_new(&trie, &(struct token_source){N_IDS, byte_of, NULL}, &e), &e);
    check_ok(constraint_new(&c, g, trie, &end, 1, &e), &e);
    bool has = constraint_accept_bytes(c, text, strlen(text), &e) == 0;
    constraint_free(c);
    token_trie_free(trie);
    json_decref(tools);
    str_free(&gbnf);
    return has;
}

static void a_forced_text_may_contain_other_tags(void **state)
{
    static const char *const texts[] = {"</b>",        "<p>x < y</p>\n", "</",
                                        "</</p>",      "<<//>",          "</paramet>",
                                        "</function>", "</arg_values>",  "<</tool_call>"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
                 texts[i]);
        assert_true(allows(XML, text));
        snprintf(text, sizeof text, "<tool_call>f<arg_key>a</arg_key><arg_value>%s </arg_value></tool_call>",
                 texts[i]);
        assert_true(allows(GLM47, text));
        snprintf(text, sizeof text, "<|tool_call>call:f{a:<|\"|>%s <|\"|>}<tool_call|>", texts[i]);
        assert_true(allows(GEMMA, text));
    }
    assert_false(allows(XML, "<tool_call>\n<function=f>\n<parameter=a>\nx</parameter>y"));
    assert_false(allows(XML, "<tool_call>\n<function=f>\n<parameter=a>\n<</parameter>"));
    assert_false(allows(XML, "<tool_call>\n<function=f>\n<parameter=a>\n\n<parameter=a>\n"));
    assert_false(allows(GEMMA, "<|tool_call>call:f{a:<|\"|>x<|\"|>y"));
}

/* ---- arguments of a schema ---- */

static const char STRICT[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"put\", \"parameters\": {\"type\": \"object\", "
    "\"$defs\": {\"mode\": {\"enum\": [\"read\", \"write\", \"a \\\"b\\\"\"]}, \"box\": {\"type\": "
    "\"object\", "
    "\"properties\": {\"w\": {\"type\": \"integer\", \"minimum\": 2, \"maximum\": 40}}, \"required\": "
    "[\"w\"], "
    "\"additionalProperties\": false}}, \"properties\": {"
    "\"mode\": {\"$ref\": \"#/$defs/mode\"}, \"n\": {\"type\": \"integer\", \"minimum\": -3, \"maximum\": "
    "12}, "
    "\"box\": {\"$ref\": \"#/$defs/box\"}, \"code\": {\"type\": \"string\", \"pattern\": "
    "\"^[a-c\\\"]{2,3}$\"}, "
    "\"short\": {\"type\": \"string\", \"maxLength\": 2}, \"maybe\": {\"anyOf\": [{\"type\": \"string\", "
    "\"minLength\": 5, \"maxLength\": 6}, {\"type\": \"null\"}]}, \"day\": {\"type\": \"string\", "
    "\"format\": "
    "\"date\"}, \"list\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}}, "
    "\"required\": [\"mode\", \"n\", \"box\"], \"additionalProperties\": false}}}]";

static size_t n_characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void check_strict(const json_t *a)
{
    static const char *const modes[] = {"read", "write", "a \"b\""};
    const char *key, *mode = json_string_value(json_object_get(a, "mode"));
    const json_t *w = json_object_get(json_object_get(a, "box"), "w"), *n = json_object_get(a, "n");
    json_t *v;
    size_t i = 0;
    assert_non_null(mode);
    while (i < 3 && strcmp(modes[i], mode) != 0)
        i++;
    assert_in_range(i, 0, 2);
    assert_true(json_is_integer(n) && json_integer_value(n) >= -3 && json_integer_value(n) <= 12);
    assert_true(json_is_integer(w) && json_integer_value(w) >= 2 && json_integer_value(w) <= 40);
    assert_int_equal(json_object_size(json_object_get(a, "box")), 1);
    json_object_foreach((json_t *)(uintptr_t)a, key, v)
    {
        const char *text = json_string_value(v);
        size_t len = text ? n_characters(text) : 0;
        if (strcmp(key, "code") == 0)
            assert_true(text && (len == 2 || len == 3) && strspn(text, "abc\"") == len);
        else if (strcmp(key, "short") == 0)
            assert_true(text && len <= 2);
        else if (strcmp(key, "maybe") == 0)
            assert_true(json_is_null(v) || (text && (len == 5 || len == 6)));
        else if (strcmp(key, "day") == 0)
            assert_true(text && len == 10 && text[4] == '-' && text[7] == '-');
        else if (strcmp(key, "list") == 0)
            assert_true(json_is_array(v) && json_array_size(v) <= 2);
        else
            assert_true(strcmp(key, "mode") == 0 || strcmp(key, "n") == 0 || strcmp(key, "box") == 0);
    }
}

/* The arguments of a call's text, read as an answer's are. */
static void check_call(const char *template, const json_t *tools, const struct str *text)
{
    struct moeflux_err e = {0};
    struct heard h = {0};
    struct tool_calls t;
    tool_calls_init(&t, tool_form_find(template), tools, (struct tool_sink){heard_event, &h});
    check_ok(tool_calls_push(&t, text->data, text->len, &e), &e);
    check_ok(tool_calls_end(&t, &e), &e);
    const char *said = str_text(&h.all);
    if (strncmp(said, "[put|", 5) != 0 || said[h.all.len - 1] != ']')
        fail_msg("%s\nis %s", str_text(text), said);
    json_t *arguments = json_loadb(said + 5, h.all.len - 6, 0, NULL);
    assert_non_null(arguments);
    check_strict(arguments);
    json_decref(arguments);
    tool_calls_free(&t);
    str_free(&h.all);
}

static void arguments_of_asked_calls_fit_the_tools_schema(void **state)
{
    static const char *const templates[] = {HERMES, XML,    DEEPSEEK, DEEPSEEK "```json", DSML4, DSML41,
                                            GEMMA,  NESTED, KIMI3};
    static const int32_t end = 0;
    struct moeflux_err e = {0};
    struct fuzz f = {5};
    struct token_trie *trie;
    json_t *tools = json_loads(STRICT, 0, NULL);
    (void)state;
    assert_non_null(tools);
    check_ok(token_trie_new(&trie, &(struct token_source){N_IDS, byte_of, NULL}, &e), &e);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct grammar *g;
        struct constraint *c;
        struct str gbnf = {0}, text = {0};
        uint32_t n = 0;
        const struct tool_choice choice = {.tools = tools, .name = "put", .where = "a test"};
        check_ok(tool_form_grammar(tool_form_find(templates[i]), &choice, &gbnf, &e), &e);
        check_ok(grammar_compile(&g, str_text(&gbnf), gbnf.len, "tools", &e), &e);
        check_ok(constraint_new(&c, g, trie, &end, 1, &e), &e);
        for (int k = 0; k < 60; k++)
            if (walk(c, value_end(templates[i]), &f, &text)) {
                check_call(templates[i], tools, &text);
                n++;
            }
        assert_true(n > 40);
        constraint_free(c);
        str_free(&gbnf);
        str_free(&text);
    }
    token_trie_free(trie);
    json_decref(tools);
}

static void what_a_tools_schema_cannot_be_held_to_is_refused_by_name(void **state)
{
    static const struct {
        const char *template, *parameters, *words;
    } cases[] = {
        {HERMES, "{\"properties\": {\"a\": {\"not\": {}}}}",
         "a test: tools: f: parameters: #/properties/a/\"not\": this keyword is not supported"},
        {XML, "{\"properties\": {\"a\": {\"type\": \"number\", \"not\": {}}}}",
         "a test: tools: f: parameters: #/properties/a/\"not\": this keyword"},
        {XML, "{\"properties\": {\"a\": {\"type\": \"string\", \"if\": {}}}}",
         "#/properties/a/\"if\": this keyword"},
        {XML, "{\"properties\": {\"a\": {\"enum\": [\"<\"]}}}",
         "#/properties/a/enum: expected a text without <"},
        {XML, "{\"anyOf\": [{}]}",
         "a test: tools: f: parameters: #/\"anyOf\": this keyword is not supported in calls"},
        {XML, "{\"required\": [\"a\"]}", "#/required: names a parameter that properties does not have"},
        {NESTED, "{\"properties\": {\"a b\": {}}}", "#/properties/a b: expected a name without white space"},
        {NESTED, "{\"anyOf\": [{}]}", "#/\"anyOf\": this keyword is not supported in calls"},
        {GEMMA, "{\"properties\": {\"a:b\": {}}}", "#/properties/a:b: expected a name without white space"},
        {GEMMA, "{\"properties\": {\"a\": {\"enum\": [\"<\"]}}}",
         "#/properties/a: expected a text without <"},
        {DEEPSEEK, "{\"dependentRequired\": {}}", "#/\"dependentRequired\": this keyword"},
        {DEEPSEEK, "{\"type\": \"array\"}", "a test: tools: f: parameters: expected the type object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_err e = {0};
        struct str out = {0};
        json_error_t why;
        json_t *tools = json_pack_ex(&why, 0, "[{s: s, s: {s: s, s: o}}]", "type", "function", "function",
                                     "name", "f", "parameters", json_loads(cases[i].parameters, 0, NULL));
        assert_non_null(tools);
        const struct tool_choice choice = {.tools = tools, .where = "a test"};
        assert_true(tool_form_grammar(tool_form_find(cases[i].template), &choice, &out, &e) < 0);
        if (!strstr(e.text, cases[i].words))
            fail_msg("%s\nis not %s", e.text, cases[i].words);
        json_decref(tools);
        str_free(&out);
    }
}

/* The schema of f cannot be held to; g can be called as well. */
static void a_refused_schema_of_a_tool_that_is_not_forced_leaves_its_arguments_free(void **state)
{
    static const char FREE[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{"
        "\"type\":"
        "\"string\"},\"n\":{\"type\":\"integer\",\"not\":{\"const\":3}}},\"required\":[\"n\"]}}},{\"type\":"
        "\"function\",\"function\":{\"name\":\"g\",\"parameters\":null}}]";
    static const char *const texts[] = {
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\":[4]}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=n>\n4\n</parameter>\n</function>\n</tool_call>"};
    static const char *const forms[] = {HERMES, HERMES, XML, GEMMA, DEEPSEEK};
    static const int32_t end = 0;
    struct moeflux_err e = {0};
    struct token_trie *trie;
    json_t *tools = json_loads(FREE, 0, NULL);
    (void)state;
    check_ok(token_trie_new(&trie, &(struct token_source){N_IDS, byte_of, NULL}, &e), &e);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct grammar *g;
        struct constraint *c;
        struct str gbnf = {0};
        struct tool_choice choice = {.tools = tools, .where = "a test"};
        check_ok(tool_form_grammar(tool_form_find(forms[i]), &choice, &gbnf, &e), &e);
        check_ok(grammar_compile(&g, str_text(&gbnf), gbnf.len, "tools", &e), &e);
        check_ok(constraint_new(&c, g, trie, &end, 1, &e), &e);
        if (i < sizeof texts / sizeof *texts) {
            check_ok(constraint_accept_bytes(c, texts[i], strlen(texts[i]), &e), &e);
            assert_true(constraint_may_end(c));
        }
        constraint_free(c);
        str_clear(&gbnf);
        choice.name = "f";
        assert_true(tool_form_grammar(tool_form_find(forms[i]), &choice, &gbnf, &e) < 0);
        str_free(&gbnf);
    }
    token_trie_free(trie);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_of_a_forms_grammar_is_calls_and_nothing_else),
        cmocka_unit_test(letters_that_look_like_a_tag_are_no_tag),
        cmocka_unit_test(a_forced_text_may_contain_other_tags),
        cmocka_unit_test(arguments_of_asked_calls_fit_the_tools_schema),
        cmocka_unit_test(what_a_tools_schema_cannot_be_held_to_is_refused_by_name),
        cmocka_unit_test(a_refused_schema_of_a_tool_that_is_not_forced_leaves_its_arguments_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
