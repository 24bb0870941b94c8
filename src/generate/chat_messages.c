#include "generate/chat_messages.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"

/* Fails: a member of message i is wrong. */
static int wrong(const char *where, size_t i, const char *what, const json_t *found, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: messages[%zu].%s, found %s", where, i, what, json_quote(found).text);
}

static bool is_role(const json_t *m, const char *role)
{
    const char *found = json_string_value(json_object_get(m, "role"));
    return found && strcmp(found, role) == 0;
}

static int check(const json_t *m, size_t i, const char *where, struct moeflux_err *e)
{
    const json_t *content = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
    bool known = is_role(m, "system") || is_role(m, "user") || is_role(m, "assistant") || is_role(m, "tool");
    if (!known)
        return wrong(where, i, "role: expected system, user, assistant or tool", json_object_get(m, "role"),
                     e);
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return wrong(where, i, "tool_calls: expected a list", calls, e);
    bool may_lack = is_role(m, "assistant") || is_role(m, "tool");
    if (!json_is_string(content) && !(may_lack && (!content || json_is_null(content))))
        return wrong(where, i, "content: expected a text", content, e);
    return 0;
}

/* Parses the arguments of a call by the rules for an answer's calls (tool_calls.h), which clients send
 * back. NULL: they are not an object. */
static json_t *parse_arguments(const json_t *text)
{
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    json_error_t why;
    json_t *parsed =
        json_count_values(bytes, n) <= JSON_MAX_LARGE ? json_sent_load(bytes, n, JSON_ALLOW_NUL, &why) : NULL;
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

static json_t *text_of(const json_t *object)
{
    char *text = json_sent_dump(object, 0);
    json_t *string = text ? json_string(text) : NULL;
    free(text);
    return string;
}

/* Returns whether these arguments are none. */
static bool is_nothing(const json_t *arguments)
{
    const char *text = json_string_value(arguments);
    if (text)
        text += strspn(text, " \t\r\n");
    return !arguments || json_is_null(arguments) || (text && (!*text || strcmp(text, "null") == 0)) ||
           (json_is_array(arguments) && json_array_size(arguments) == 0);
}

/* Returns arguments in another form; NULL: they stay as they are. Arguments that a model wrote wrong, or
 * that a client has cut, must not end the conversation. */
static json_t *changed_arguments(const json_t *arguments, enum call_arguments form)
{
    if (json_is_string(arguments) && json_string_length(arguments) == 0)
        return form == ARGUMENTS_TEXTS ? json_string("{}") : json_object();
    if (form == ARGUMENTS_TEXTS)
        return json_is_object(arguments) ? text_of(arguments) : NULL;
    json_t *parsed = json_is_string(arguments) ? parse_arguments(arguments) : NULL;
    if (parsed || form == ARGUMENTS_PARSED || json_is_object(arguments))
        return parsed;
    if (is_nothing(arguments))
        return json_object();
    /* The template iterates over the members: one of them is the text, so that the model sees what it
     * wrote. */
    return json_pack("{s: O}", "arguments", arguments);
}

/* Converts one call of a copied message. */
static int take_call(json_t *call, enum call_arguments form, size_t i, const char *where,
                     struct moeflux_err *e)
{
    json_t *function = json_object_get(call, "function");
    if (!json_is_string(json_object_get(function, "name")))
        return wrong(where, i, "tool_calls: expected functions with names", json_object_get(function, "name"),
                     e);
    json_t *arguments = changed_arguments(json_object_get(function, "arguments"), form);
    if (arguments)
        json_object_set_new(function, "arguments", arguments);
    return 0;
}

/* Gives the thinking of a past answer the name that templates know, if it has one of other servers. */
static void name_thinking(json_t *m)
{
    static const char *const others[] = {"reasoning", "thinking"};
    for (size_t i = 0; i < sizeof others / sizeof *others && !json_object_get(m, "reasoning_content"); i++) {
        json_t *text = json_object_get(m, others[i]);
        if (json_string_length(text))
            json_object_set(m, "reasoning_content", text);
    }
}

static int take(const json_t *m, enum call_arguments form, json_t *to, size_t i, bool *has_calls,
                const char *where, struct moeflux_err *e)
{
    int rc = check(m, i, where, e);
    json_t *own = rc ? NULL : json_deep_copy(m), *calls = json_object_get(own, "tool_calls");
    if (own && is_role(own, "assistant"))
        name_thinking(own);
    if (own && !json_array_size(calls) && !json_is_string(json_object_get(own, "content")))
        json_object_set_new(own, "content", json_string(""));
    for (size_t k = 0; !rc && k < json_array_size(calls); k++) {
        *has_calls = true;
        rc = take_call(json_array_get(calls, k), form, i, where, e);
    }
    if (rc)
        json_decref(own);
    else if (!own || json_array_append_new(to, own) < 0)
        rc = err_set(e, ERR_MEMORY, "out of memory for %s", where);
    return rc;
}

int chat_messages_read(const struct json_t *from, const char *system, enum call_arguments form,
                       struct json_t **out, bool *has_calls, const char *where, struct moeflux_err *e)
{
    json_t *to = json_array();
    int rc = json_array_size(from) ? 0 : err_set(e, ERR_FORMAT, "%s: messages: expected at least one", where);
    *has_calls = false;
    *out = NULL;
    if (!rc && system && *system && !is_role(json_array_get(from, 0), "system"))
        json_array_append_new(to, json_pack("{s: s, s: s}", "role", "system", "content", system));
    for (size_t i = 0; !rc && i < json_array_size(from); i++)
        rc = take(json_array_get(from, i), form, to, i, has_calls, where, e);
    if (rc)
        json_decref(to);
    else
        *out = to;
    return rc;
}
