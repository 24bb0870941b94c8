#include "api/messages.h"

#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "api/fields.h"
#include "api/refusal.h"

/* Kinds of parts, and the member that has their text. */
static const struct {
    const char *type, *member;
    bool is_thinking;
} parts_of_text[] = {
    {"text", "text", false},       {"input_text", "text", false},  {"output_text", "text", false},
    {"refusal", "refusal", false}, {"thinking", "thinking", true}, {"reasoning", "text", true},
};

static int add_part(const json_t *part, size_t i, size_t k, struct str *text, struct str *thinking,
                    struct refusal *refusal)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    size_t at = 0, n = sizeof parts_of_text / sizeof *parts_of_text;
    if (json_is_string(part)) {
        str_add(text, json_string_value(part), json_string_length(part));
        return 0;
    }
    if (!type)
        return refusal_field(refusal, "messages",
                             "messages[%zu].content[%zu]: expected a text or an object with a type", i, k);
    while (at < n && strcmp(parts_of_text[at].type, type) != 0)
        at++;
    if (at == n)
        return refusal_field(refusal, "messages",
                             "messages[%zu].content[%zu]: parts of type \"%.40s\" are not supported", i, k,
                             type);
    const json_t *words = json_object_get(part, parts_of_text[at].member);
    if (!json_is_string(words))
        return refusal_field(refusal, "messages", "messages[%zu].content[%zu].%s: expected a text, found %s",
                             i, k, parts_of_text[at].member, fields_kind(words));
    str_add(parts_of_text[at].is_thinking ? thinking : text, json_string_value(words),
            json_string_length(words));
    return 0;
}

/* Joins the texts of an array of parts. */
static int join_parts(const json_t *parts, size_t i, struct str *text, struct str *thinking,
                      struct refusal *refusal)
{
    int rc = 0;
    for (size_t k = 0; !rc && k < json_array_size(parts); k++)
        rc = add_part(json_array_get(parts, k), i, k, text, thinking, refusal);
    return rc;
}

static bool is_role(const json_t *m, const char *role)
{
    return json_is_text(json_object_get(m, "role"), role);
}

/* Reads the texts of a message. An answer or a result may lack its content. */
static int read_content(const json_t *m, size_t i, struct str *text, struct str *thinking,
                        struct refusal *refusal)
{
    const json_t *content = fields_get(m, "content");
    bool may_lack = is_role(m, "assistant") || is_role(m, "tool") || is_role(m, "function");
    if (json_is_array(content))
        return join_parts(content, i, text, thinking, refusal);
    if (json_is_string(content))
        str_add(text, json_string_value(content), json_string_length(content));
    else if (content || !may_lack)
        return refusal_field(refusal, "messages",
                             "messages[%zu].content: expected a text or an array of parts, found %s", i,
                             fields_kind(content));
    else if (json_is_string(fields_get(m, "refusal")))
        str_add_text(text, json_string_value(fields_get(m, "refusal")));
    return 0;
}

/* Returns the message with one text as its content; the caller owns it. */
static json_t *read_one(const json_t *m, size_t i, struct refusal *refusal)
{
    struct str text = {0}, thinking = {0};
    json_t *out = NULL;
    if (!json_is_object(m) || !json_is_string(fields_get(m, "role")))
        refusal_field(refusal, "messages", "messages[%zu]: expected an object with a role", i);
    else if (read_content(m, i, &text, &thinking, refusal) == 0 && str_ok(&text) && str_ok(&thinking))
        out = json_copy((json_t *)(uintptr_t)m);
    if (out && is_role(m, "developer"))
        json_object_set_new(out, "role", json_string("system"));
    if (out)
        json_object_set_new(out, "content", json_stringn(str_text(&text), text.len));
    if (out && thinking.len)
        json_object_set_new(out, "reasoning_content", json_stringn(str_text(&thinking), thinking.len));
    str_free(&text);
    str_free(&thinking);
    return out;
}

struct json_t *messages_read(const struct json_t *in, struct refusal *refusal)
{
    json_t *out = json_array();
    if (!json_array_size(in))
        refusal_field(refusal, "messages", "messages: expected an array of at least one message");
    for (size_t i = 0; !refusal->status && i < json_array_size(in); i++) {
        json_t *m = read_one(json_array_get(in, i), i, refusal);
        if (!m || json_array_append_new(out, m) < 0)
            refusal_set(refusal, 503, NULL, NULL, "out of memory for the messages");
    }
    if (refusal->status) {
        json_decref(out);
        out = NULL;
    }
    return out;
}
