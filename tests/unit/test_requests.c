/* Bodies of requests: the fields of several servers, messages that are continued, and what is refused.
 *
 * suites: check fast asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api_request.h"
#include "generate/choice.h"
#include "api/refusal.h"
#include "base/err.h"
#include "base/str.h"
#include "check.h"
#include "generate/answer.h"
#include "generate/generator.h"
#include "generate/tools.h"
#include "tmp_tree.h"

/* Writes everything that it is given: efforts, calls, thinking; it has no switch. */
static const char TEMPLATE[] =
    "{%- if reasoning_effort in ['low', 'high', 'max'] %}Effort {{ reasoning_effort }}. {% endif %}"
    "{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}"
    "{{- m.content | trim }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>\n{% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ v | tojson }};{% endfor %}</tool_call>{% endfor %}"
    "{{- '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";

static char *dir, *calls_dir;
/* The templates are TEMPLATE, the form of Qwen3.5, and one of calls. */
static struct generator own, family, calls;

static struct generator open_in(const char *path)
{
    struct moeflux_err e = {0};
    char file[512];
    snprintf(file, sizeof file, "%s/tokenizer.json", path);
    struct generator g = {.dir = path,
                          .max_context = 512,
                          .info = {.vocab_size = 2048, .chat_template = "qwen3.5"},
                          .tokenizer = tokenizer_open(file, &e)};
    assert_non_null(g.tokenizer);
    return g;
}

static int open_both(void **state)
{
    (void)state;
    char *tokenizer = realpath("tests/models/tiny/tokenizer.json", NULL);
    char *template = realpath("tests/data/tools.jinja", NULL);
    dir = tmp_tree_new();
    calls_dir = tmp_tree_new();
    assert_true(tokenizer && symlink(tokenizer, tmp_tree_path(dir, "tokenizer.json")) == 0);
    assert_int_equal(symlink(tokenizer, tmp_tree_path(calls_dir, "tokenizer.json")), 0);
    assert_true(template && symlink(template, tmp_tree_path(calls_dir, "chat_template.jinja")) == 0);
    tmp_tree_write_text(dir, "chat_template.jinja", TEMPLATE);
    free(tokenizer);
    free(template);
    calls = open_in(calls_dir);
    own = open_in(dir);
    family = open_in("tests/models/tiny");
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    tokenizer_free(own.tokenizer);
    tokenizer_free(family.tokenizer);
    tokenizer_free(calls.tokenizer);
    tmp_tree_remove(dir);
    tmp_tree_remove(calls_dir);
    return 0;
}

static const struct api_request_defaults defaults = {
    {.predict = -1,
     .seed = -1,
     .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
     .logprobs = REQUEST_NO_LOGPROBS},
    .turns = true};

/* Reads the body {"messages": ..., fields}. */
static struct api_request take(const struct generator *g, const char *messages, const char *fields)
{
    struct refusal refusal = {0};
    struct api_request c;
    struct str body = {0};
    str_addf(&body, "{\"messages\": [%s]%s%s}", messages, *fields ? ", " : "", fields);
    if (api_request_read(&c, true, body.data, body.len, g, &defaults, &refusal))
        fail_msg("%s: %s", body.data, refusal.text);
    str_free(&body);
    return c;
}

static const char USER[] = "{\"role\": \"user\", \"content\": \"Hi\"}";

static struct refusal refused(const char *fields)
{
    struct refusal refusal = {0};
    struct api_request c;
    struct str body = {0};
    str_addf(&body, "{\"messages\": [%s], %s}", USER, fields);
    if (!api_request_read(&c, true, body.data, body.len, &own, &defaults, &refusal))
        fail_msg("not refused: %s", fields);
    api_request_free(&c);
    str_free(&body);
    return refusal;
}

static struct str prompt_of(const struct generator *g, const struct api_request *c)
{
    struct str text = {0};
    const struct token_list *ids = &api_request_choice(c, 0)->request.tokens;
    for (size_t i = 0; i < ids->n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(g->tokenizer, ids->ids[i], &bytes);
        str_add(&text, n ? bytes : "", n);
    }
    return text;
}

static void ends(const struct generator *g, const char *messages, const char *fields, const char *end)
{
    struct api_request c = take(g, messages, fields);
    struct str text = prompt_of(g, &c);
    size_t n = strlen(end);
    if (text.len < n || strcmp(text.data + text.len - n, end) != 0)
        fail_msg("%s, %s: expected the end %s, found %s", messages, fields, end, text.data);
    str_free(&text);
    api_request_free(&c);
}

static void contains(const char *messages, const char *fields, const char *part, bool expected)
{
    struct api_request c = take(&own, messages, fields);
    struct str text = prompt_of(&own, &c);
    if ((strstr(text.data, part) != NULL) != expected)
        fail_msg("%s, %s: %s: %s", messages, fields, part, text.data);
    str_free(&text);
    api_request_free(&c);
}

static struct request_options options_of(const struct generator *g, const char *fields)
{
    struct api_request c = take(g, USER, fields);
    struct request_options o = api_request_choice(&c, 0)->request.options;
    api_request_free(&c);
    return o;
}

/* ---- continuing ---- */

#define LAST(content)                                                                                        \
    "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"" content "\"}"

static void a_last_answer_is_continued_to_the_byte(void **state)
{
    (void)state;
    static const char both[] = "\"continue_final_message\": true, \"add_generation_prompt\": false";
    const struct generator *all[] = {&own, &family};
    for (size_t i = 0; i < 2; i++) {
        /* The template trims; the white space of a text that goes on is no end of it. */
        ends(all[i], LAST("The answer is "), "", "The answer is ");
        ends(all[i], LAST("{\\n  "), both, "{\n  ");
        ends(all[i], LAST("I am"), "\"add_generation_prompt\": true",
             "<|im_end|>\n<|im_start|>assistant\n<think>\n");
        ends(all[i], LAST("I am"), "\"continue_final_message\": false",
             "<|im_end|>\n<|im_start|>assistant\n<think>\n");
        /* Nothing to continue: the answer begins. */
        ends(all[i], LAST(""), "", "<|im_start|>assistant\n<think>\n");
    }
    ends(&own, LAST("\", \"reasoning_content\": \"let me "), "", "<think>\nlet me ");
}

static void a_continued_answer_begins_in_its_text_or_thinking(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *text;
        bool thinking;
    } cases[] = {
        {LAST("I am"), "I am", false},
        {LAST("<think>hm"), "<think>hm", true},
        {LAST("<think>hm</think>I"), "<think>hm</think>I", false},
        {LAST("\", \"reasoning\": \"hm"), "", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_request c = take(&own, cases[i].messages, "");
        const struct answer_options o = request_answer(&api_request_choice(&c, 0)->request.options);
        assert_string_equal(o.continues, cases[i].text);
        assert_int_equal(o.continues_thinking, cases[i].thinking);
        api_request_free(&c);
    }
}

static void what_cannot_be_continued_is_refused(void **state)
{
    (void)state;
    assert_string_equal(refused("\"continue_final_message\": true").param, "continue_final_message");
    assert_string_equal(refused("\"add_generation_prompt\": false").param, "add_generation_prompt");
}

/* ---- thinking ---- */

static void an_effort_reaches_a_template_that_knows_it(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *part;
    } cases[] = {
        {"\"reasoning_effort\": \"low\"", "Effort low."},
        {"\"reasoning_effort\": \"minimal\"", "Effort low."},
        {"\"reasoning_effort\": \"xhigh\"", "Effort max."},
        {"\"reasoning_effort\": \"max\"", "Effort max."},
        {"\"reasoning\": {\"effort\": \"high\", \"summary\": \"auto\"}", "Effort high."},
        {"\"reasoning_effort\": \"low\", \"chat_template_kwargs\": {\"reasoning_effort\": \"high\"}",
         "Effort high."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        contains(USER, cases[i].fields, cases[i].part, true);
        assert_false(options_of(&own, cases[i].fields).limit_thinking);
    }
    contains(USER, "", "Effort", false);
    contains(USER, "\"reasoning_effort\": null", "Effort", false);
    assert_string_equal(refused("\"reasoning_effort\": \"huge\"").param, "reasoning_effort");
    assert_string_equal(refused("\"reasoning\": {\"effort\": 3}").param, "reasoning");
}

static void other_templates_get_a_switch_or_a_limit(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        bool has_switch; /* Qwen3.5's form; else TEMPLATE, which always thinks */
        bool no_think;
        int64_t budget;
    } cases[] = {
        {"\"reasoning_effort\": \"none\"", true, true, -1},
        {"\"reasoning_effort\": \"none\"", false, false, 0},
        {"\"thinking\": {\"type\": \"disabled\"}", true, true, -1},
        {"\"thinking\": {\"type\": \"disabled\"}", false, false, 0},
        {"\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 100}", true, false, 100},
        {"\"thinking\": {\"type\": \"adaptive\"}", true, false, -1},
        {"\"thinking\": false", true, true, -1},
        {"\"enable_thinking\": false", true, true, -1},
        {"\"enable_thinking\": false", false, false, 0},
        {"\"enable_thinking\": true, \"reasoning_effort\": \"none\"", true, false, -1},
        {"\"reasoning\": {\"enabled\": false}", true, true, -1},
        {"\"reasoning\": {\"max_tokens\": 7}", true, false, 7},
        {"\"chat_template_kwargs\": {\"enable_thinking\": false}", true, true, -1},
        {"\"chat_template_kwargs\": {\"enable_thinking\": false}", false, false, -1},
        {"\"think_budget\": 9", true, false, 9},
        {"\"thinking_budget\": -1", true, false, -1},
        {"\"reasoning_budget\": 0", false, false, 0},
        {"\"reasoning_effort\": \"low\"", true, false, 2048},
        {"\"reasoning_effort\": \"minimal\"", true, false, 512},
        {"\"reasoning_effort\": \"medium\"", true, false, 8192},
        {"\"reasoning_effort\": \"medium\", \"think_budget\": 3", true, false, 3},
        {"\"reasoning_effort\": \"high\"", true, false, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request_options o = options_of(cases[i].has_switch ? &family : &own, cases[i].fields);
        int64_t budget = o.limit_thinking ? (int64_t)o.think_budget : -1;
        if (o.no_think != cases[i].no_think || budget != cases[i].budget)
            fail_msg("%s: no_think %d, budget %lld", cases[i].fields, o.no_think, (long long)budget);
    }
    assert_string_equal(refused("\"thinking\": {\"type\": \"some\"}").param, "thinking");
    assert_string_equal(refused("\"think_budget\": -2").param, "think_budget");
    assert_string_equal(refused("\"reasoning\": {\"exclude\": true}").param, "reasoning");
}

static void thinking_of_the_history_has_several_names(void **state)
{
    (void)state;
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < 3; i++) {
        char messages[256];
        snprintf(messages, sizeof messages,
                 "%s, {\"role\": \"assistant\", \"content\": \"x\", \"%s\": \"hm\"}, %s", USER, names[i],
                 USER);
        contains(messages, "", "<think>\nhm\n</think>\n\nx", true);
    }
}

/* ---- numbers, tools, messages ---- */

static void numbers_beyond_64_bits_stay_as_written(void **state)
{
    (void)state;
    static const char big[] = "123456789012345678901234567890";
    static const char tool[] =
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"maximum\": 18446744073709551615}}}}}]";
    contains(USER, tool, "\"maximum\": 18446744073709551615}", true);
    contains(USER, "\"seed\": 18446744073709551615, \"user\": {\"x\": [1e999, -99999999999999999999]}", "Hi",
             true);
    char messages[512];
    snprintf(
        messages, sizeof messages,
        "%s, {\"role\": \"assistant\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": "
        "\"f\", \"arguments\": \"{\\\"n\\\": %s, \\\"x\\\": 1e400}\"}}]}, {\"role\": \"tool\", \"content\": "
        "null}",
        USER, big);
    contains(messages, "", "n=123456789012345678901234567890;x=1e400;", true);
    struct refusal r = refused("\"max_tokens\": 123456789012345678901234567890");
    assert_string_equal(r.param, "max_tokens");
    assert_int_equal(refused("\"n\": 1.2.3").status, 400);
}

static void arguments_that_are_no_object_are_not_dropped(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *shown;
    } cases[] = {{"{\\\"n\\\": NaN}", "arguments=\"{\\\"n\\\": NaN}\";"},
                 {"{\\\"n\\\": ", "arguments=\"{\\\"n\\\": \";"},
                 {"", "<tool_call>\n</tool_call>"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char messages[512];
        snprintf(messages, sizeof messages,
                 "%s, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"type\": \"function\", "
                 "\"function\": {\"name\": \"f\", \"arguments\": \"%s\"}}]}, %s",
                 USER, cases[i].arguments, USER);
        contains(messages, "", cases[i].shown, true);
    }
}

static void tools_that_are_no_functions_are_left_out(void **state)
{
    (void)state;
    static const char fields[] =
        "\"tools\": [{\"type\": \"web_search\"}, {\"type\": \"function\", \"function\": "
        "{\"name\": \"f\", \"parameters\": null}}, {\"type\": \"mcp\"}]";
    struct api_request c = take(&calls, USER, fields);
    const struct request *r = &api_request_choice(&c, 0)->request;
    assert_int_equal(json_array_size(r->options.tools), 1);
    assert_string_equal(r->skipped_tool, "web_search");
    api_request_free(&c);
    c = take(&calls, USER, "\"tools\": [{\"type\": \"mcp\"}], \"tool_choice\": \"auto\"");
    assert_null(api_request_choice(&c, 0)->request.options.tools);
    api_request_free(&c);
    /* parameters that are null count as none, where a call is forced too. */
    c = take(&calls, USER,
             "\"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"function\": "
             "{\"name\": \"f\", \"parameters\": null, \"description\": null}}]");
    assert_non_null(api_request_choice(&c, 0)->request.options.grammar);
    api_request_free(&c);
}

static void a_request_may_allow_some_of_its_tools(void **state)
{
    (void)state;
#define TWO                                                                                                  \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}, {\"type\": \"function\", "       \
    "\"function\": {\"name\": \"g\"}}], \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": "
#define ONLY(name) "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" name "\"}}]}}"
    struct api_request c = take(&calls, USER, TWO "{\"mode\": \"auto\", " ONLY("g"));
    const struct request *r = &api_request_choice(&c, 0)->request;
    assert_int_equal(json_array_size(r->options.tools), 1);
    assert_non_null(tools_find(r->options.tools, "g"));
    assert_false(r->options.must_call);
    api_request_free(&c);
    c = take(&calls, USER, TWO "{\"mode\": \"required\", " ONLY("f"));
    assert_true(api_request_choice(&c, 0)->request.options.must_call);
    api_request_free(&c);
    assert_int_equal(options_of(&own, "\"top_logprobs\": 0").logprobs, REQUEST_NO_LOGPROBS);
#undef ONLY
#undef TWO
}

static void small_things_are_taken_as_other_servers_take_them(void **state)
{
    (void)state;
    struct api_request c;
    struct refusal refusal = {0};
    assert_int_equal(options_of(&own, "\"stop\": \"\"").n_stops, 0);
    assert_int_equal(options_of(&own, "\"stop\": [\"\", \"b\"]").n_stops, 1);
    assert_int_equal(options_of(&own, "\"max_tokens\": 5.0").predict, 5);
    assert_int_equal(options_of(&own, "\"max_tokens\": 5, \"max_completion_tokens\": 6").predict, 6);
    assert_int_equal(options_of(&own, "\"max_tokens\": -1").predict, REQUEST_NO_LIMIT);
    assert_int_equal(options_of(&own, "\"top_k\": -1").sampling.top_k, 0);
    assert_true(options_of(&own, "\"repetition_penalty\": 1.5").sampling.repeat_penalty == 1.5f);
    assert_true(options_of(&own, "\"stop\": \"x\", \"include_stop_str_in_output\": true").keep_stop);
    ends(&own, "{\"role\": \"user\", \"content\": \"\"}", "",
         "user\n<|im_end|>\n<|im_start|>assistant\n<think>\n");
    ends(&own, "{\"role\": \"user\", \"content\": \" \"}", "",
         "user\n<|im_end|>\n<|im_start|>assistant\n<think>\n");
    contains("{\"role\": \"user\", \"content\": [\"a\", {\"type\": \"input_text\", \"text\": \"b\"}]}", "",
             "user\nab<", true);
    contains(
        "{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"hm\"}, {\"type\": "
        "\"refusal\", \"refusal\": \"no\"}]}, {\"role\": \"user\", \"content\": \"b\"}",
        "", "<think>\nhm\n</think>\n\nno<", true);
    static const char bom[] = "\xef\xbb\xbf{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
    assert_int_equal(api_request_read(&c, true, bom, sizeof bom - 1, &own, &defaults, &refusal), 0);
    api_request_free(&c);
}

/* ---- forms, fields of other servers ---- */

static void forms_of_other_servers_are_obeyed(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "\"json_schema\": {\"const\": \"42\"}",
        "\"guided_json\": {\"const\": \"42\"}",
        "\"guided_json\": \"{\\\"const\\\": \\\"42\\\"}\"",
        "\"structured_outputs\": {\"json\": {\"const\": \"42\"}, \"regex\": null}",
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"const\":\"42\"}}}",
        "\"guided_choice\": [\"a\", \"b\\\\\\\"\\n\"]",
        "\"guided_regex\": \"^[0-9]{3}-(a|b)$\"",
        "\"structured_outputs\": {\"choice\": [\"a\"]}",
        "\"guided_grammar\": \"root ::= \\\"x\\\"\"",
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct api_request c = take(&own, USER, fields[i]);
        assert_non_null(api_request_choice(&c, 0)->request.options.grammar);
        api_request_free(&c);
    }
    assert_null(
        options_of(&own, "\"grammar\": \"\", \"guided_choice\": [], \"structured_outputs\": {}").grammar);
    static const struct {
        const char *fields, *param;
    } wrong[] = {
        {"\"json_schema\": {\"type\": 3}", "json_schema"},
        {"\"guided_regex\": \"(\"", "guided_regex"},
        {"\"guided_regex\": 3", "guided_regex"},
        {"\"guided_choice\": [3]", "guided_choice"},
        {"\"guided_json\": {}, \"grammar\": \"root ::= \\\"x\\\"\"", "guided_json"},
        {"\"structured_outputs\": {\"structural_tag\": \"x\"}", "structured_outputs"},
        {"\"response_format\": {\"type\": \"xml\"}", "response_format"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_string_equal(refused(wrong[i].fields).param, wrong[i].param);
}

static void fields_that_would_change_the_answer_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const fields[][3] = {
        {"mirostat", "2", "0"},
        {"tfs_z", "0.9", "1.0"},
        {"lora", "[{\"id\": 0}]", "[]"},
        {"chat_template", "\"x\"", "null"},
        {"min_tokens", "4", "0"},
        {"bad_words", "[\"x\"]", "[]"},
        {"allowed_token_ids", "[1]", "null"},
        {"functions", "[{}]", "[]"},
        {"use_beam_search", "true", "false"},
        {"prompt_logprobs", "1", "null"},
        {"skip_special_tokens", "false", "true"},
        {"echo", "true", "false"},
        {"length_penalty", "0.5", "1"},
        {"documents", "[{}]", "[]"},
        {"stop_token_ids", "[5]", "[]"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char text[128];
        snprintf(text, sizeof text, "\"%s\": %s", fields[i][0], fields[i][1]);
        struct refusal r = refused(text);
        assert_string_equal(r.param, fields[i][0]);
        assert_string_equal(r.code, "unsupported_parameter");
        snprintf(text, sizeof text, "\"%s\": %s", fields[i][0], fields[i][2]);
        options_of(&own, text);
    }
}

static void every_option_of_the_sampler_is_a_field(void **state)
{
    (void)state;
    struct moeflux_sampler_options o =
        options_of(&own, "\"typical\": 0.9, \"top_n_sigma\": 1.5, \"min_keep\": 3, \"xtc_probability\": 0.5, "
                         "\"xtc_threshold\": 0.2, \"dry_multiplier\": 0.8, \"dry_base\": 2, "
                         "\"dry_allowed_length\": 4, \"dry_penalty_last_n\": -1")
            .sampling;
    assert_true(o.typical_p == 0.9f && o.top_n_sigma == 1.5f && o.min_keep == 3);
    assert_true(o.xtc_probability == 0.5f && o.xtc_threshold == 0.2f);
    assert_true(o.dry_multiplier == 0.8f && o.dry_base == 2 && o.dry_allowed_length == 4);
    assert_int_equal(o.dry_penalty_last_n, MOEFLUX_MAX_REPEAT_LAST);
    o = options_of(&own, "\"dry_sequence_breakers\": [\"a\", \"\", \"b\"]").sampling;
    assert_int_equal(o.n_dry_sequence_breakers, 2);
    o = options_of(&own, "\"dry_sequence_breakers\": []").sampling;
    assert_int_equal(o.n_dry_sequence_breakers, 0);
    static const char *const wrong[][2] = {{"xtc_probability", "2"},
                                           {"typical_p", "-1"},
                                           {"dry_base", "0.5"},
                                           {"min_keep", "1.5"},
                                           {"dry_sequence_breakers", "\"a\""},
                                           {"dry_sequence_breakers", "[1]"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[128];
        snprintf(text, sizeof text, "\"%s\": %s", wrong[i][0], wrong[i][1]);
        assert_string_equal(refused(text).param, wrong[i][0]);
    }
}

static void a_prompt_that_is_too_long_says_so_in_numbers(void **state)
{
    (void)state;
    struct generator small = own;
    struct refusal refusal = {0};
    struct api_request c;
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"one two three four\"}]}";
    small.max_context = 4;
    assert_int_equal(api_request_read(&c, true, body, sizeof body - 1, &small, &defaults, &refusal), -1);
    api_request_free(&c);
    assert_string_equal(refusal.code, "context_length_exceeded");
    assert_non_null(strstr(refusal.text, "exceeds the available context size"));
    json_t *out = refusal_json(&refusal), *error = json_object_get(out, "error");
    assert_int_equal(json_integer_value(json_object_get(error, "n_ctx")), 4);
    assert_true(json_integer_value(json_object_get(error, "n_prompt_tokens")) > 4);
    json_decref(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_last_answer_is_continued_to_the_byte),
        cmocka_unit_test(a_continued_answer_begins_in_its_text_or_thinking),
        cmocka_unit_test(what_cannot_be_continued_is_refused),
        cmocka_unit_test(an_effort_reaches_a_template_that_knows_it),
        cmocka_unit_test(other_templates_get_a_switch_or_a_limit),
        cmocka_unit_test(thinking_of_the_history_has_several_names),
        cmocka_unit_test(numbers_beyond_64_bits_stay_as_written),
        cmocka_unit_test(arguments_that_are_no_object_are_not_dropped),
        cmocka_unit_test(tools_that_are_no_functions_are_left_out),
        cmocka_unit_test(a_request_may_allow_some_of_its_tools),
        cmocka_unit_test(small_things_are_taken_as_other_servers_take_them),
        cmocka_unit_test(forms_of_other_servers_are_obeyed),
        cmocka_unit_test(fields_that_would_change_the_answer_are_refused_by_name),
        cmocka_unit_test(every_option_of_the_sampler_is_a_field),
        cmocka_unit_test(a_prompt_that_is_too_long_says_so_in_numbers),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
