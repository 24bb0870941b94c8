#include "api/batch_line.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/dialect.h"
#include "api/fields.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "generate/generator.h"
#include "text/utf8.h"

/* The limit of generate/request.c for a line in the project's own form. */
enum { MAX_VALUES = 1 << 18 };

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

struct json_t *batch_line_parse(const char *text, size_t len)
{
    /* Saves parsing a line of the project's own form twice. */
    if (!memmem(text, len, "\"custom_id\"", 11) && !memmem(text, len, "\"body\"", 6))
        return NULL;
    json_error_t why;
    bool fits = json_count_values(text, len) <= MAX_VALUES;
    json_t *root = fits ? json_sent_read(text, len, &why) : NULL;
    if (json_object_get(root, "custom_id") || json_object_get(root, "body"))
        return root;
    json_decref(root);
    return NULL;
}

/* Reads the fields around the body. */
static int read_envelope(struct batch_line *b, const json_t *root, const struct dialect **d,
                         struct moeflux_err *e)
{
    static const char *const names[] = {"custom_id", "method", "url", "body"};
    const json_t *id = json_object_get(root, "custom_id"), *url = json_object_get(root, "url");
    const char *name;
    json_t *value;
    if (json_string_length(id) > 0)
        b->custom_id = json_incref((json_t *)(uintptr_t)id);
    else
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": custom_id: expected a text, found %s", b->line,
                       json_is_string(id) ? "an empty one" : fields_kind(id));
    json_object_foreach((json_t *)(uintptr_t)root, name, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            known |= strcmp(name, names[i]) == 0;
        if (!known)
            return err_set(e, ERR_FORMAT, "line %" PRIu64 ": unknown field \"%.60s\"", b->line, name);
    }
    if (!is_text(json_object_get(root, "method"), "POST"))
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": method: expected \"POST\"", b->line);
    *d = is_text(url, dialect_chat.path) ? &dialect_chat : &dialect_completions;
    if (!is_text(url, (*d)->path))
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": url: expected \"%s\" or \"%s\"", b->line,
                       dialect_chat.path, dialect_completions.path);
    if (!json_is_object(json_object_get(root, "body")))
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": body: expected an object, found %s", b->line,
                       fields_kind(json_object_get(root, "body")));
    return 0;
}

int batch_line_read(struct batch_line *b, const struct json_t *root, uint64_t line, const char *model,
                    const struct generator *g, const struct api_request_defaults *defaults,
                    struct moeflux_err *e)
{
    const struct dialect *d = &dialect_chat;
    *b = (struct batch_line){.line = line};
    int rc = read_envelope(b, root, &d, e);
    if (rc)
        return rc;
    const json_t *body = json_object_get(root, "body");
    if (fields_bool(body, "stream", false, &b->refusal))
        refusal_field(&b->refusal, "stream", "stream: a batch has whole answers only");
    if (b->refusal.status || api_request_take(&b->request, d->chat, body, g, defaults, &b->refusal))
        return err_set(e, b->refusal.status == 503 ? ERR_MEMORY : ERR_USAGE, "line %" PRIu64 ": %s", line,
                       b->refusal.text);
    b->reply = reply_new(d, &b->request, model, g->tokenizer, NULL, e);
    return b->reply ? 0 : (int)e->code;
}

/* Takes ownership of response and error; NULL stands for lack of memory. */
static char *dump(const struct batch_line *b, json_t *response, json_t *error)
{
    char id[40];
    snprintf(id, sizeof id, "batch_req_%" PRIu64, b->line);
    json_t *custom_id = b->custom_id ? json_incref(b->custom_id) : json_null();
    json_t *object = json_pack("{s: s, s: o, s: o, s: o}", "id", id, "custom_id", custom_id, "response",
                               response, "error", error);
    char *line = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return line;
}

char *batch_line_answer(const struct batch_line *b)
{
    char id[40];
    snprintf(id, sizeof id, "req_%" PRIu64, b->line);
    json_t *body = b->refusal.status ? refusal_json(&b->refusal) : b->reply->dialect->whole(b->reply);
    int status = b->refusal.status ? (int)b->refusal.status : 200;
    json_t *response = json_pack("{s: i, s: s, s: o}", "status_code", status, "request_id", id, "body", body);
    return dump(b, response, json_null());
}

char *batch_line_error(const struct batch_line *b, const char *text)
{
    json_t *error = json_pack("{s: s, s: o, s: I}", "code", "invalid_request", "message",
                              utf8_json(text, strlen(text)), "line", (json_int_t)b->line);
    return dump(b, json_null(), error);
}

struct json_t *batch_line_result(const struct json_t *object, uint64_t *line, bool *failed)
{
    json_t *id = json_object_get(object, "custom_id"), *error = json_object_get(object, "error");
    const json_t *response = json_object_get(object, "response");
    const json_t *status = json_object_get(response, "status_code"), *number = json_object_get(error, "line");
    if (!id || !error || !response)
        return NULL;
    *line = json_integer_value(number) > 0 ? (uint64_t)json_integer_value(number) : 0;
    *failed = !json_is_null(error) || json_integer_value(status) != 200;
    if (json_is_string(id) ? !json_is_integer(status) && json_is_null(error) : !*line)
        return NULL;
    return id;
}

void batch_line_free(struct batch_line *b)
{
    reply_free(b->reply);
    api_request_free(&b->request);
    json_decref(b->custom_id);
    *b = (struct batch_line){0};
}
