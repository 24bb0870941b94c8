#include "api/anthropic_body.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/chat_body.h"
#include "api/fields.h"
#include "api/refusal.h"
#include "base/json.h"
#include "base/str.h"

static const char *const texts[] = {"text", NULL};

/* ---- the system's text ---- */

/* Appends a text without a first line that identifies the client for billing. Claude Code's has a hash that
 * changes with each request; at the beginning of a prompt it would cost the whole prefix. */
static void say_system(struct chat_body *to, const char *text, size_t n)
{
    static const char header[] = "x-anthropic-billing-header:";
    if (n >= sizeof header - 1 && strncmp(text, header, sizeof header - 1) == 0) {
        const char *end = memchr(text, '\n', n);
        size_t line = end ? (size_t)(end - text) + 1 : n;
        text += line;
        n -= line;
    }
    if (n)
        chat_body_say(to, "system", text, n);
}

static void read_system(const json_t *body, struct chat_body *to)
{
    const json_t *system = fields_get(body, "system");
    char where[40];
    if (!system)
        return;
    if (!json_is_array(system) && !json_is_string(system))
        refusal_field(to->refusal, "system", "system: expected a text or a list of blocks, found %s",
                      fields_kind(system));
    if (json_is_string(system))
        say_system(to, json_string_value(system), json_string_length(system));
    for (size_t i = 0; i < json_array_size(system) && !to->refusal->status; i++) {
        struct str text = {0};
        json_t *block = json_pack("[O]", json_array_get(system, i));
        snprintf(where, sizeof where, "system (block %zu)", i);
        chat_body_join(to, block, texts, "system", where, &text);
        say_system(to, str_text(&text), text.len);
        json_decref(block);
        str_free(&text);
    }
}

/* ---- blocks of messages ---- */

/* Returns a text member of a block; "" with the refusal filled. */
static const char *member(const json_t *block, const char *name, const char *where, struct chat_body *to)
{
    const json_t *value = json_object_get(block, name);
    if (!json_is_string(value))
        refusal_field(to->refusal, "messages", "%s.%s: expected a text, found %s", where, name,
                      fields_kind(value));
    return json_is_string(value) ? json_string_value(value) : "";
}

static void read_tool_use(const json_t *block, const char *where, struct chat_body *to)
{
    const json_t *input = json_object_get(block, "input");
    const char *id = member(block, "id", where, to), *name = member(block, "name", where, to);
    if (!json_is_object(input))
        refusal_field(to->refusal, "messages", "%s.input: expected an object, found %s", where,
                      fields_kind(input));
    if (!to->refusal->status)
        chat_body_call(to, id, name, input);
}

static void read_tool_result(const json_t *block, const char *where, struct chat_body *to)
{
    const json_t *content = fields_get(block, "content");
    const char *id = member(block, "tool_use_id", where, to);
    struct str text = {0}, all = {0};
    char place[100];
    snprintf(place, sizeof place, "%s.content", where);
    if (content)
        chat_body_join(to, content, texts, "messages", place, &text);
    /* Chat templates know no other mark of a call that has failed. */
    if (fields_bool(block, "is_error", false, to->refusal))
        str_add_text(&all, "Error: ");
    str_add(&all, str_text(&text), text.len);
    chat_body_check(to, &all);
    if (!to->refusal->status)
        chat_body_result(to, id, str_text(&all), all.len);
    str_free(&text);
    str_free(&all);
}

/* Reads thinking; a client that did not want to see it sends it back in the signature. */
static void read_thinking(const json_t *block, const char *where, struct chat_body *to)
{
    struct str text = {0};
    str_add_text(&text, member(block, "thinking", where, to));
    if (!text.len)
        chat_body_unseal(json_object_get(block, "signature"), &text);
    chat_body_check(to, &text);
    if (text.len)
        chat_body_think(to, str_text(&text), text.len);
    str_free(&text);
}

static void read_block(const json_t *block, const char *role, const char *where, struct chat_body *to)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    bool answers = strcmp(role, "assistant") == 0;
    if (!type) {
        refusal_field(to->refusal, "messages", "%s: expected an object with a type", where);
    } else if (strcmp(type, "text") == 0) {
        const char *text = member(block, "text", where, to);
        chat_body_say(to, role, text, strlen(text));
    } else if (answers && strcmp(type, "thinking") == 0) {
        read_thinking(block, where, to);
    } else if (answers && strcmp(type, "tool_use") == 0) {
        read_tool_use(block, where, to);
    } else if (strcmp(role, "user") == 0 && strcmp(type, "tool_result") == 0) {
        read_tool_result(block, where, to);
    } else if (!answers || strcmp(type, "redacted_thinking") != 0) {
        /* Redacted thinking is another model's, which nobody here can read. */
        refusal_field(to->refusal, "messages", "%s: blocks of type \"%.40s\" by %s are not supported", where,
                      type, role);
    }
}

/* Reads the blocks of one message. Texts that follow each other are one text. */
static void read_blocks(const json_t *blocks, size_t i, const char *role, struct chat_body *to)
{
    char where[80];
    struct str text = {0};
    for (size_t k = 0; k < json_array_size(blocks) && !to->refusal->status; k++) {
        const json_t *block = json_array_get(blocks, k), *next = json_array_get(blocks, k + 1);
        bool more = json_is_text(json_object_get(next, "type"), "text");
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
        if (strcmp(role, "user") != 0 || !json_is_text(json_object_get(block, "type"), "text")) {
            read_block(block, role, where, to);
            continue;
        }
        if (text.len && text.data[text.len - 1] != '\n')
            str_add_text(&text, "\n");
        str_add_text(&text, member(block, "text", where, to));
        if (!more)
            chat_body_say(to, role, str_text(&text), text.len);
        if (!more)
            str_clear(&text);
    }
    chat_body_check(to, &text);
    str_free(&text);
}

static void read_messages(const json_t *body, struct chat_body *to)
{
    const json_t *messages = fields_array(body, "messages", to->refusal);
    if (!json_array_size(messages))
        refusal_field(to->refusal, "messages", "messages: expected a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages) && !to->refusal->status; i++) {
        const json_t *m = json_array_get(messages, i), *content = fields_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role ||
            (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
            refusal_field(to->refusal, "messages", "messages[%zu].role: expected user, assistant or system",
                          i);
        else if (json_is_string(content))
            chat_body_say(to, role, json_string_value(content), json_string_length(content));
        else if (json_is_array(content))
            read_blocks(content, i, role, to);
        else
            refusal_field(to->refusal, "messages",
                          "messages[%zu].content: expected a text or a list of blocks, found %s", i,
                          fields_kind(content));
    }
}

/* ---- tools ---- */

/* Reads the tools. Those of Anthropic's own kinds, such as web_search_20250305, run on its servers. */
static void read_tools(const json_t *body, struct chat_body *to)
{
    const json_t *tools = fields_array(body, "tools", to->refusal);
    for (size_t i = 0; i < json_array_size(tools) && !to->refusal->status; i++) {
        const json_t *tool = json_array_get(tools, i), *name = json_object_get(tool, "name");
        const char *type = json_string_value(fields_get(tool, "type"));
        if (type && strcmp(type, "custom") != 0)
            chat_body_skip(to, type);
        else if (!json_is_string(name))
            refusal_field(to->refusal, "tools", "tools[%zu].name: expected a text, found %s", i,
                          fields_kind(name));
        else
            chat_body_tool(to, json_string_value(name), fields_get(tool, "description"),
                           fields_get(tool, "input_schema"));
    }
}

static void read_tool_choice(const json_t *body, struct chat_body *to)
{
    const json_t *choice = fields_object(body, "tool_choice", to->refusal);
    const char *type = choice ? json_string_value(json_object_get(choice, "type")) : NULL;
    if (!choice)
        return;
    if (fields_bool(choice, "disable_parallel_tool_use", false, to->refusal))
        chat_body_set(to, "parallel_tool_calls", json_false());
    if (type && (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0))
        chat_body_choose(to, type);
    else if (type && strcmp(type, "any") == 0)
        chat_body_choose(to, "required");
    else if (type && strcmp(type, "tool") == 0 && json_is_string(json_object_get(choice, "name")))
        chat_body_choose_tool(to, json_string_value(json_object_get(choice, "name")));
    else
        refusal_field(to->refusal, "tool_choice",
                      "tool_choice: expected the type auto, any, none, or tool with a name, found \"%.40s\"",
                      type ? type : "");
}

/* ---- other fields ---- */

/* Reads {"effort", "format"} and the older place of a format. */
static void read_output(const json_t *body, struct chat_body *to)
{
    const json_t *config = fields_object(body, "output_config", to->refusal);
    const json_t *format =
        fields_object(config ? config : body, config ? "format" : "output_format", to->refusal);
    const char *effort = config ? fields_text(config, "effort", to->refusal) : NULL;
    if (effort)
        chat_body_set(to, "reasoning_effort", json_string(strcmp(effort, "max") == 0 ? "xhigh" : effort));
    if (format && !json_is_text(json_object_get(format, "type"), "json_schema"))
        refusal_field(to->refusal, "output_config", "output_config.format: expected the type json_schema");
    else if (format)
        chat_body_set(to, "response_format",
                      json_pack("{s: s, s: {s: O?}}", "type", "json_schema", "json_schema", "schema",
                                json_object_get(format, "schema")));
}

/* Reads {"type", "budget_tokens", "display"}, which a chat's field takes, too. The types that it does not
 * have leave it to the model how much it thinks. */
static void read_thinking_config(const json_t *body, struct chat_body *to)
{
    const json_t *thinking = fields_object(body, "thinking", to->refusal);
    const char *type = thinking ? json_string_value(json_object_get(thinking, "type")) : "adaptive";
    if (type && (strcmp(type, "adaptive") == 0 || strcmp(type, "between_tools") == 0))
        json_object_del(to->fields, "thinking");
    else if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0))
        refusal_field(to->refusal, "thinking",
                      "thinking: expected the type enabled, disabled, adaptive or between_tools");
    if (thinking)
        to->given = json_pack("{s: O}", "thinking", thinking);
}

void anthropic_body_read(const struct json_t *body, const struct api_request_defaults *defaults,
                         struct chat_body *to)
{
    static const char *const refused[] = {"logprobs", "top_logprobs", "mcp_servers", "container", NULL};
    static const char *const dropped[] = {"system",        "metadata",      "output_config",
                                          "output_format", "cache_control", NULL};
    (void)defaults;
    chat_body_refuse(to, refused);
    chat_body_refuse_choices(to);
    read_system(body, to);
    read_messages(body, to);
    read_tools(body, to);
    read_tool_choice(body, to);
    read_output(body, to);
    read_thinking_config(body, to);
    chat_body_drop(to, dropped);
}
