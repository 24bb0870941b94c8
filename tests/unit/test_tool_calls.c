/* Calls of tools, separated from the text of an answer: the forms of the families, whole, in pieces, broken.
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

/* The same for every way of cutting it. */
static void expect(const char *template, const char *text, const char *expected)
{
    struct fuzz f = {3};
    for (size_t most = 0; most < 12; most++) {
        struct heard h = heard_of(template, text, &f, most);
        if (strcmp(str_text(&h.all), expected) != 0)
            fail_msg("in pieces of %zu: %s\nis %s\nexpected %s", most, text, str_text(&h.all), expected);
        str_free(&h.all);
    }
}

static void calls_of_hermes_and_qwen3_are_found(void **state)
{
    (void)state;
    expect(HERMES, "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"n\": 1}}\n</tool_call>",
           "[put|{\"n\": 1}]");
    expect(HERMES,
           "I look.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": "
           "\"}\\\"</tool_call>\"}}\n</tool_call>\n"
           "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>\n",
           "I look.[a|{\"x\": \"}\\\"</tool_call>\"}][b|{}]");
    /* Other orders and kinds of arguments. */
    expect(HERMES, "<tool_call>{\"arguments\": {\"n\": [1, 2]}, \"name\": \"put\"}</tool_call>",
           "[put|{\"n\": [1, 2]}]");
    expect(HERMES, "<tool_call>{\"name\": \"put\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>.",
           "[put|{\"n\": 1}].");
    expect(HERMES, "<tool_call>{\"name\": \"now\"}</tool_call>", "[now|{}]");
    /* The object is whole where the answer ends. */
    expect(HERMES, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}", "[now|{}]");
    expect(HERMES, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool", "[now|{}]\n</tool");
}

static void calls_of_qwen3_coder_and_qwen35_are_found(void **state)
{
    (void)state;
    expect(XML,
           "<tool_call>\n<function=put>\n<parameter=path>\na "
           "\"b\"\n\tc\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
           "</function>\n</tool_call>",
           "[put|{\"path\": \"a \\\"b\\\"\\n\\tc\", \"n\": 12}]");
    expect(XML,
           "Now.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=put></"
           "function></tool_call>",
           "Now.[now|{}][put|{}]");
    expect(XML, "<tool_call><function=put><parameter=path></parameter></function></tool_call>",
           "[put|{\"path\": \"\"}]");
}

/* Reads the text in two pieces, for each place between two bytes. */
static void expect_cut(const char *template, const char *text, const char *expected)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct moeflux_err e = {0};
        struct heard h = {0};
        struct tool_calls t;
        json_t *tools = json_loads(TOOLS, 0, NULL);
        tool_calls_init(&t, tool_form_find(template), tools, (struct tool_sink){heard_event, &h});
        check_ok(tool_calls_push(&t, text, cut, &e), &e);
        check_ok(tool_calls_push(&t, text + cut, strlen(text) - cut, &e), &e);
        check_ok(tool_calls_end(&t, &e), &e);
        if (strcmp(str_text(&h.all), expected) != 0)
            fail_msg("cut at %zu: %s\nis %s\nexpected %s", cut, text, str_text(&h.all), expected);
        tool_calls_free(&t);
        json_decref(tools);
        str_free(&h.all);
    }
}

/* MiMo-V2-Flash writes Qwen3-Coder's form without line ends around values. */
static void values_need_no_line_ends(void **state)
{
    static const char *const cases[][2] = {
        {"<tool_call>\n<function=put>\n<parameter=path>a/b</parameter>\n<parameter=n>12</parameter>\n</"
         "function>\n"
         "</tool_call>",
         "[put|{\"path\": \"a/b\", \"n\": 12}]"},
        {"I look.<tool_call><function=put><parameter=deep>{\"a\": "
         "[1]}</parameter><parameter=path>x\n\ny</parameter>"
         "</function></tool_call><tool_call><function=now></function></tool_call>",
         "I look.[put|{\"deep\": {\"a\": [1]}, \"path\": \"x\\n\\ny\"}][now|{}]"},
        {"<tool_call>\n<function=put>\n<parameter=path></parameter>\n<parameter=on>true</parameter>\n</"
         "function>\n"
         "</tool_call>\n<tool_call>\n<function=put>\n<parameter=path>if a < b:\n  "
         "c</p></parameter>\n</function>\n"
         "</tool_call>",
         "[put|{\"path\": \"\", \"on\": true}][put|{\"path\": \"if a < b:\\n  c</p>\"}]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(XML, cases[i][0], cases[i][1]);
        expect_cut(XML, cases[i][0], cases[i][1]);
    }
}

static void values_become_what_the_schema_says(void **state)
{
    static const char *const cases[][3] = {
        {"path", "12", "\"12\""},
        {"path", "null", "\"null\""},
        {"path", "\\u0041", "\"\\\\u0041\""},
        {"n", "-3", "-3"},
        {"n", "many", "\"many\""},
        {"n", "", "\"\""},
        {"on", "True", "true"},
        {"on", "false", "false"},
        {"on", "None", "null"},
        {"deep", "{\"a\": [1]}", "{\"a\": [1]}"},
        {"deep", "{\"a\": [1}", "\"{\\\"a\\\": [1}\""},
        {"maybe", "null", "null"},
        {"maybe", "12", "\"12\""},
        {"either", "None", "null"},
        {"either", "true", "\"true\""},
        {"unknown", "[1]", "\"[1]\""},
        {"any", "42", "42"},
        {"any", "{\"a\": 1}", "{\"a\": 1}"},
        {"any", "{a", "\"{a\""},
        {"any", "4.2", "\"4.2\""},
        {"any", "[1]", "\"[1]\""},
        {"any", "null", "\"null\""},
        {"any", "\"a\"", "\"\\\"a\\\"\""},
        {"path", "a</param", "\"a</param\""},
        {"path", "\n\nx\n", "\"\\n\\nx\\n\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], expected[128];
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=put>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>",
                 cases[i][0], cases[i][1]);
        snprintf(expected, sizeof expected, "[put|{\"%s\": %s}]", cases[i][0], cases[i][2]);
        expect(XML, text, expected);
    }
}

static void calls_of_deepseek_are_found(void **state)
{
    (void)state;
    expect(DEEPSEEK, BEGIN_ALL BEGIN "function" SEP "put\n```json\n{\"n\": 1}\n```" END END_ALL,
           "[put|{\"n\": 1}]");
    expect(DEEPSEEK,
           "Wait." BEGIN_ALL BEGIN "function" SEP "a\n```json\n{\"x\": \"```\"}\n```" END "\n" BEGIN
           "function" SEP "b\n```json\n{}\n```" END END_ALL,
           "Wait.[a|{\"x\": \"```\"}][b|{}]");
    expect(DEEPSEEK, BEGIN_ALL BEGIN "put" SEP "{\"n\": 1}" END BEGIN "now" SEP "{}" END END_ALL,
           "[put|{\"n\": 1}][now|{}]");
    expect(DEEPSEEK, BEGIN "now" SEP "{}" END, "[now|{}]");
}

static void calls_of_kimi_k2_are_found(void **state)
{
#define KIMI_ALL(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
#define KIMI_CALL(id, arguments)                                                                             \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" arguments "<|tool_call_end|>"
    (void)state;
    expect(KIMI, KIMI_ALL(KIMI_CALL("functions.put:0", "{\"n\": 1}")), "[put|{\"n\": 1}]");
    expect(KIMI, "I look." KIMI_ALL(KIMI_CALL("functions.a.b:0", "{}") KIMI_CALL("functions.now:12", " {}")),
           "I look.[a.b|{}][now|{}]");
    expect(KIMI, KIMI_ALL(KIMI_CALL("now", "{}")), "[now|{}]");
    expect(KIMI, KIMI_ALL(KIMI_CALL("a:b", "{}")), "[a:b|{}]");
    expect(KIMI, KIMI_CALL("functions.now:3", "{\"a\": \"<|tool_call_end|>\"}"),
           "[now|{\"a\": \"<|tool_call_end|>\"}]");
    expect(KIMI, KIMI_ALL(KIMI_CALL("functions.:0", "{}")), KIMI_ALL(KIMI_CALL("functions.:0", "{}")));
    expect(KIMI, KIMI_ALL(KIMI_CALL("functions.put:0", "[1]")),
           KIMI_ALL(KIMI_CALL("functions.put:0", "[1]")));
    expect(KIMI, "<|tool_call_begin|>functions.put:0", "<|tool_call_begin|>functions.put:0");
}

static void calls_of_glm_are_found(void **state)
{
    (void)state;
    expect(GLM,
           "<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>a \"b\"\n\tc</arg_value>\n"
           "<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
           "[put|{\"path\": \"a \\\"b\\\"\\n\\tc\", \"n\": 12}]");
    expect(GLM,
           "So.\n<tool_call>now\n</tool_call>\n<tool_call>put\n<arg_key>on</arg_key><arg_value>True</"
           "arg_value></tool_call>",
           "So.[now|{}][put|{\"on\": true}]");
    /* GLM-4.7 writes no line ends. */
    expect(GLM47,
           "<tool_call>put<arg_key>path</arg_key><arg_value>a\nb</arg_value><arg_key>n</arg_key>"
           "<arg_value>12</arg_value></tool_call><tool_call>now</tool_call>",
           "[put|{\"path\": \"a\\nb\", \"n\": 12}][now|{}]");
    /* What is written on lines of its own keeps them. */
    expect(GLM, "<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>\nx\n</arg_value>\n</tool_call>",
           "[put|{\"path\": \"\\nx\\n\"}]");
    expect(GLM, "<tool_call>\n</tool_call>", "<tool_call>\n</tool_call>");
    expect(GLM, "<tool_call>put\n<arg_key>n</arg_key>\n12</tool_call>",
           "[put|{!<tool_call>put\n<arg_key>n</arg_key>\n12</tool_call>");
    /* Ling's. */
    expect(GLM,
           "<tool_call>put<arg_key>path</arg_key>\n<arg_value>a</arg_value><arg_key>n</arg_key>\n"
           "<arg_value>1</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
           "[put|{\"path\": \"a\", \"n\": 1}][now|{}]");
}

static void calls_of_minimax_are_found(void **state)
{
    (void)state;
    expect(MINIMAX,
           "<minimax:tool_call>\n<invoke name=\"put\">\n<parameter name=\"path\">a <b></parameter>\n"
           "<parameter name=\"deep\">{\"a\": [1]}</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n"
           "</minimax:tool_call>",
           "[put|{\"path\": \"a <b>\", \"deep\": {\"a\": [1]}}][now|{}]");
    expect(MINIMAX, "<minimax:tool_call><invoke name=\"now\"></invoke></minimax:tool_call> Done.",
           "[now|{}] Done.");
    expect(MINIMAX, "<minimax:tool_call>\nnothing", "<minimax:tool_call>\nnothing");
    expect(MINIMAX, "<invoke name=\"\"></invoke>", "<invoke name=\"\"></invoke>");
}

#define K3(name, rest)                                                                                       \
    "<|open|>tools<|sep|><|open|>call tool=\"" name "\" index=\"1\"<|sep|>" rest                             \
    "<|close|>call<|sep|><|close|>tools<|sep|>"
#define K3_VALUE(key, type, value)                                                                           \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" value "<|close|>argument<|sep|>"

static void calls_of_kimi_k3_are_found(void **state)
{
    (void)state;
    expect(KIMI3, "I look." K3("put", K3_VALUE("path", "string", "a <b>\n12") K3_VALUE("n", "number", "12")),
           "I look.[put|{\"path\": \"a <b>\\n12\", \"n\": 12}]");
    /* The type is that of the value, whatever the schema says. */
    expect(KIMI3, K3("put", K3_VALUE("n", "string", "12") K3_VALUE("deep", "object", "{\"a\": [1]}")),
           "[put|{\"n\": \"12\", \"deep\": {\"a\": [1]}}]");
    expect(KIMI3, K3("now", ""), "[now|{}]");
    expect(KIMI3, K3("a&amp;b", K3_VALUE("&amp;quot;", "null", "null")), "[a&b|{\"&quot;\": null}]");
    expect(KIMI3, "<|open|>tools<|sep|>nothing", "<|open|>tools<|sep|>nothing");
    expect(KIMI3, "<|open|>call tool=\"put\" index=\"1\"<|sep|><|open|>argument key=\"path\"<|sep|>1",
           "[put|{\"path\": \"1~");
}

#define M        "]<]minimax[>["
#define CALLS(x) M "<tool_call>\n" x "\n" M "</tool_call>"
#define CALL(x)  CALLS(M "<invoke name=\"put\">" x M "</invoke>")
#define P(k, v)  M "<" k ">" v M "</" k ">"

static void calls_of_minimax_m3_are_found(void **state)
{
    (void)state;
    expect(NESTED, CALL(P("path", "a <b>\n</path> \"c\"") P("n", "-14")),
           "[put|{\"path\": \"a <b>\\n</path> \\\"c\\\"\", \"n\": -14}]");
    expect(NESTED,
           CALLS(M "<invoke name=\"now\">" M "</invoke>\n" M "<invoke name=\"put\">" P("on", "true") M
                 "</invoke>"),
           "[now|{}][put|{\"on\": true}]");
    expect(NESTED, "I look.\n\n" CALL(P("n", "1")) "\n", "I look.[put|{\"n\": 1}]");
    /* Objects and lists, to any depth; values that no schema names are strings. */
    expect(NESTED,
           CALL(P("deep", P("a", P("item", "x") P("item", P("k", "1"))) P("b", P("item", "y") "\n"))
                    P("n", "2")),
           "[put|{\"deep\": {\"a\": [\"x\", {\"k\": \"1\"}], \"b\": [\"y\"]}, \"n\": 2}]");
    expect(NESTED, CALL(P("rows", P("item", P("item", "1") P("item", "2")) P("item", ""))),
           "[put|{\"rows\": [[1, 2], []]}]");
    expect(NESTED, CALL(P("box", P("item", "3") P("tags", ""))),
           "[put|{\"box\": {\"item\": 3, \"tags\": []}}]");
    expect(NESTED, CALL(P("box", "") P("path", "")), "[put|{\"box\": {}, \"path\": \"\"}]");
    expect(NESTED, CALL(P("other", "a") P("more", P("x", "b"))),
           "[put|{\"other\": \"a\", \"more\": {\"x\": \"b\"}}]");
    /* A JSON text in place of elements; null where it fits. */
    expect(NESTED, CALL(P("box", " {\"item\": 3}\n") P("rows", "[[1]]") P("maybe", "null") P("path", "null")),
           "[put|{\"box\": {\"item\": 3}, \"rows\": [[1]], \"maybe\": null, \"path\": \"null\"}]");
    /* A string contains other elements. */
    expect(NESTED, CALL(P("path", "x" M "<y>")), "[put|{\"path\": \"x" M "<y>\"}]");
    expect(NESTED, CALL(P("path", P("a", "b"))), "[put|{\"path\": \"" P("a", "b") "\"}]");
    /* The answer ends without the last tags. */
    expect(NESTED, M "<tool_call>\n" M "<invoke name=\"put\">" P("n", "1") M "</invoke>", "[put|{\"n\": 1}]");
}

static void what_is_no_call_of_minimax_m3_is_text(void **state)
{
    static const char *const broken[] = {
        M,
        M "<tool_call>",
        M "<tool_call>\n" M "<invoke name=\"\">",
        "<tool_call>{\"name\": \"now\"}</tool_call>",
        M "<tool_call>" M "<invoke>",
        "<invoke name=\"put\"></invoke>",
    };
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        expect(NESTED, broken[i], broken[i]);
#define OPEN M "<tool_call>" M "<invoke name=\"put\">"
    static const struct {
        const char *text, *said;
    } cases[] = {
        {OPEN "x", "[put|{!" OPEN "x"},
        {OPEN M "</x>", "[put|{!" OPEN M "</x>"},
        {OPEN M "<n>1" M "</m>" M "</invoke>", "[put|{\"n\": ~"},
        {OPEN M "<rows>" P("item", "") P("x", ""),
         "[put|{\"rows\": [[]!" OPEN M "<rows>" P("item", "") P("x", "")},
        {OPEN M "<path>ab" M "</pa", "[put|{\"path\": \"ab~"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(NESTED, cases[i].text, cases[i].said);
}

static void calls_in_dsml_are_found(void **state)
{
    (void)state;
    expect(DSML32,
           "I look.\n\n<" DSML "function_calls>\n<" DSML "invoke name=\"put\">\n<" DSML
           "parameter name=\"path\" string=\"true\">a <b>\n12</" DSML "parameter>\n<" DSML
           "parameter name=\"n\" string=\"true\">12</" DSML "parameter>\n<" DSML
           "parameter name=\"deep\" string=\"false\">{\"a\": [1]}</" DSML "parameter>\n</" DSML
           "invoke>\n<" DSML "invoke name=\"now\">\n</" DSML "invoke>\n</" DSML "function_calls>",
           "I look.[put|{\"path\": \"a <b>\\n12\", \"n\": \"12\", \"deep\": {\"a\": [1]}}][now|{}]");
    expect(DSML4,
           "<" DSML "tool_calls>\n<" DSML "invoke name=\"now\">\n\n</" DSML "invoke>\n</" DSML "tool_calls>",
           "[now|{}]");
    expect(DSML41,
           "<" DSML " calls>\n<" DSML " invoke name=\"put\">\n<" DSML
           " parameter name=\"path\" string=\"true\">a</" DSML " parameter>\n<" DSML
           " parameter name=\"n\" string=\"false\">12</" DSML " parameter>\n</" DSML " invoke>\n</" DSML
           " calls>",
           "[put|{\"path\": \"a\", \"n\": 12}]");
    expect(
        DSML4,
        "<" DSML "tool_calls><" DSML "invoke name=\"put\"><" DSML
        "parameter name=\"n\" string=\"maybe\">1</" DSML "parameter></" DSML "invoke></" DSML "tool_calls>",
        "[put|{!<" DSML "tool_calls><" DSML "invoke name=\"put\"><" DSML
        "parameter name=\"n\" string=\"maybe\">1</" DSML "parameter></" DSML "invoke></" DSML "tool_calls>");
}

#define Q "<|\"|>"
static void calls_of_gemma_are_found(void **state)
{
    (void)state;
    expect(GEMMA, "<|tool_call>call:put{n:12,path:" Q "a \"b\"\n{c}," Q ",on:true}<tool_call|>",
           "[put|{\"n\": 12, \"path\": \"a \\\"b\\\"\\n{c},\", \"on\": true}]");
    expect(GEMMA,
           "<|tool_call>call:put{deep:{a:[1,-2.5e3,[],{}],b:" Q "<|" Q ",c:null},maybe:None}<tool_call|>"
           "<|tool_call>call:now{}<tool_call|>",
           "[put|{\"deep\": {\"a\": [1, -2.5e3, [], {}], \"b\": \"<|\", \"c\": null}, \"maybe\": "
           "null}][now|{}]");
    /* Quoted names, JSON's strings, white space. */
    expect(GEMMA, "a\n<|tool_call>call: put { " Q "n" Q " : 1 , \"path\": \"\\\"}\" }<tool_call|>b",
           "a[put|{\"n\": 1, \"path\": \"\\\"}\"}]b");
    expect(GEMMA, "<|tool_call>call:put{path:a b}<tool_call|>", "[put|{\"path\": \"a b\"}]");
    expect(GEMMA, "<|tool_call>call:put{path : a b ,n :1}<tool_call|>",
           "[put|{\"path\": \"a b\", \"n\": 1}]");
    static const char *const broken[] = {
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>call:now[]<tool_call|>",
        "<|tool_call>now{}<tool_call|>",
        "<|tool_call>call:now",
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        expect(GEMMA, broken[i], broken[i]);
    expect(GEMMA, "<|tool_call>call:put{a:1]}", "[put|{\"a\": 1!<|tool_call>call:put{a:1]}");
    expect(GEMMA, "<|tool_call>call:put{a:1,}", "[put|{\"a\": 1, !<|tool_call>call:put{a:1,}");
    expect(GEMMA, "<|tool_call>call:put{a:}", "[put|{\"a\": !<|tool_call>call:put{a:}");
    expect(GEMMA, "<|tool_call>call:put{a:" Q "b", "[put|{\"a\": \"b~");
}

static void what_is_no_call_is_text(void **state)
{
    static const char *const plain[] = {
        "",
        "Hello.\n\n",
        "  ",
        "A < b, <tool, <tool_cal>",
        "<tool_call>",
        " x <tool_call>\n",
        "<tool_call>{\"name\": \"put\"",
        "<tool_call>{\"name\": \"put\", \"argu",
        "<tool_call>{\"nam\": \"put\"}</tool_call>",
        "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"put\", \"arguments\": [1]}</tool_call>",
        "<tool_call>put</tool_call> a",
        "<tool_call> <tool_call>",
    };
    static const char *const no_xml[] = {
        "<tool_call>\n<function=",
        "<tool_call>\n<function=put",
        "<tool_call>\n<function=>\n</function>",
        "<tool_call>\n{\"name\": \"put\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n<func>x",
    };
    static const char *const no_deepseek[] = {
        BEGIN_ALL,
        BEGIN_ALL "\nx",
        BEGIN_ALL BEGIN "function" SEP "put\n```json\n[1]\n```" END END_ALL,
        BEGIN "function" SEP,
        BEGIN "function" SEP "put\n{}",
        BEGIN SEP "{}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        expect(HERMES, plain[i], plain[i]);
    for (size_t i = 0; i < sizeof no_xml / sizeof *no_xml; i++)
        expect(XML, no_xml[i], no_xml[i]);
    for (size_t i = 0; i < sizeof no_deepseek / sizeof *no_deepseek; i++)
        expect(DEEPSEEK, no_deepseek[i], no_deepseek[i]);
    /* Without a form, calls are text too. */
    assert_null(tool_form_find(NULL));
    assert_null(tool_form_find("{{ messages[0].content }}"));
    expect("", "<tool_call>{\"name\": \"put\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"put\", \"arguments\": {}}</tool_call>");
}

/* What had begun is taken back, and all of it comes as text; a later call is found all the same. */
static void a_call_that_breaks_off_is_text_and_the_next_one_is_found(void **state)
{
#define BROKEN "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"n\": 1]}\n</tool_call>"
#define GOOD   "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"
    (void)state;
    expect(HERMES, "a " GOOD "\n" GOOD "b", "a[now|{}][now|{}]b");
    expect(HERMES, "<tool_call>{\"name\": <tool_call>{\"name\": \"now\", \"arguments\": {}}",
           "<tool_call>{\"name\":[now|{}]");
    struct fuzz f = {1};
    static const struct {
        const char *template, *text;
    } all[] = {{HERMES, "x\n" BROKEN "\n" GOOD}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct heard h = heard_of(all[i].template, all[i].text, &f, 3);
        const char *said = str_text(&h.all), *failed = strrchr(said, '!');
        size_t good = i == 0 ? strlen(all[i].text) - strlen("\n" GOOD) : strlen(all[i].text);
        assert_non_null(failed);
        assert_true(failed[1] == '\n' || strncmp(failed + 1, all[i].text, good) == 0);
        assert_string_equal(failed + 1 + (i == 0 ? good - 1 : good), i == 0 ? "[now|{}]" : "");
        str_free(&h.all);
    }
}

/* The arguments that came are given, and the call is not complete. */
static void a_call_within_which_the_answer_ends_is_a_part_of_a_call(void **state)
{
    (void)state;
    expect(HERMES, "<tool_call>{\"name\": \"put\", \"arguments\": {\"n\": 1, \"m\"",
           "[put|{\"n\": 1, \"m\"~");
    expect(XML, "<tool_call><function=put><parameter=path>\nabc", "[put|{\"path\": \"abc~");
    expect(XML, "<tool_call><function=put><parameter=path>\nabc\n</para", "[put|{\"path\": \"abc~");
    expect(XML, "<tool_call><function=put><parameter=path>\nabc\n</parameter>\n", "[put|{\"path\": \"abc\"~");
    expect(XML, "a<tool_call><function=put><parameter=n>\n12", "a[put|{\"n\": ~");
    expect(DEEPSEEK, BEGIN "function" SEP "put\n```json\n{\"n\": 1", "[put|{\"n\": 1~");
    expect(KIMI, "<|tool_call_begin|>functions.put:0<|tool_call_argument_begin|>{\"n\": ", "[put|{\"n\": ~");
    /* Without a name it is text. */
    expect(XML, "<tool_call><function=pu", "<tool_call><function=pu");
}

#define PARAMETER(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"
#define XML_CALL(p)     "<tool_call>\n<function=put>\n" p "</function>\n</tool_call>"

static void closing_tags_may_be_doubled_or_missing(void **state)
{
    (void)state;
    expect(XML, XML_CALL(PARAMETER("path", "a") "</parameter>\n" PARAMETER("n", "1")),
           "[put|{\"path\": \"a\", \"n\": 1}]");
    expect(XML, XML_CALL(PARAMETER("path", "a") "</parameter></parameter>"), "[put|{\"path\": \"a\"}]");
    expect(XML, XML_CALL("<parameter=path>\na\n" PARAMETER("n", "1")), "[put|{\"path\": \"a\", \"n\": 1}]");
    expect(XML, XML_CALL("<parameter=n>\n1\n" PARAMETER("path", "a")), "[put|{\"n\": 1, \"path\": \"a\"}]");
    expect(XML, "<tool_call><function=put>\n" PARAMETER("n", "1") "</tool_call></tool_call>\n</tool_call>.",
           "[put|{\"n\": 1}].");
    expect(
        GLM,
        "<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>a</arg_value></arg_value>\n<arg_key>n</arg_key>"
        "<arg_value>1</arg_value>\n</tool_call>",
        "[put|{\"path\": \"a\", \"n\": 1}]");
    expect(
        GLM,
        "<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>a\n<arg_key>n</arg_key><arg_value>1</arg_value>"
        "</tool_call>",
        "[put|{\"path\": \"a\", \"n\": 1}]");
    expect(MINIMAX,
           "<minimax:tool_call>\n<invoke name=\"put\">\n<parameter name=\"path\">a</parameter></parameter>\n"
           "<parameter name=\"n\">1</parameter>\n</invoke>\n</minimax:tool_call>",
           "[put|{\"path\": \"a\", \"n\": 1}]");
}

/* A tag ends a value if what may follow the value follows. */
static void a_value_may_contain_the_tags_around_it(void **state)
{
    (void)state;
    expect(XML, XML_CALL(PARAMETER("path", "one </parameter> two") PARAMETER("n", "1")),
           "[put|{\"path\": \"one </parameter> two\", \"n\": 1}]");
    expect(XML, XML_CALL(PARAMETER("path", "</parameter>\nx")), "[put|{\"path\": \"</parameter>\\nx\"}]");
    expect(XML, XML_CALL(PARAMETER("deep", "{\"a\": \"</parameter> b\"}")),
           "[put|{\"deep\": {\"a\": \"</parameter> b\"}}]");
    expect(XML, XML_CALL(PARAMETER("path", "<parameter=x>\n</function> </tool_call> <parameter=path>")),
           "[put|{\"path\": \"<parameter=x>\\n</function> </tool_call> <parameter=path>\"}]");
    expect(
        GLM,
        "<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>one </arg_value> two</arg_value>\n</tool_call>",
        "[put|{\"path\": \"one </arg_value> two\"}]");
    expect(MINIMAX, "<invoke name=\"put\"><parameter name=\"path\">one </parameter> two</parameter></invoke>",
           "[put|{\"path\": \"one </parameter> two\"}]");
    expect(DSML32,
           "<" DSML "invoke name=\"put\"><" DSML "parameter name=\"path\" string=\"true\">a</" DSML
           "parameter> b</" DSML "parameter></" DSML "invoke>",
           "[put|{\"path\": \"a</" DSML "parameter> b\"}]");
}

static void the_first_tag_of_a_call_may_be_missing(void **state)
{
    (void)state;
    expect(XML, "<function=put>\n" PARAMETER("n", "1") "</function>\n</tool_call>", "[put|{\"n\": 1}]");
    expect(XML, "I look.\n<function=now>\n</function>\n</tool_call>\n" XML_CALL(PARAMETER("n", "2")),
           "I look.[now|{}][put|{\"n\": 2}]");
    /* The name must be that of a tool. */
    expect(XML, "Write <function=f> and </function>.", "Write <function=f> and </function>.");
}

static void large_numbers_are_kept_as_they_are_written(void **state)
{
    (void)state;
    expect(HERMES, "<tool_call>{\"name\": \"put\", \"arguments\": {\"n\": 12345678901234567890}}</tool_call>",
           "[put|{\"n\": 12345678901234567890}]");
    expect(HERMES,
           "<tool_call>{\"arguments\" : {\"a\": \"},\\\"\", \"n\": 12345678901234567890} , \"name\": "
           "\"put\"}</tool_call>",
           "[put|{\"a\": \"},\\\"\", \"n\": 12345678901234567890}]");
    expect(XML, XML_CALL(PARAMETER("n", "12345678901234567890")), "[put|{\"n\": 12345678901234567890}]");
}

/* ---- thinking ---- */

struct thought {
    struct str all; /* thinking in (), calls as in struct heard */
    struct tool_calls calls;
    struct heard heard;
    bool has_called;
};

static int note(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    struct thought *x = ctx;
    if (event != TOOL_TEXT)
        x->has_called = true;
    if (event != TOOL_TEXT || x->has_called)
        return heard_event(&x->heard, event, bytes, n, e);
    str_add(&x->all, bytes, n);
    return 0;
}

/* ends: the thinking ends before the answer does. */
static void expect_thought(const char *thinking, bool ends, const char *expected, const char *calls)
{
    struct moeflux_err e = {0};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (size_t piece = 1; piece < 9; piece++) {
        struct thought x = {0};
        tool_calls_init(&x.calls, tool_form_find(XML), tools, (struct tool_sink){note, &x});
        x.calls.is_thinking = true;
        for (size_t at = 0, len = strlen(thinking); at < len; at += piece)
            check_ok(tool_calls_push(&x.calls, thinking + at, piece < len - at ? piece : len - at, &e), &e);
        check_ok(ends ? tool_calls_end(&x.calls, &e) : tool_calls_finish(&x.calls, &e), &e);
        assert_string_equal(str_text(&x.all), expected);
        assert_string_equal(str_text(&x.heard.all), calls);
        tool_calls_free(&x.calls);
        str_free(&x.all);
        str_free(&x.heard.all);
    }
    json_decref(tools);
}

static void a_call_in_thinking_counts_if_the_thinking_does_not_end(void **state)
{
    static const char draft[] = "I see.\n" XML_CALL(PARAMETER("n", "1")) "\nDone.",
                      broken[] = "Like <tool_call>\n<function=put>\n<parameter=n> or so, ",
                      no_call[] = "<tool_call>";
    (void)state;
    expect_thought(draft, true, draft, "");
    expect_thought(draft, false, "I see.", "[put|{\"n\": 1}]\nDone.");
    expect_thought(broken, true, broken, "");
    expect_thought(broken, false, broken, "");
    expect_thought(no_call, false, no_call, "");
}

static void a_tag_of_the_form_is_known(void **state)
{
    const struct tool_form *f = tool_form_find(DEEPSEEK);
    (void)state;
    assert_true(tool_form_has_tag(f, SEP, strlen(SEP)));
    assert_true(tool_form_has_tag(f, END_ALL, strlen(END_ALL)));
    assert_false(tool_form_has_tag(f, SEP, strlen(SEP) - 1));
    assert_false(tool_form_has_tag(f, "<tool_call>", strlen("<tool_call>")));
    assert_true(tool_form_has_tag(tool_form_find(XML), "</tool_call>", strlen("</tool_call>")));
    assert_true(tool_form_has_tag(tool_form_find(GEMMA), "<|\"|>", 5));
    assert_true(tool_form_has_tag(tool_form_find(DSML32), DSML, strlen(DSML)));
    /* MiniMax-M3's tags are two tokens each. */
    f = tool_form_find(NESTED);
    assert_true(tool_form_has_tag(f, M, strlen(M)));
    assert_true(tool_form_has_tag(f, "<tool_call>", strlen("<tool_call>")));
    assert_true(tool_form_has_tag(f, "</tool_call>", strlen("</tool_call>")));
    assert_false(tool_form_has_tag(f, "<tool_call", strlen("<tool_call")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_hermes_and_qwen3_are_found),
        cmocka_unit_test(calls_of_qwen3_coder_and_qwen35_are_found),
        cmocka_unit_test(values_need_no_line_ends),
        cmocka_unit_test(values_become_what_the_schema_says),
        cmocka_unit_test(calls_of_deepseek_are_found),
        cmocka_unit_test(calls_of_kimi_k2_are_found),
        cmocka_unit_test(calls_of_glm_are_found),
        cmocka_unit_test(calls_of_minimax_are_found),
        cmocka_unit_test(calls_of_kimi_k3_are_found),
        cmocka_unit_test(calls_of_minimax_m3_are_found),
        cmocka_unit_test(what_is_no_call_of_minimax_m3_is_text),
        cmocka_unit_test(calls_in_dsml_are_found),
        cmocka_unit_test(calls_of_gemma_are_found),
        cmocka_unit_test(what_is_no_call_is_text),
        cmocka_unit_test(a_call_that_breaks_off_is_text_and_the_next_one_is_found),
        cmocka_unit_test(a_call_within_which_the_answer_ends_is_a_part_of_a_call),
        cmocka_unit_test(closing_tags_may_be_doubled_or_missing),
        cmocka_unit_test(a_value_may_contain_the_tags_around_it),
        cmocka_unit_test(the_first_tag_of_a_call_may_be_missing),
        cmocka_unit_test(large_numbers_are_kept_as_they_are_written),
        cmocka_unit_test(a_call_in_thinking_counts_if_the_thinking_does_not_end),
        cmocka_unit_test(a_tag_of_the_form_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
