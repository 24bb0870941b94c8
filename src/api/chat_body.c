#include "api/chat_body.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/refusal.h"
#include "base/quote.h"
#include "base/str.h"
#include "text/utf8.h"

static void no_memory(struct chat_body *b)
{
    refusal_set(b->refusal, 503, NULL, NULL, "out of memory for the request");
}

void chat_body_init(struct chat_body *b, const struct json_t *in, struct refusal *refusal)
{
    *b = (struct chat_body){.fields = json_copy((json_t *)(uintptr_t)in),
                            .messages = json_array(),
                            .tools = json_array(),
                            .names = json_object(),
                            .refusal = refusal};
    json_object_del(b->fields, "messages");
    json_object_del(b->fields, "tools");
    json_object_del(b->fields, "tool_choice");
    if (!b->fields || !b->messages || !b->tools || !b->names)
        no_memory(b);
}

void chat_body_free(struct chat_body *b)
{
    json_decref(b->fields);
    json_decref(b->messages);
    json_decref(b->tools);
    json_decref(b->names);
    json_decref(b->given);
    str_free(&b->content);
    str_free(&b->thinking);
    *b = (struct chat_body){0};
}

/* ---- fields ---- */

/* Sets a member; takes ownership of `value`. */
static void set(struct chat_body *b, json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) < 0)
        no_memory(b);
}

void chat_body_set(struct chat_body *b, const char *name, struct json_t *value)
{
    set(b, b->fields, name, value);
}

/* Returns whether a value is as good as none. */
static bool is_empty(const json_t *value)
{
    bool empty_list = (json_is_array(value) || json_is_object(value)) && !json_array_size(value) &&
                      !json_object_size(value);
    bool no_number = json_is_number(value) && json_number_value(value) == 0;
    bool no_text = json_is_string(value) && !json_string_length(value);
    return !value || json_is_false(value) || empty_list || no_number || no_text;
}

void chat_body_refuse(struct chat_body *b, const char *const *names)
{
    for (; *names; names++) {
        if (!is_empty(fields_get(b->fields, *names)))
            refusal_set(b->refusal, 400, *names, "unsupported_parameter", "%s is not supported here", *names);
        json_object_del(b->fields, *names);
    }
}

void chat_body_refuse_choices(struct chat_body *b)
{
    static const char *const n[] = {"n", NULL};
    if (json_integer_value(json_object_get(b->fields, n[0])) == 1)
        json_object_del(b->fields, n[0]);
    chat_body_refuse(b, n);
}

void chat_body_drop(struct chat_body *b, const char *const *names)
{
    for (; *names; names++)
        json_object_del(b->fields, *names);
}

void chat_body_check(struct chat_body *b, const struct str *text)
{
    if (!str_ok(text))
        no_memory(b);
}

void chat_body_skip(struct chat_body *b, const char *type)
{
    struct quote named = quote_bytes(type, strlen(type));
    size_t n = strlen(b->note);
    if (strstr(b->note, named.text))
        return;
    snprintf(b->note + n, sizeof b->note - n, "%s%s",
             n ? ", " : "tools of these types are left out: ", named.text);
}

static const char seal[] = "moeflux:";

struct json_t *chat_body_seal(const char *thinking, size_t n)
{
    struct str all = {0};
    str_add_text(&all, seal);
    str_add(&all, thinking, n);
    json_t *text = str_ok(&all) ? utf8_json(str_text(&all), all.len) : NULL;
    str_free(&all);
    return text;
}

void chat_body_unseal(const struct json_t *sealed, struct str *out)
{
    const size_t skip = sizeof seal - 1;
    const char *text = json_string_value(sealed);
    if (text && strncmp(text, seal, skip) == 0)
        str_add(out, text + skip, json_string_length(sealed) - skip);
}

/* ---- messages ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

/* Ends the current message: its texts are complete. */
static void end_message(struct chat_body *b)
{
    chat_body_check(b, &b->content);
    chat_body_check(b, &b->thinking);
    if (b->content.data)
        set(b, b->current, "content", json_stringn(b->content.data, b->content.len));
    if (b->thinking.data)
        set(b, b->current, "reasoning_content", json_stringn(b->thinking.data, b->thinking.len));
    str_free(&b->content);
    str_free(&b->thinking);
    b->content = b->thinking = (struct str){0};
    b->is_cut = false;
    b->current = NULL;
}

static void begin_message(struct chat_body *b, const char *role)
{
    end_message(b);
    json_t *message = json_pack("{s: s}", "role", role);
    if (json_array_append_new(b->messages, message) < 0)
        no_memory(b);
    else
        b->current = message;
}

/* Continues the assistant's turn, or begins one. */
static void continue_turn(struct chat_body *b)
{
    if (!has_role(b->current, "assistant"))
        begin_message(b, "assistant");
}

/* Appends a text, after a newline if there is text without one that was not cut. */
static void add_text(struct chat_body *b, struct str *to, const char *text, size_t n)
{
    if (to->len && n && to->data[to->len - 1] != '\n' && !b->is_cut)
        str_add_text(to, "\n");
    str_add(to, text, n);
    b->is_cut = false;
}

void chat_body_say(struct chat_body *b, const char *role, const char *text, size_t n)
{
    bool is_system = strcmp(role, "system") == 0;
    if (is_system && b->current && !has_role(b->current, "system"))
        role = "user";
    if (strcmp(role, "user") == 0 || !has_role(b->current, role))
        begin_message(b, role);
    add_text(b, &b->content, text, n);
}

void chat_body_think(struct chat_body *b, const char *text, size_t n)
{
    /* Thinking comes first; after a text or a call it begins another turn. */
    if (b->content.data || json_object_get(b->current, "tool_calls"))
        end_message(b);
    continue_turn(b);
    add_text(b, &b->thinking, text, n);
}

void chat_body_cut(struct chat_body *b)
{
    b->is_cut = has_role(b->current, "assistant");
}

void chat_body_call(struct chat_body *b, const char *id, const char *name, const struct json_t *arguments)
{
    continue_turn(b);
    b->is_cut = false;
    json_t *calls = json_object_get(b->current, "tool_calls"), *own = json_string(name);
    if (!calls) {
        calls = json_array();
        set(b, b->current, "tool_calls", calls);
    }
    json_object_set(b->names, id, own);
    json_t *call = json_pack("{s: s, s: s, s: {s: o, s: O}}", "id", id, "type", "function", "function",
                             "name", own, "arguments", (json_t *)(uintptr_t)arguments);
    if (json_array_append_new(calls, call) < 0)
        no_memory(b);
}

void chat_body_result(struct chat_body *b, const char *id, const char *text, size_t n)
{
    /* Some templates write the function's name in front of its result. */
    json_t *name = json_object_get(b->names, id);
    begin_message(b, "tool");
    set(b, b->current, "tool_call_id", json_string(id));
    if (name)
        set(b, b->current, "name", json_incref(name));
    str_add(&b->content, text, n);
}

void chat_body_join(struct chat_body *b, const struct json_t *content, const char *const *types,
                    const char *field, const char *where, struct str *out)
{
    if (json_is_string(content)) {
        str_add(out, json_string_value(content), json_string_length(content));
        return;
    }
    if (!json_is_array(content))
        refusal_field(b->refusal, field, "%s: expected a text or a list of parts, found %s", where,
                      fields_kind(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *const *known = types;
        while (type && *known && strcmp(*known, type) != 0)
            known++;
        if (!type)
            refusal_field(b->refusal, field, "%s[%zu]: expected an object with a type", where, i);
        else if (!*known)
            refusal_field(b->refusal, field, "%s[%zu]: parts of type \"%.40s\" are not supported", where, i,
                          type);
        else if (!json_is_string(text))
            refusal_field(b->refusal, field, "%s[%zu].text: expected a text, found %s", where, i,
                          fields_kind(text));
        if (b->refusal->status)
            return;
        if (out->len && out->data[out->len - 1] != '\n')
            str_add_text(out, "\n");
        str_add(out, json_string_value(text), json_string_length(text));
    }
    chat_body_check(b, out);
}

/* ---- tools ---- */

void chat_body_tool(struct chat_body *b, const char *name, const struct json_t *description,
                    const struct json_t *parameters)
{
    json_t *function = json_pack("{s: s}", "name", name);
    json_t *tool = json_pack("{s: s, s: o}", "type", "function", "function", function);
    if (description && tool)
        set(b, function, "description", json_incref((json_t *)(uintptr_t)description));
    if (parameters && tool)
        set(b, function, "parameters", json_incref((json_t *)(uintptr_t)parameters));
    if (json_array_append_new(b->tools, tool) < 0)
        no_memory(b);
}

void chat_body_choose(struct chat_body *b, const char *mode)
{
    if (json_array_size(b->tools) || strcmp(mode, "required") == 0)
        chat_body_set(b, "tool_choice", json_string(mode));
}

void chat_body_choose_tool(struct chat_body *b, const char *name)
{
    chat_body_set(b, "tool_choice",
                  json_pack("{s: s, s: {s: s}}", "type", "function", "function", "name", name));
}

/* ---- the end ---- */

int chat_body_end(struct chat_body *b)
{
    end_message(b);
    chat_body_set(b, "messages", json_incref(b->messages));
    if (json_array_size(b->tools))
        chat_body_set(b, "tools", json_incref(b->tools));
    return b->refusal->status ? -1 : 0;
}
