#include "generate/chat_messages.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

/* Fails: `what` is wrong with message i. */
static int wrong(const char *where, size_t i, const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: message %zu: %s", where, i + 1, what);
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
        return wrong(where, i, "role: expected system, user, assistant or tool", e);
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return wrong(where, i, "tool_calls: expected a list", e);
    if (!json_is_string(content) && !(json_array_size(calls) && (!content || json_is_null(content))))
        return wrong(where, i, "content: expected a text", e);
    return 0;
}

/* Returns whether this is a whole number that 64 bits cannot hold. */
static bool is_large(const char *number, size_t n)
{
    size_t sign = *number == '-';
    errno = 0;
    strtoll(number, NULL, 10);
    return n > sign && strspn(number + sign, "0123456789") == n - sign && errno == ERANGE;
}

/* Appends JSON in which whole numbers of more than 64 bits are strings: the parser refuses them, and a
 * template writes the digits as they are. */
static void add_with_quotes(const char *text, size_t len, struct str *out)
{
    bool in_string = false;
    for (size_t i = 0, n; i < len; i += n) {
        n = in_string ? 1 : strspn(text + i, "+-0123456789.eE");
        bool large = n > 18 && is_large(text + i, n);
        n = n ? n : 1;
        if (in_string && text[i] == '\\' && i + 1 < len)
            n = 2;
        else if (text[i] == '"')
            in_string = !in_string;
        str_add_text(out, large ? "\"" : "");
        str_add(out, text + i, n);
        str_add_text(out, large ? "\"" : "");
    }
}

/* Parses the arguments of a call by the rules for an answer's calls (tool_calls.h), which clients send
 * back. NULL: they are not an object. */
static json_t *parse_arguments(const json_t *text)
{
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    bool fits = json_count_values(bytes, n) <= JSON_MAX_LARGE;
    json_t *parsed = fits ? json_loadb(bytes, n, JSON_ALLOW_NUL, NULL) : NULL;
    if (fits && !parsed) {
        struct str quoted = {0};
        add_with_quotes(bytes, n, &quoted);
        parsed = str_ok(&quoted) ? json_loadb(str_text(&quoted), quoted.len, JSON_ALLOW_NUL, NULL) : NULL;
        str_free(&quoted);
    }
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

static json_t *text_of(const json_t *object)
{
    char *text = json_dumps(object, 0);
    json_t *string = json_string(text ? text : "{}");
    free(text);
    return string;
}

/* Returns arguments in another form; NULL: they stay as they are. Arguments that a model wrote wrong,
 * or that a client has cut, must not end the conversation. */
static json_t *changed_arguments(const json_t *arguments, enum call_arguments form)
{
    if (json_is_string(arguments) && json_string_length(arguments) == 0)
        return form == ARGUMENTS_TEXTS ? json_string("{}") : json_object();
    if (form == ARGUMENTS_TEXTS)
        return json_is_object(arguments) ? text_of(arguments) : NULL;
    json_t *parsed = json_is_string(arguments) ? parse_arguments(arguments) : NULL;
    if (parsed || form == ARGUMENTS_PARSED || !arguments || json_is_object(arguments))
        return parsed;
    return json_object();
}

/* Converts one call of a copied message. */
static int take_call(json_t *call, enum call_arguments form, size_t i, const char *where,
                     struct moeflux_err *e)
{
    json_t *function = json_object_get(call, "function");
    if (!json_is_string(json_object_get(function, "name")))
        return wrong(where, i, "tool_calls: expected functions with names", e);
    json_t *arguments = changed_arguments(json_object_get(function, "arguments"), form);
    if (arguments)
        json_object_set_new(function, "arguments", arguments);
    return 0;
}

static int take(const json_t *m, enum call_arguments form, json_t *to, size_t i, bool *has_calls,
                const char *where, struct moeflux_err *e)
{
    int rc = check(m, i, where, e);
    json_t *own = rc ? NULL : json_deep_copy(m), *calls = json_object_get(own, "tool_calls");
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

/* Checks that the last message can be answered: a question, or the result of a tool. */
static int check_last(const json_t *from, const char *where, struct moeflux_err *e)
{
    size_t n = json_array_size(from);
    if (n == 0)
        return err_set(e, ERR_FORMAT, "%s: messages: expected at least one", where);
    const json_t *last = json_array_get(from, n - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    if (is_role(last, "assistant"))
        return wrong(where, n - 1, "the last one is an answer already", e);
    if (is_role(last, "user") && text && text[strspn(text, " \t\r\n")] == '\0')
        return err_set(e, ERR_FORMAT, "%s: the last message is empty", where);
    return 0;
}

int chat_messages_read(const struct json_t *from, const char *system, enum call_arguments form,
                       struct json_t **out, bool *has_calls, const char *where, struct moeflux_err *e)
{
    json_t *to = json_array();
    int rc = check_last(from, where, e);
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
