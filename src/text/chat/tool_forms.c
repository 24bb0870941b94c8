#include "text/chat/tool_forms.h"

#include <jansson.h>
#include <string.h>

#include "text/chat/harmony.h"
#include "text/chat/sections.h"

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

/* Appends the value of a valid object's last member of this name as it is written: reading and writing it
 * again would change large numbers. */
static void add_member(const struct str *object, const char *name, struct str *to)
{
    const char *p = str_text(object), *end = p + object->len, *key = NULL, *value = NULL, *found = NULL;
    size_t n_key = 0, n_found = 0;
    unsigned depth = 0;
    for (; p < end; p++) {
        if (*p == '"') {
            const char *begin = p++;
            for (; *p != '"'; p++)
                p += *p == '\\';
            if (depth == 1 && !value) {
                key = begin + 1;
                n_key = (size_t)(p - key);
            }
        } else if (*p == ':' && depth == 1) {
            value = p + 1;
        } else if (depth == 1 && (*p == ',' || *p == '}')) {
            if (value && n_key == strlen(name) && memcmp(key, name, n_key) == 0) {
                found = value;
                n_found = (size_t)(p - value);
            }
            value = NULL;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
    }
    for (; n_found > 0 && strchr(" \t\r\n", *found); n_found--)
        found++;
    while (n_found > 0 && strchr(" \t\r\n", found[n_found - 1]))
        n_found--;
    str_add(to, n_found ? found : "", n_found);
}

/* Takes name and arguments from a whole object. Arguments may be a string that contains an object, or
 * missing. */
static int take_object(struct tool_calls *t)
{
    json_t *root = tool_load(str_text(&t->key), t->key.len);
    const json_t *name = json_object_get(root, "name"), *arguments = json_object_get(root, "arguments");
    size_t len = json_string_length(name);
    bool good = len > 0 && len <= TOOL_MAX_NAME && !memchr(json_string_value(name), '\0', len);
    if (good)
        str_add(&t->name, json_string_value(name), len);
    if (json_is_object(arguments))
        add_member(&t->key, "arguments", &t->arguments);
    else if (json_is_string(arguments))
        str_add(&t->arguments, json_string_value(arguments), json_string_length(arguments));
    else if (!arguments || json_is_null(arguments))
        str_add_text(&t->arguments, "{}");
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
    str_clear(&t->id);
    if (t->form->has_ids)
        str_add(&t->id, str_text(&t->name), t->name.len);
    t->phase = begin_kimi_arguments;
    return take_kimi_name(&t->name) ? TOOL_GO : TOOL_NO_CALL;
}

/* ---- the families ---- */

#define DEEPSEEK_SEP "<" BAR "tool" BLOCK "sep" BAR ">"
#define DEEPSEEK_TAGS                                                                                        \
    .section_open = "<" BAR "tool" BLOCK "calls" BLOCK "begin" BAR ">",                                      \
    .section_close = "<" BAR "tool" BLOCK "calls" BLOCK "end" BAR ">",                                       \
    .call_open = "<" BAR "tool" BLOCK "call" BLOCK "begin" BAR ">",                                          \
    .call_close = "<" BAR "tool" BLOCK "call" BLOCK "end" BAR ">", .separator = DEEPSEEK_SEP,                \
    .fence_close = "```", .read = read_deepseek

#define TAGGED .call_open = "<tool_call>", .call_close = "</tool_call>", .padding = "\n", .between = "\n"

static const struct tool_plain qwen = {"<function=",  ">",  "<parameter=", ">",   NULL, "</parameter>",
                                       "</function>", true, false,         false, NULL},
                               glm = {"",   "\n",  "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                      NULL, false, false,       false,        NULL},
                               glm47 = {"",   "\n",  "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                        NULL, false, true,        false,        NULL},
                               minimax = {"",    "\">", "<parameter name=\"",
                                          "\">", NULL,  "</parameter>",
                                          NULL,  false, false,
                                          false, NULL},
                               dsml = {.name_open = "",
                                       .name_close = "\">",
                                       .key_open = "<" DSML "parameter name=\"",
                                       .key_close = "\" string=\"",
                                       .value_close = "</" DSML "parameter>",
                                       .has_kind = true},
                               spaced_dsml = {.name_open = "",
                                              .name_close = "\">",
                                              .key_open = "<" DSML " parameter name=\"",
                                              .key_close = "\" string=\"",
                                              .value_close = "</" DSML " parameter>",
                                              .has_kind = true},
                               kimi3 = {.name_open = "",
                                        .name_close = "\"",
                                        .key_open = SECTIONS_OPEN "argument key=\"",
                                        .key_close = "\"",
                                        .value_close = SECTIONS_CLOSE "argument" SECTIONS_SEP,
                                        .tag_end = SECTIONS_SEP,
                                        .is_tight = true};

/* The name of the section is the only difference between DeepSeek-V3.2 and V4; V4.1 has a space before each
 * name. */
#define DSML_CALLS(name, space, form)                                                                        \
    .section_open = "<" DSML name, .section_close = "</" DSML name, .section_padding = "\n",                 \
    .call_open = "<" DSML space "invoke name=\"", .call_close = "</" DSML space "invoke>", .padding = "",    \
    .between = "\n", .quote = DSML, .plain = &(form), .read = tool_read_plain, .write = tool_write_plain

const struct tool_form tool_forms[] = {
    {.marks = {SECTIONS_OPEN, SECTIONS_END},
     .section_open = SECTIONS_OPEN "tools" SECTIONS_SEP,
     .section_close = SECTIONS_CLOSE "tools" SECTIONS_SEP,
     .call_open = SECTIONS_OPEN "call tool=\"",
     .call_close = SECTIONS_CLOSE "call" SECTIONS_SEP,
     .padding = "",
     .between = "",
     .is_split = true,
     .plain = &kimi3,
     .read = tool_read_plain,
     .write = tool_write_plain},
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
    {.marks = {DSML, "function_calls>"}, DSML_CALLS("function_calls>", "", dsml)},
    {.marks = {DSML, "tool_calls>"}, DSML_CALLS("tool_calls>", "", dsml)},
    {.marks = {DSML, " calls>"}, DSML_CALLS(" calls>", " ", spaced_dsml)},
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
     .example = "function" DEEPSEEK_SEP "tool_call_name\n```json\ntool_call_arguments\n```",
     .write = tool_write_deepseek3},
    {.marks = {"<" BAR "tool" BLOCK "call" BLOCK "begin" BAR ">"},
     DEEPSEEK_TAGS,
     .padding = "",
     .between = "",
     .example = "tool_call_name" DEEPSEEK_SEP "tool_call_arguments",
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
     .has_ids = true,
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
     .read = tool_read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>{function-name}<arg_key>"},
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .padding = "",
     .between = "",
     .plain = &glm47,
     .read = tool_read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>", "<arg_key>"},
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .padding = "",
     .between = "\n",
     .plain = &glm,
     .read = tool_read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>", "<function="},
     TAGGED,
     .plain = &qwen,
     .read = tool_read_plain,
     .write = tool_write_plain},
    {.marks = {"<tool_call>"}, TAGGED, .read = read_hermes, .write = tool_write_hermes},
};

const size_t tool_n_forms = sizeof tool_forms / sizeof *tool_forms;
