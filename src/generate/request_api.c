/* The requests of moeflux.h: fields are collected as JSON, which request.c reads like a line of --batch. */
#include "generate/request_api.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/answer_api.h"
#include "generate/answer_json.h"
#include "generate/request_fields.h"
#include "moeflux_chat.h"
#include "text/chat/chat.h"
#include "text/utf8.h"

enum { MAX_VALUES = 1 << 18 };

int moeflux_request_new(struct moeflux_request **out, struct moeflux_err *e)
{
    struct moeflux_request *r = *out = mem_new(1, sizeof *r, e);
    if (r && (r->fields = json_object()))
        return 0;
    free(r);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "out of memory for a request");
}

int request_api_new_made(struct moeflux_request **out, struct moeflux_err *e)
{
    struct moeflux_request *r = *out = mem_new(1, sizeof *r, e);
    if (r && (r->encoded = mem_new(1, sizeof *r->encoded, e)))
        return 0;
    free(r);
    *out = NULL;
    return ERR_MEMORY;
}

void request_api_forget(struct moeflux_request *r)
{
    if (r->encoded)
        choice_free(r->encoded);
    free(r->encoded);
    r->encoded = NULL;
}

void moeflux_request_free(struct moeflux_request *r)
{
    if (!r)
        return;
    request_api_forget(r);
    token_list_free(&r->ids);
    json_decref(r->fields);
    free(r);
}

void moeflux_request_cancel(struct moeflux_request *r)
{
    if (r)
        atomic_store(&r->is_cancelled, true);
}

/* Parses a JSON text. name: begins the errors. The text stands in an array, since the reader takes arrays and
 * objects only. */
static int parse(const char *name, const char *text, json_t **out, struct moeflux_err *e)
{
    json_error_t why;
    size_t len = strlen(text);
    struct str array = {0};
    if (json_count_values(text, len) > MAX_VALUES)
        return err_set(e, ERR_FORMAT, "%s: more than %d values", name, MAX_VALUES);
    str_addf(&array, "[%s]", text);
    json_t *values = str_ok(&array) ? json_sent_read(array.data, array.len, &why) : NULL;
    int rc = !str_ok(&array) ? err_set(e, ERR_MEMORY, "out of memory for the field %s", name)
             : !values       ? err_set(e, ERR_FORMAT, "%s: byte %d: %s", name, why.position - 1, why.text)
             : json_array_size(values) != 1 ? err_set(e, ERR_FORMAT, "%s: expected one JSON value", name)
                                            : 0;
    *out = rc ? NULL : json_incref(json_array_get(values, 0));
    json_decref(values);
    str_free(&array);
    return rc;
}

/* Returns the name under which a field is kept; NULL with `e` filled. */
static const char *find_field(const char *name, struct moeflux_err *e)
{
    if (!name) {
        err_set(e, ERR_USAGE, "the name of the field is NULL");
        return NULL;
    }
    /* It limits the tokens in a line of --batch; clients of servers mean a number of answers. */
    if (strcmp(name, "n") == 0) {
        err_set(e, ERR_USAGE, "a request has one answer, so no field \"n\"; max_tokens limits its tokens");
        return NULL;
    }
    const char *field = request_fields_find(name, REQUEST_IN_LINE);
    if (field && strcmp(field, "id") != 0)
        return field;
    err_set(e, ERR_USAGE, "a request has no field \"%.60s\"", name);
    return NULL;
}

static int check_given(const void *r, const void *text, const char *what, struct moeflux_err *e)
{
    return r && text ? 0 : err_set(e, ERR_USAGE, "the %s is NULL", r ? what : "request");
}

/* Sets a field; takes ownership of the value. */
static int set(struct moeflux_request *r, const char *field, json_t *value, struct moeflux_err *e)
{
    request_api_forget(r);
    if (json_is_null(value)) {
        json_object_del(r->fields, field);
        return 0;
    }
    return json_object_set_new(r->fields, field, value) == 0
               ? 0
               : err_set(e, ERR_MEMORY, "out of memory for the field %s", field);
}

int moeflux_request_set(struct moeflux_request *r, const char *name, const char *json, struct moeflux_err *e)
{
    int bad = check_given(r, json, "value of the field", e);
    const char *field = bad ? NULL : find_field(name, e);
    json_t *value;
    int rc = field ? parse(field, json, &value, e) : ERR_USAGE;
    return rc ? rc : set(r, field, value, e);
}

int moeflux_request_set_text(struct moeflux_request *r, const char *name, const char *text,
                             struct moeflux_err *e)
{
    int bad = check_given(r, text, "text of the field", e);
    const char *field = bad ? NULL : find_field(name, e);
    return field ? set(r, field, utf8_json(text, strlen(text)), e) : ERR_USAGE;
}

int moeflux_request_set_ids(struct moeflux_request *r, const int32_t *ids, size_t n, struct moeflux_err *e)
{
    struct token_list own = {0};
    int rc = check_given(r, ids || n == 0 ? "" : NULL, "list of ids", e);
    for (size_t i = 0; !rc && i < n; i++)
        rc = token_list_add(&own, ids[i], e);
    if (rc) {
        token_list_free(&own);
        return rc;
    }
    request_api_forget(r);
    token_list_free(&r->ids);
    r->ids = own;
    return 0;
}

void moeflux_request_set_alone(struct moeflux_request *r, const struct moeflux_alone *how)
{
    request_api_forget(r);
    r->is_alone = how != NULL;
    r->alone = how ? *how : (struct moeflux_alone){0};
}

/* ---- messages ---- */

/* Returns the array of messages, which is made if there is none; NULL with `e` filled. */
static json_t *messages_of(struct moeflux_request *r, struct moeflux_err *e)
{
    json_t *messages = json_object_get(r->fields, "messages");
    request_api_forget(r);
    if (json_is_array(messages))
        return messages;
    if (messages)
        err_set(e, ERR_USAGE, "messages: expected an array of messages to append to");
    else if (set(r, "messages", json_array(), e) == 0)
        return json_object_get(r->fields, "messages");
    return NULL;
}

/* Appends a message; takes ownership of it. */
static int append(struct moeflux_request *r, json_t *message, struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    e = e ? e : &own;
    json_t *messages = messages_of(r, e);
    if (!messages) {
        json_decref(message);
        return (int)e->code;
    }
    return json_array_append_new(messages, message) == 0
               ? 0
               : err_set(e, ERR_MEMORY, "out of memory for a message");
}

int moeflux_request_say(struct moeflux_request *r, const char *role, const char *text, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    int bad = check_given(r, role, "role of the message", e);
    if (!bad)
        bad = check_given(r, text, "text of the message", e);
    if (bad)
        return bad;
    json_t *messages = messages_of(r, &why);
    int rc = messages ? chat_say(messages, role, text, strlen(text), NULL, &why) : why.code;
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_request_add_message(struct moeflux_request *r, const char *json, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    json_t *message;
    int bad = check_given(r, json, "message", e);
    if (bad)
        return bad;
    int rc = parse("message", json, &message, &why);
    if (!rc && !json_is_object(message)) {
        json_decref(message);
        rc = err_set(&why, ERR_FORMAT, "message: expected an object");
    }
    rc = rc ? rc : append(r, message, &why);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

/* Returns the complete calls of an answer as JSON. */
static json_t *complete_calls(const struct answer *a)
{
    json_t *calls = json_array();
    for (size_t i = 0; i < a->n_calls; i++)
        if (!a->calls[i].is_cut)
            json_array_append_new(calls, answer_json_call(&a->calls[i]));
    return calls;
}

/* Appends a text to a member of a message. Returns not 0 without memory. */
static int extend(json_t *message, const char *name, const struct str *more)
{
    const json_t *old = json_object_get(message, name);
    struct str all = {0};
    str_add(&all, json_is_string(old) ? json_string_value(old) : "", json_string_length(old));
    str_add(&all, str_text(more), more->len);
    int bad = !str_ok(&all) || json_object_set_new(message, name, utf8_json(str_text(&all), all.len));
    str_free(&all);
    return bad;
}

/* Returns a copy of the message that the answer continues; NULL: it begins one. */
static json_t *copy_begun(const struct moeflux_request *r, const struct moeflux_answer *a)
{
    const json_t *messages = json_object_get(r->fields, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    return a->continues && json_is_text(json_object_get(last, "role"), "assistant") ? json_deep_copy(last)
                                                                                    : NULL;
}

/* Returns the name under which a message has its thinking. */
static const char *thinking_name(const json_t *message)
{
    static const char *const others[] = {"reasoning", "thinking"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!json_object_get(message, "reasoning_content") && json_object_get(message, others[i]))
            return others[i];
    return "reasoning_content";
}

int moeflux_request_add_answer(struct moeflux_request *r, const struct moeflux_answer *a,
                               struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    int rc = check_given(r, a, "answer", e);
    if (rc)
        return rc;
    const struct answer *own = &a->own;
    json_t *message = copy_begun(r, a), *calls = complete_calls(own);
    bool continues = message != NULL;
    if (!message)
        message = json_pack("{s: s}", "role", "assistant");
    int bad = extend(message, "content", &own->text);
    if (own->thinking.len)
        bad |= extend(message, thinking_name(message), &own->thinking);
    if (json_array_size(calls))
        bad |= json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    if (bad) {
        json_decref(message);
        return err_set(e, ERR_MEMORY, "out of memory for a message");
    }
    json_t *messages = json_object_get(r->fields, "messages");
    request_api_forget(r);
    if (continues)
        rc = json_array_set_new(messages, json_array_size(messages) - 1, message) == 0
                 ? 0
                 : err_set(&why, ERR_MEMORY, "out of memory for a message");
    else
        rc = append(r, message, &why);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}
