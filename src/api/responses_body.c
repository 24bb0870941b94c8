#include "api/responses_body.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/api_request.h"
#include "api/chat_body.h"
#include "api/fields.h"
#include "api/refusal.h"
#include "api/response_store.h"
#include "base/json.h"
#include "base/str.h"

static const char *const texts[] = {"input_text", "output_text", "text", NULL};

void responses_body_join_name(const char *space, const char *name, struct str *out)
{
    size_t n = strlen(space);
    str_add(out, space, n);
    if (n && space[n - 1] != '_')
        str_add_text(out, "__");
    str_add_text(out, name);
}

/* ---- items ---- */

struct place {
    char text[48]; /* "input[3]" */
    struct chat_body *to;
};

/* Returns a text member of an item; "" with the refusal filled. */
static const char *member(const json_t *item, const char *name, const struct place *at)
{
    const json_t *value = json_object_get(item, name);
    if (!json_is_string(value))
        refusal_field(at->to->refusal, "input", "%s.%s: expected a text, found %s", at->text, name,
                      fields_kind(value));
    return json_is_string(value) ? json_string_value(value) : "";
}

/* Joins the texts of a member. */
static void join(const json_t *item, const char *name, const char *const *types, const struct place *at,
                 struct str *out)
{
    char where[80];
    snprintf(where, sizeof where, "%s.%s", at->text, name);
    chat_body_join(at->to, fields_get(item, name), types, "input", where, out);
}

/* Ends an item's text, which the next item may go on with. */
static void note_status(const json_t *item, const struct place *at)
{
    if (json_is_text(fields_get(item, "status"), "incomplete"))
        chat_body_cut(at->to);
}

static void read_message(const json_t *item, const struct place *at)
{
    const char *role = member(item, "role", at);
    struct str text = {0};
    if (strcmp(role, "developer") == 0)
        role = "system";
    if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
        refusal_field(at->to->refusal, "input",
                      "%s.role: expected user, assistant, system or developer, found \"%.40s\"", at->text,
                      role);
    if (!at->to->refusal->status)
        join(item, "content", texts, at, &text);
    if (!at->to->refusal->status)
        chat_body_say(at->to, role, str_text(&text), text.len);
    note_status(item, at);
    str_free(&text);
}

static void read_call(const json_t *item, const struct place *at)
{
    const char *id = member(item, "call_id", at), *name = member(item, "name", at);
    const char *space = fields_text(item, "namespace", at->to->refusal);
    struct str joined = {0};
    member(item, "arguments", at);
    responses_body_join_name(space ? space : "", name, &joined);
    chat_body_check(at->to, &joined);
    if (!at->to->refusal->status)
        chat_body_call(at->to, id, str_text(&joined), json_object_get(item, "arguments"));
    str_free(&joined);
}

/* Reads a call of a tool that another server had: the model sees that of a function with one argument. */
static void read_other_call(const json_t *item, const struct place *at, const char *name, const char *field)
{
    const char *id = member(item, "call_id", at);
    const json_t *value = fields_get(item, field);
    if (!value)
        refusal_field(at->to->refusal, "input", "%s.%s: expected a value, found nothing", at->text, field);
    if (at->to->refusal->status)
        return;
    json_t *arguments = json_pack("{s: O}", field, value);
    chat_body_call(at->to, id, name, arguments);
    json_decref(arguments);
}

static void read_custom_call(const json_t *item, const struct place *at)
{
    read_other_call(item, at, member(item, "name", at), "input");
}

static void read_shell_call(const json_t *item, const struct place *at)
{
    read_other_call(item, at, "local_shell", "action");
}

/* Leaves out a search of another server: the answer after it says what was found. */
static void read_search(const json_t *item, const struct place *at)
{
    (void)item, (void)at;
}

static void read_output(const json_t *item, const struct place *at)
{
    const char *id = member(item, "call_id", at);
    struct str text = {0};
    join(item, "output", texts, at, &text);
    if (!at->to->refusal->status)
        chat_body_result(at->to, id, str_text(&text), text.len);
    str_free(&text);
}

/* Reads the thinking from the first of its places that has any: the text, what this server gave out as
 * encrypted, the summary. Another server's encrypted thinking cannot be read. */
static void read_reasoning(const json_t *item, const struct place *at)
{
    static const char *const kinds[] = {"reasoning_text", "text", NULL};
    static const char *const summaries[] = {"summary_text", NULL};
    struct str text = {0};
    if (fields_get(item, "content"))
        join(item, "content", kinds, at, &text);
    if (!text.len)
        chat_body_unseal(fields_get(item, "encrypted_content"), &text);
    if (!text.len && fields_get(item, "summary"))
        join(item, "summary", summaries, at, &text);
    chat_body_check(at->to, &text);
    if (!at->to->refusal->status && text.len)
        chat_body_think(at->to, str_text(&text), text.len);
    if (text.len)
        note_status(item, at);
    str_free(&text);
}

static void read_item(const json_t *item, const struct place *at)
{
    static const struct {
        const char *type;
        void (*read)(const json_t *item, const struct place *at);
    } kinds[] = {{"message", read_message},
                 {"function_call", read_call},
                 {"function_call_output", read_output},
                 {"custom_tool_call", read_custom_call},
                 {"custom_tool_call_output", read_output},
                 {"local_shell_call", read_shell_call},
                 {"local_shell_call_output", read_output},
                 {"web_search_call", read_search},
                 {"reasoning", read_reasoning}};
    const json_t *given = fields_get(item, "type");
    const char *type = given ? json_string_value(given) : "message";
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].type, type) == 0) {
            kinds[i].read(item, at);
            return;
        }
    }
    if (!json_is_object(item) || !type)
        refusal_field(at->to->refusal, "input", "%s: expected an object with a type", at->text);
    else
        refusal_field(at->to->refusal, "input", "%s: items of type \"%.40s\" are not supported", at->text,
                      type);
}

static void read_items(const json_t *items, const char *name, struct chat_body *to)
{
    struct place at = {.to = to};
    for (size_t i = 0; i < json_array_size(items) && !to->refusal->status; i++) {
        snprintf(at.text, sizeof at.text, "%s[%zu]", name, i);
        read_item(json_array_get(items, i), &at);
    }
}

/* Reads the conversation that the request continues. */
static void read_previous(const json_t *body, const struct api_request_defaults *defaults,
                          struct chat_body *to)
{
    const char *id = fields_text(body, "previous_response_id", to->refusal);
    if (!id)
        return;
    json_t *items = defaults->responses ? response_store_items(defaults->responses, id) : NULL;
    if (!items)
        refusal_set(to->refusal, 400, "previous_response_id", "previous_response_not_found",
                    "previous_response_id: there is no response %.80s; the oldest are dropped first", id);
    read_items(items, "previous items", to);
    json_decref(items);
}

/* Returns the input as an array of items, which the caller owns. */
static json_t *input_items(const json_t *body, struct chat_body *to)
{
    const json_t *input = fields_get(body, "input");
    if (json_is_string(input))
        return json_pack("[{s: s, s: s, s: O}]", "type", "message", "role", "user", "content", input);
    if (!json_is_array(input))
        refusal_field(to->refusal, "input", "input: expected a text or a list of items, found %s",
                      fields_kind(input));
    else if (!json_array_size(input) && !fields_get(body, "instructions") &&
             !fields_get(body, "previous_response_id"))
        refusal_field(to->refusal, "input", "input: expected a text or at least one item, found none");
    return json_incref((json_t *)(uintptr_t)input);
}

/* ---- tools ---- */

/* Returns whether a tool is one of those that tool_choice allows. allowed: NULL: all are. */
static bool is_allowed(const json_t *allowed, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(allowed); i++)
        if (json_equal(json_object_get(json_array_get(allowed, i), "name"), name))
            return true;
    return allowed == NULL;
}

/* What the tools of a list have in common. */
struct tool_list {
    const char *space;     /* "": none */
    const json_t *allowed; /* NULL: all are */
    const char *place;     /* name in errors */
};

static void read_function(const json_t *tool, const struct tool_list *of, struct chat_body *to)
{
    const json_t *name = json_object_get(tool, "name");
    struct str joined = {0};
    if (!json_is_string(name)) {
        refusal_field(to->refusal, "tools", "%s.name: expected a text, found %s", of->place,
                      fields_kind(name));
        return;
    }
    responses_body_join_name(of->space, json_string_value(name), &joined);
    chat_body_check(to, &joined);
    if (is_allowed(of->allowed, name))
        chat_body_tool(to, str_text(&joined), fields_get(tool, "description"),
                       fields_get(tool, "parameters"));
    str_free(&joined);
}

/* Reads the tools. Other types than functions run on OpenAI's servers, or have other forms of calls. */
static void read_tools(const json_t *tools, const char *space, const json_t *allowed, struct chat_body *to)
{
    char place[48];
    for (size_t i = 0; i < json_array_size(tools) && !to->refusal->status; i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        const char *name = json_string_value(json_object_get(tool, "name"));
        snprintf(place, sizeof place, "tools[%zu]", i);
        if (!type)
            refusal_field(to->refusal, "tools", "%s: expected an object with a type", place);
        else if (strcmp(type, "function") == 0)
            read_function(tool, &(struct tool_list){space, allowed, place}, to);
        else if (strcmp(type, "namespace") == 0 && name && !*space)
            read_tools(fields_array(tool, "tools", to->refusal), name, allowed, to);
        else
            chat_body_skip(to, type);
    }
}

static void read_tool_choice(const json_t *choice, struct chat_body *to)
{
    const char *mode = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(choice, "name"));
    if (type && strcmp(type, "allowed_tools") == 0)
        mode = json_string_value(json_object_get(choice, "mode"));
    if (mode && (strcmp(mode, "auto") == 0 || strcmp(mode, "none") == 0 || strcmp(mode, "required") == 0))
        chat_body_choose(to, mode);
    else if (type && strcmp(type, "function") == 0 && name)
        chat_body_choose_tool(to, name);
    else if (choice)
        refusal_field(to->refusal, "tool_choice",
                      "tool_choice: expected auto, none, required, a function or allowed_tools, found %s",
                      json_quote(choice).text);
}

/* ---- other fields ---- */

/* Reads text.format, whose schema has no object of its own around it. */
static void read_format(const json_t *body, struct chat_body *to)
{
    const json_t *text = fields_object(body, "text", to->refusal);
    const json_t *format = text ? fields_object(text, "format", to->refusal) : NULL;
    const json_t *schema = format ? fields_get(format, "schema") : NULL;
    if (!format)
        return;
    json_t *own = json_pack("{s: O?}", "type", json_object_get(format, "type"));
    if (schema)
        json_object_set_new(own, "json_schema", json_pack("{s: O}", "schema", schema));
    chat_body_set(to, "response_format", own);
}

static void read_effort(const json_t *body, struct chat_body *to)
{
    const json_t *reasoning = fields_object(body, "reasoning", to->refusal);
    const char *effort = reasoning ? fields_text(reasoning, "effort", to->refusal) : NULL;
    if (effort)
        chat_body_set(to, "reasoning_effort", json_string(effort));
}

static void check_include(const json_t *body, struct chat_body *to)
{
    const json_t *include = fields_array(body, "include", to->refusal);
    for (size_t i = 0; i < json_array_size(include); i++)
        if (json_is_text(json_array_get(include, i), "message.output_text.logprobs"))
            refusal_set(to->refusal, 400, "include", "unsupported_parameter",
                        "include: message.output_text.logprobs is not supported");
}

/* Keeps the fields that the reply repeats, with the items for later requests if there may be any. */
static void keep_given(const json_t *body, json_t *input, struct chat_body *to)
{
    bool stores = fields_bool(body, "store", true, to->refusal);
    to->given = json_copy((json_t *)(uintptr_t)body);
    if (!to->given || json_object_set(to->given, "input", stores ? input : json_null()) < 0)
        refusal_set(to->refusal, 503, NULL, NULL, "out of memory for the request");
}

void responses_body_read(const struct json_t *body, const struct api_request_defaults *defaults,
                         struct chat_body *to)
{
    static const char *const refused[] = {"logprobs",     "top_logprobs", "background",
                                          "conversation", "prompt",       NULL};
    static const char *const dropped[] = {
        "input",          "instructions", "text",     "include", "store", "previous_response_id",
        "stream_options", "reasoning",    "metadata", NULL};
    const json_t *instructions = fields_get(body, "instructions"), *choice = fields_get(body, "tool_choice");
    bool limits = json_is_text(json_object_get(choice, "type"), "allowed_tools");
    const char *said = fields_text(body, "instructions", to->refusal);
    json_t *input = input_items(body, to);
    chat_body_refuse(to, refused);
    chat_body_refuse_choices(to);
    if (said && *said)
        chat_body_say(to, "system", said, json_string_length(instructions));
    read_previous(body, defaults, to);
    read_items(input, "input", to);
    read_tools(fields_array(body, "tools", to->refusal), "", limits ? json_object_get(choice, "tools") : NULL,
               to);
    read_tool_choice(choice, to);
    read_format(body, to);
    read_effort(body, to);
    check_include(body, to);
    chat_body_drop(to, dropped);
    keep_given(body, input, to);
    json_decref(input);
}
