#include "text/chat/tool_forms.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat/harmony.h"
#include "text/grammar/json_schema.h"

#define BAR   "\xef\xbd\x9c" /* U+FF5C */
#define BLOCK "\xe2\x96\x81" /* U+2581 */
#define DSML  BAR "DSML" BAR
#define MARK  "]<]minimax[>[" /* MiniMax-M3's token in front of each tag */

/* ---- arguments that are written as JSON ---- */

static int read_arguments(struct tool_calls *t)
{
    int got = tool_read_object(t, &t->arguments);
    return got == TOOL_GO ? tool_finish(t) : got;
}

/* Expects an object here and lets `next` read it. */
static int expect_object(struct tool_calls *t, int (*next)(struct tool_calls *t))
{
    size_t n;
    tool_skip_space(t);
    const char *rest = tool_rest(t, &n);
    if (n == 0)
        return TOOL_WAIT;
    t->phase = next;
    return *rest == '{' ? TOOL_GO : TOOL_NO_CALL;
}

/* ---- {"name": "f", "arguments": {...}} ---- */

/* Reads the closing brace of the object around the arguments. */
static int end_hermes(struct tool_calls *t)
{
    tool_skip_space(t);
    int got = tool_expect(t, "}");
    return got == TOOL_GO ? tool_finish(t) : got;
}

static int read_hermes_arguments(struct tool_calls *t)
{
    int got = tool_read_object(t, &t->arguments);
    if (got == TOOL_GO)
        t->phase = end_hermes;
    return got;
}

/* Takes name and arguments from a whole object. Arguments may be a string that contains an object, or
 * missing. */
static int take_object(struct tool_calls *t)
{
    json_t *root = json_loadb(str_text(&t->key), t->key.len, JSON_ALLOW_NUL, NULL);
    const json_t *name = json_object_get(root, "name"), *arguments = json_object_get(root, "arguments");
    size_t len = json_string_length(name);
    bool good = len > 0 && len <= TOOL_MAX_NAME && !memchr(json_string_value(name), '\0', len);
    char *text = json_is_object(arguments) ? json_dumps(arguments, 0) : NULL;
    if (good)
        str_add(&t->name, json_string_value(name), len);
    if (text)
        str_add_text(&t->arguments, text);
    else if (json_is_string(arguments))
        str_add(&t->arguments, json_string_value(arguments), json_string_length(arguments));
    else if (!arguments || json_is_null(arguments))
        str_add_text(&t->arguments, "{}");
    free(text);
    json_decref(root);
    return good ? tool_finish(t) : TOOL_NO_CALL;
}

/* Reads an object whose members are in another order. */
static int read_whole(struct tool_calls *t)
{
    int got = tool_read_object(t, &t->key);
    return got == TOOL_GO ? take_object(t) : got;
}

/* Reads {"name": "f", "arguments": { in the usual order, so that the arguments can
 * be given out as they come. */
static int read_usual_head(struct tool_calls *t)
{
    static const char *const parts[] = {"{", "\"name\"", ":", "\""}, *const more[] = {",", "\"arguments\"",
                                                                                      ":"};
    int got = TOOL_GO;
    for (size_t i = 0; got == TOOL_GO && i < sizeof parts / sizeof *parts; i++) {
        tool_skip_space(t);
        got = tool_expect(t, parts[i]);
    }
    if (got == TOOL_GO)
        got = tool_read_name(t, "\"", &t->name);
    if (got == TOOL_GO && memchr(str_text(&t->name), '\\', t->name.len))
        return TOOL_NO_CALL;
    for (size_t i = 0; got == TOOL_GO && i < sizeof more / sizeof *more; i++) {
        tool_skip_space(t);
        got = tool_expect(t, more[i]);
    }
    return got == TOOL_GO ? expect_object(t, read_hermes_arguments) : got;
}

static int read_hermes(struct tool_calls *t)
{
    size_t begin = t->at;
    int got = read_usual_head(t);
    if (got == TOOL_GO)
        return got;
    t->at = begin;
    str_clear(&t->name);
    return got == TOOL_WAIT ? got : expect_object(t, read_whole);
}

/* ---- function<sep>f\n```json\n{...}\n```, or f<sep>{...} ---- */

static int read_deepseek(struct tool_calls *t)
{
    static const char fence[] = "```json";
    size_t begin = t->at, n;
    int got = tool_read_name(t, t->form->separator, &t->name);
    const char *rest = tool_rest(t, &n);
    if (got == TOOL_GO && n == 0)
        got = TOOL_WAIT;
    if (got == TOOL_GO && *rest == '{')
        return expect_object(t, read_arguments);
    if (got == TOOL_GO)
        got = tool_read_name(t, "\n", &t->name);
    if (got == TOOL_GO) {
        tool_skip_space(t);
        got = tool_expect(t, fence);
    }
    if (got == TOOL_GO)
        got = expect_object(t, read_arguments);
    if (got == TOOL_WAIT)
        t->at = begin;
    return got;
}

/* ---- functions.f:0<sep>{...}, or functions.f<sep>{...} ---- */

static const char KIMI_SPACE[] = "functions.";

/* Strips "functions." and ":0" from Kimi's name of a function. Returns false if nothing is left. */
static bool take_kimi_name(struct str *name)
{
    const char *text = str_text(name), *colon = strrchr(text, ':');
    size_t skip = strncmp(text, KIMI_SPACE, sizeof KIMI_SPACE - 1) ? 0 : sizeof KIMI_SPACE - 1;
    size_t len = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1)
                     ? (size_t)(colon - text)
                     : name->len;
    if (len <= skip)
        return false;
    memmove(name->data, name->data + skip, len - skip);
    name->len = len - skip;
    name->data[name->len] = '\0';
    return true;
}

static int begin_kimi_arguments(struct tool_calls *t)
{
    return expect_object(t, read_arguments);
}

static int read_kimi(struct tool_calls *t)
{
    size_t begin = t->at;
    int got = tool_read_name(t, t->form->separator, &t->name);
    if (got == TOOL_WAIT)
        t->at = begin;
    if (got != TOOL_GO)
        return got;
    t->phase = begin_kimi_arguments;
    return take_kimi_name(&t->name) ? TOOL_GO : TOOL_NO_CALL;
}

/* ---- parameters without JSON syntax, such as <parameter=p>\nvalue\n</parameter> ---- */

static int read_parameters(struct tool_calls *t);

int tool_value_kind(const struct json_t *parameters, const struct json_t *schema)
{
    unsigned kinds = json_schema_kinds(parameters, schema);
    return !(kinds & JSON_SCHEMA_TEXT) ? TOOL_VALUE_JSON
           : kinds & JSON_SCHEMA_NULL  ? TOOL_VALUE_TEXT_OR_NULL
                                       : TOOL_VALUE_TEXT;
}

/* Returns the kind of the parameter t->key by the tool's schema. */
static int kind_of(const struct tool_calls *t)
{
    const json_t *parameters = NULL;
    for (size_t i = 0; !parameters && i < json_array_size(t->tools); i++) {
        const json_t *function = json_member(json_array_get(t->tools, i), "function");
        if (json_is_text(json_member(function, "name"), str_text(&t->name)))
            parameters = json_member(function, "parameters");
    }
    return tool_value_kind(parameters, json_member(json_member(parameters, "properties"), str_text(&t->key)));
}

void tool_add_escaped(struct str *to, const char *bytes, size_t n)
{
    static const char letters[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    for (size_t i = 0; i < n; i++) {
        const char *found = bytes[i] ? strchr(letters, bytes[i]) : NULL;
        if (found)
            str_addf(to, "\\%c", names[found - letters]);
        else if ((unsigned char)bytes[i] < 0x20)
            str_addf(to, "\\u%04x", (unsigned char)bytes[i]);
        else
            str_add(to, bytes + i, 1);
    }
}

void tool_add_value(struct tool_calls *t, const char *bytes, size_t n)
{
    static const struct {
        const char *written, *json;
    } words[] = {{"None", "null"}, {"null", "null"}, {"True", "true"}, {"False", "false"}};
    const char *word = NULL;
    for (size_t i = 0; i < (t->kind == TOOL_VALUE_JSON ? 4u : 2u); i++)
        if (strlen(words[i].written) == n && memcmp(words[i].written, bytes, n) == 0)
            word = words[i].json;
    json_t *value = NULL;
    if (!word && t->kind == TOOL_VALUE_JSON && json_count_values(bytes, n) <= JSON_MAX_SMALL)
        value = json_loadb(bytes, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (word) {
        str_add_text(&t->arguments, word);
    } else if (value) {
        str_add(&t->arguments, bytes, n);
    } else {
        str_add_text(&t->arguments, "\"");
        tool_add_escaped(&t->arguments, bytes, n);
        str_add_text(&t->arguments, "\"");
    }
    json_decref(value);
}

/* Reads a string, which is given out as it comes. */
static int read_text_value(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    size_t n, n_close = strlen(p->value_close);
    const char *rest = tool_rest(t, &n), *end = memmem(rest, n, p->value_close, n_close);
    size_t len = end ? (size_t)(end - rest) : n;
    if (!end) {
        size_t held = tool_held(rest, n, p->value_close);
        len -= held;
        len -= p->is_on_lines && len > 0 && rest[len - 1] == '\n';
    }
    tool_add_escaped(&t->arguments, rest, len - (end && p->is_on_lines && len > 0 && rest[len - 1] == '\n'));
    t->at += len;
    if (!end)
        return TOOL_WAIT;
    str_add_text(&t->arguments, "\"");
    t->at += n_close;
    t->phase = read_parameters;
    return TOOL_GO;
}

static int read_other_value(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    size_t n, len, n_close = strlen(p->value_close);
    /* The tag can only begin in the last bytes of what was searched before. */
    size_t seen = t->n_seen > n_close ? t->n_seen - n_close : 0;
    const char *rest = tool_rest(t, &n);
    const char *end = memmem(rest + seen, n - seen, p->value_close, n_close);
    t->n_seen = n;
    if (!end)
        return TOOL_WAIT;
    len = (size_t)(end - rest);
    tool_add_value(t, rest, len - (p->is_on_lines && len > 0 && rest[len - 1] == '\n'));
    t->at += len + n_close;
    t->phase = read_parameters;
    return TOOL_GO;
}

/* Begins a value, after its opening tag. */
static int begin_value(struct tool_calls *t)
{
    if (t->form->plain->is_on_lines && tool_expect(t, "\n") == TOOL_WAIT)
        return TOOL_WAIT;
    if (!t->form->plain->has_kind)
        t->kind = kind_of(t);
    str_add_text(&t->arguments, t->arguments.len > 1 ? ", \"" : "\"");
    tool_add_escaped(&t->arguments, str_text(&t->key), t->key.len);
    str_add_text(&t->arguments, t->kind == TOOL_VALUE_TEXT ? "\": \"" : "\": ");
    t->n_seen = 0;
    t->phase = t->kind == TOOL_VALUE_TEXT ? read_text_value : read_other_value;
    return TOOL_GO;
}

/* Reads DSML's attribute and the end of the tag: true"> for a string, false"> for JSON. */
static int read_kind(struct tool_calls *t)
{
    int got = tool_expect(t, TOOL_IS_TEXT);
    t->kind = got == TOOL_GO ? TOOL_VALUE_TEXT : TOOL_VALUE_JSON;
    if (got == TOOL_NO_CALL)
        got = tool_expect(t, TOOL_IS_JSON);
    if (got == TOOL_GO)
        t->phase = begin_value;
    return got;
}

static int open_value(struct tool_calls *t)
{
    tool_skip_space(t);
    int got = tool_expect(t, t->form->plain->value_open);
    if (got == TOOL_GO)
        t->phase = begin_value;
    return got;
}

/* Expects the end of the parameters. Reads it, unless it is the end of the call. */
static int expect_end(struct tool_calls *t)
{
    const char *end = t->form->plain->end;
    size_t begin = t->at;
    int got = tool_expect(t, end ? end : t->form->call_close);
    if (!end)
        t->at = begin;
    return got;
}

static int read_parameters(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    tool_skip_space(t);
    size_t begin = t->at;
    int got = expect_end(t);
    if (got == TOOL_GO) {
        str_add_text(&t->arguments, "}");
        return tool_finish(t);
    }
    int opened = tool_expect(t, p->key_open);
    if (opened == TOOL_GO)
        opened = tool_read_name(t, p->key_close, &t->key);
    if (opened == TOOL_GO)
        t->phase = p->has_kind ? read_kind : p->value_open ? open_value : begin_value;
    if (opened != TOOL_WAIT && got != TOOL_WAIT)
        return opened;
    t->at = begin;
    return TOOL_WAIT;
}

/* Reads the function's name. GLM-4.5 ends its line, GLM-4.7 begins the next tag. */
static int read_plain_name(struct tool_calls *t, const char *close)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    const char *line = memchr(rest, '\n', n), *tag = *close == '\n' ? memchr(rest, '<', n) : NULL;
    if (!tag || (line && line < tag))
        return tool_read_name(t, close, &t->name);
    int got = tool_read_name(t, "<", &t->name);
    t->at -= got == TOOL_GO;
    return got;
}

static int read_plain(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    tool_skip_space(t);
    size_t begin = t->at;
    int got = tool_expect(t, p->name_open);
    if (got == TOOL_GO)
        got = read_plain_name(t, p->name_close);
    if (got == TOOL_WAIT)
        t->at = begin;
    if (got != TOOL_GO)
        return got;
    str_add_text(&t->arguments, "{");
    t->phase = read_parameters;
    return got;
}

/* ---- the families ---- */

#define DEEPSEEK_TAGS                                                                                        \
    .section_open = "<" BAR "tool" BLOCK "calls" BLOCK "begin" BAR ">",                                      \
    .section_close = "<" BAR "tool" BLOCK "calls" BLOCK "end" BAR ">",                                       \
    .call_open = "<" BAR "tool" BLOCK "call" BLOCK "begin" BAR ">",                                          \
    .call_close = "<" BAR "tool" BLOCK "call" BLOCK "end" BAR ">",                                           \
    .separator = "<" BAR "tool" BLOCK "sep" BAR ">", .fence_close = "```", .read = read_deepseek

#define TAGGED .call_open = "<tool_call>", .call_close = "</tool_call>", .padding = "\n", .between = "\n"

static const struct tool_plain
    qwen = {"<function=", ">", "<parameter=", ">", NULL, "</parameter>", "</function>", true, false, false},
    glm = {"", "\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", NULL, false, false, false},
    glm47 = {"", "\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", NULL, false, true, false},
    minimax = {"", "\">", "<parameter name=\"", "\">", NULL, "</parameter>", NULL, false, false, false},
    dsml = {.name_open = "",
            .name_close = "\">",
            .key_open = "<" DSML "parameter name=\"",
            .key_close = "\" string=\"",
            .value_close = "</" DSML "parameter>",
            .has_kind = true};

/* The name of the section is the only difference between DeepSeek-V3.2 and V4. */
#define DSML_CALLS(name)                                                                                     \
    .section_open = "<" DSML name, .section_close = "</" DSML name, .section_padding = "\n",                 \
    .call_open = "<" DSML "invoke name=\"", .call_close = "</" DSML "invoke>", .padding = "",                \
    .between = "\n", .quote = DSML, .plain = &dsml, .read = read_plain, .write = tool_write_plain

const struct tool_form tool_forms[] = {
    {.marks = {MARK},
     .section_open = MARK "<tool_call>",
     .section_close = MARK "</tool_call>",
     .section_padding = "\n",
     .call_open = MARK "<invoke name=\"",
     .call_close = MARK "</invoke>",
     .padding = "",
     .between = "\n",
     .quote = MARK,
     .read = tool_read_nested,
     .write = tool_write_nested},
    {.marks = {DSML, "function_calls>"}, DSML_CALLS("function_calls>")},
    {.marks = {DSML, "tool_calls>"}, DSML_CALLS("tool_calls>")},
    {.marks = {"<|tool_call>call:", "<tool_call|>"},
     .call_open = "<|tool_call>",
     .call_close = "<tool_call|>",
     .padding = "",
     .between = "",
     .quote = TOOL_GEMMA_QUOTE,
     .read = tool_read_gemma,
     .write = tool_write_gemma},
    {.marks = {"<" BAR "tool" BLOCK "call" BLOCK "begin" BAR ">", "```json"},
     DEEPSEEK_TAGS,
     .padding = "",
     .between = "\n",
     .write = tool_write_deepseek3},
    {.marks = {"<" BAR "tool" BLOCK "call" BLOCK "begin" BAR ">"},
     DEEPSEEK_TAGS,
     .padding = "",
     .between = "",
     .write = tool_write_deepseek31},
    {.marks = {HARMONY_MESSAGE, "<|channel|>"},
     .call_open = HARMONY_CALL,
     .call_close = HARMONY_CALL_END,
     .separator = HARMONY_MESSAGE,
     .padding = "",
     .between = "",
     .is_message = true,
     .read = read_kimi,
     .write = tool_write_message},
    {.marks = {"<|tool_call_argument_begin|>"},
     .section_open = "<|tool_calls_section_begin|>",
     .section_close = "<|tool_calls_section_end|>",
     .call_open = "<|tool_call_begin|>",
     .call_close = "<|tool_call_end|>",
     .separator = "<|tool_call_argument_begin|>",
     .padding = "",
     .between = "",
     .read = read_kimi,
     .write = tool_write_kimi},
    {.marks = {"<minimax:tool_call>"},
     .section_open = "<minimax:tool_call>",
     .section_close = "</minimax:tool_call>",
     .section_padding = "\n",
     .call_open = "<invoke name=\"",
     .call_close = "</invoke>",
     .padding = "",
     .between = "\n",
     .plain = &minimax,
     .read = read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>{function-name}<arg_key>"},
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .padding = "",
     .between = "",
     .plain = &glm47,
     .read = read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>", "<arg_key>"},
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .padding = "",
     .between = "\n",
     .plain = &glm,
     .read = read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>", "<function="},
     TAGGED,
     .plain = &qwen,
     .read = read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>"}, TAGGED, .read = read_hermes, .write = tool_write_hermes},
};

const size_t tool_n_forms = sizeof tool_forms / sizeof *tool_forms;
