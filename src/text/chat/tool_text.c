#include "text/chat/tool_text.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat/chat.h"
#include "text/chat/tool_forms.h"
#include "text/jinja/jinja.h"

static const char BEFORE_CALL[] = "## Tools\n"
                                  "You have access to the following tools:\n\n"
                                  "{% for tool in tools %}{% set f = tool.function %}"
                                  "### {{ f.name }}\n"
                                  "Description: {{ f.description or '' }}\n\n"
                                  "Parameters: {{ (f.parameters or {}) | tojson }}\n\n"
                                  "{% endfor %}"
                                  "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n";
static const char AFTER_CALL[] =
    "\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";

static int fail_memory(struct moeflux_err *e)
{
    return err_set(e, ERR_MEMORY, "out of memory for a prompt");
}

/* Renders a question with a tool. *has: the text has its name, or the template refuses the question. */
static int probe(const struct chat *c, const char *messages, bool *has, struct moeflux_err *e)
{
    static const char NAME[] = "tool_of_a_probe";
    struct chat_text text = {0};
    struct moeflux_err why;
    json_t *list = json_loads(messages, 0, NULL),
           *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function", "function", "name",
                              NAME, "description", "-", "parameters", "type", "object", "properties");
    struct chat_prompt p = {.messages = list, .tools = tools, .opens_answer = true};
    int rc = list && tools ? chat_render(c, &p, &text, &why) : fail_memory(&why);
    *has = rc < 0 || strstr(str_text(&text.text), NAME);
    chat_text_free(&text);
    json_decref(list);
    json_decref(tools);
    return rc == ERR_MEMORY ? fail_memory(e) : 0;
}

int tool_text_open(struct chat *c, const struct tool_form *f, struct moeflux_err *e)
{
    bool has, has_with_system;
    int rc = probe(c, "[{\"role\": \"user\", \"content\": \"a\"}]", &has, e);
    if (rc == 0)
        rc =
            probe(c, "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}]",
                  &has_with_system, e);
    if (rc < 0)
        return rc;
    c->leaves_tools_out = !has && !has_with_system;
    if (!c->leaves_tools_out || !f || !f->example)
        return 0;
    struct str text = {0};
    str_addf(&text, "%s%s%s%s%s{additional_tool_calls}%s%s", BEFORE_CALL, f->section_open, f->call_open,
             f->example, f->call_close, f->section_close, AFTER_CALL);
    rc = str_ok(&text) ? jinja_parse(&c->tool_list, str_text(&text), text.len, "list of tools", e)
                       : fail_memory(e);
    str_free(&text);
    return rc;
}

/* Returns the messages with a text at the end of the system's, which an empty line precedes. NULL: no
 * memory. */
static json_t *with_text(const json_t *messages, const struct str *text)
{
    const json_t *first = json_array_get(messages, 0);
    bool has_system = json_is_text(json_member(first, "role"), "system");
    const json_t *content = has_system ? json_member(first, "content") : NULL;
    struct str all = {0};
    str_add(&all, json_string_value(content), json_string_length(content));
    str_add_text(&all, all.len ? "\n\n" : "");
    str_add(&all, str_text(text), text->len);
    json_t *system = json_pack("{s:s, s:s%}", "role", "system", "content", str_text(&all), all.len),
           *out = json_copy((json_t *)(uintptr_t)messages);
    int rc = str_ok(&all) && has_system ? json_array_set(out, 0, system) : json_array_insert(out, 0, system);
    if (rc < 0 || !str_ok(&all)) {
        json_decref(out);
        out = NULL;
    }
    json_decref(system);
    str_free(&all);
    return out;
}

/* The list's own template is the author of the call that it shows: the call's tags become control tokens. */
static void keep_authors(const struct chat_text *list, struct chat_text *prompt)
{
    const char *at = strstr(str_text(&prompt->text), str_text(&list->text));
    if (at)
        memcpy(prompt->authors.data + (at - prompt->text.data), list->authors.data, list->authors.len);
}

int tool_text_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                     struct moeflux_err *e)
{
    struct chat_text list = {0};
    struct chat_prompt without = *p;
    json_t *context = json_pack("{s:O}", "tools", p->tools), *messages = NULL;
    int rc = context ? jinja_render_authors(c->tool_list, context, c->now, &jinja_default_limits, &list.text,
                                            &list.authors, e)
                     : fail_memory(e);
    if (rc == 0 && !(messages = with_text(p->messages, &list.text)))
        rc = fail_memory(e);
    without.messages = messages;
    without.tools = NULL;
    if (rc == 0)
        rc = chat_render(c, &without, out, e);
    if (rc == 0)
        keep_authors(&list, out);
    json_decref(messages);
    json_decref(context);
    chat_text_free(&list);
    return rc;
}
