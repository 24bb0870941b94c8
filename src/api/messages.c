#include "api/messages.h"

#include <jansson.h>
#include <string.h>

#include "base/str.h"
#include "api/fields.h"
#include "api/refusal.h"

/* Joins the texts of an array of parts. */
static int join_parts(const json_t *parts, size_t i, struct str *text, struct refusal *refusal)
{
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, "text");
        if (!type)
            return refusal_field(refusal, "messages",
                                 "messages[%zu].content[%zu]: expected an object with a type", i, k);
        if (strcmp(type, "text") != 0)
            return refusal_field(refusal, "messages",
                                 "messages[%zu].content[%zu]: parts of type \"%.40s\" are not supported", i,
                                 k, type);
        if (!json_is_string(words))
            return refusal_field(refusal, "messages",
                                 "messages[%zu].content[%zu].text: expected a text, found %s", i, k,
                                 fields_kind(words));
        str_add(text, json_string_value(words), json_string_length(words));
    }
    return 0;
}

/* Returns the message with one text as its content; the caller owns it. */
static json_t *read_one(const json_t *m, size_t i, struct refusal *refusal)
{
    const json_t *content = fields_get(m, "content"), *role = fields_get(m, "role");
    struct str text = {0};
    if (!json_is_object(m) || !json_is_string(role)) {
        refusal_field(refusal, "messages", "messages[%zu]: expected an object with a role", i);
        return NULL;
    }
    if (json_is_array(content) && join_parts(content, i, &text, refusal)) {
        str_free(&text);
        return NULL;
    }
    if (json_is_string(content))
        str_add(&text, json_string_value(content), json_string_length(content));
    else if (!json_is_array(content) &&
             !(content == NULL && strcmp(json_string_value(role), "assistant") == 0))
        refusal_field(refusal, "messages",
                      "messages[%zu].content: expected a text or an array of parts, found %s", i,
                      fields_kind(content));
    json_t *out = refusal->status || !str_ok(&text) ? NULL : json_copy((json_t *)(uintptr_t)m);
    if (out && strcmp(json_string_value(role), "developer") == 0)
        json_object_set_new(out, "role", json_string("system"));
    if (out)
        json_object_set_new(out, "content", json_stringn(str_text(&text), text.len));
    str_free(&text);
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
