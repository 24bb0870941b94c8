#include "api/batch_line.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialect.h"
#include "api/fields.h"
#include "api/reader.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "generate/generator.h"
#include "generate/request_api.h"
#include "text/utf8.h"

/* The limit of generate/request.c for a line in the project's own form. */
enum { MAX_VALUES = 1 << 18 };

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Returns the object of a line in OpenAI's form, owned by the caller. NULL: the line has another form, or is
 * not JSON. */
static json_t *parse(const char *text, size_t len)
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

static int read_openai(struct batch_line *b, const json_t *root, const struct batch_reader *from,
                       struct moeflux_err *e)
{
    const struct generator *g = from->reader->generator;
    struct api_request_defaults defaults = {.options = from->reader->defaults.options};
    const struct dialect *d = &dialect_chat;
    b->is_openai = true;
    if (defaults.options.seed < 0)
        defaults.options.seed = (int64_t)(from->base_seed + b->line - 1);
    int rc = read_envelope(b, root, &d, e);
    b->has_id = b->custom_id != NULL;
    if (rc)
        return rc;
    const json_t *body = json_object_get(root, "body");
    if (fields_bool(body, "stream", false, &b->refusal))
        refusal_field(&b->refusal, "stream", "stream: a batch has whole answers only");
    if (b->refusal.status || api_request_take(&b->request, d->chat, body, g, &defaults, &b->refusal))
        return err_set(e, b->refusal.status == 503 ? ERR_MEMORY : ERR_USAGE, "line %" PRIu64 ": %s", b->line,
                       b->refusal.text);
    b->skipped_tool = api_request_choice(&b->request, 0)->request.skipped_tool;
    b->reply = reply_new(d, &b->request, from->model, g, NULL, e);
    return b->reply ? 0 : (int)e->code;
}

static int read_own(struct batch_line *b, const char *text, size_t len, const struct batch_reader *from,
                    struct moeflux_err *e)
{
    struct choice *c = b->own->encoded;
    struct request *r = &c->request;
    int rc = text ? request_read(r, text, len, b->line, &from->reader->defaults.options, e)
                  : request_too_long(r, b->line, from->max_bytes, e);
    b->has_id = r->id && !json_is_null(r->id);
    b->skipped_tool = r->skipped_tool;
    /* Without -s every line has a seed of its own, so that equal prompts get different answers. */
    c->seed = r->options.seed < 0 ? from->base_seed + b->line - 1 : (uint64_t)r->options.seed;
    c->has_seed = true;
    return rc;
}

/* Gives a line that cannot be parsed the form of the lines before it. */
static void choose_form(struct batch_line *b, struct batch_reader *from, int rc)
{
    if (b->is_openai || !rc)
        from->as_openai = b->is_openai;
    else if (from->as_openai && !json_object_size(b->own->encoded->request.fields))
        b->is_openai = true;
}

int batch_line_read(struct batch_line *b, struct batch_reader *from, const char *text, size_t len,
                    uint64_t line, struct moeflux_err *e)
{
    *b = (struct batch_line){.line = line};
    json_t *root = text ? parse(text, len) : NULL;
    int rc = root ? 0 : request_api_new_made(&b->own, e);
    if (!rc)
        rc = root ? read_openai(b, root, from, e) : read_own(b, text, len, from, e);
    json_decref(root);
    if (rc == ERR_MEMORY && !b->own && !b->is_openai)
        return rc;
    choose_form(b, from, rc);
    b->key = json_id_key(b->is_openai ? b->custom_id : batch_line_id(b), line);
    return b->key ? rc : err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, line);
}

int batch_line_encode(struct batch_line *b, const struct batch_reader *from, struct moeflux_err *e)
{
    struct generator *g = from->reader->generator;
    if (b->is_openai)
        return 0;
    int rc = request_encode(&b->own->encoded->request, g, e);
    return rc ? rc : request_check_length(&b->own->encoded->request, g->max_context, e);
}

bool batch_line_hides_tools(const struct batch_line *b)
{
    return b->is_openai ? api_request_hides_tools(&b->request) : b->own->encoded->request.tools_are_unseen;
}

struct moeflux_request *const *batch_line_requests(const struct batch_line *b, uint32_t *n)
{
    *n = b->is_openai ? b->request.n_choices : 1;
    return b->is_openai ? b->request.requests : &b->own;
}

size_t batch_line_n_tokens(const struct batch_line *b)
{
    const struct choice *c = b->is_openai ? api_request_choice(&b->request, 0) : b->own->encoded;
    return c->request.tokens.n;
}

struct json_t *batch_line_id(const struct batch_line *b)
{
    return b->own ? b->own->encoded->request.id : NULL;
}

/* Takes ownership of response and error; NULL stands for lack of memory. */
static char *dump(const struct batch_line *b, json_t *response, json_t *error)
{
    char id[40];
    snprintf(id, sizeof id, "batch_req_%" PRIu64, b->line);
    json_t *custom_id = b->custom_id ? json_incref(b->custom_id) : json_null();
    json_t *object = json_pack("{s: s, s: o, s: o, s: o}", "id", id, "custom_id", custom_id, "response",
                               response, "error", error);
    char *line = json_sent_dump(object, JSON_REAL_PRECISION(9));
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
    moeflux_request_free(b->own);
    free(b->key);
    *b = (struct batch_line){0};
}
