#include "generate/request.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/constrain.h"
#include "generate/request_fields.h"

#define MAX_VALUES (1 << 18)

struct moeflux_sampler_options moeflux_request_sampler_defaults(void)
{
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    o.temperature = 0.7f;
    o.top_k = 20;
    o.top_p = 0.95f;
    o.top_n_sigma = -1;
    o.repeat_last = 64;
    return o;
}

struct request_options request_defaults(void)
{
    return (struct request_options){.predict = REQUEST_NO_LIMIT,
                                    .seed = -1,
                                    .logprobs = REQUEST_NO_LOGPROBS,
                                    .sampling = moeflux_request_sampler_defaults()};
}

struct moeflux_sampler_options request_sampling(const struct request_options *o, uint64_t seed)
{
    struct moeflux_sampler_options sampling = o->sampling;
    sampling.seed = seed;
    return sampling;
}

struct answer_options request_answer(const struct request_options *o)
{
    bool logprobs = o->logprobs != REQUEST_NO_LOGPROBS;
    return (struct answer_options){
        .limit = o->predict,
        .ignore_eos = o->ignore_eos,
        .chat = !o->raw,
        .stops = o->stops,
        .n_stops = o->n_stops,
        .keep_stop = o->keep_stop,
        .limits_thinking = o->limit_thinking,
        .think_budget = o->think_budget,
        .continues = o->continues,
        .continues_thinking = o->continues_thinking,
        .logprobs = logprobs,
        .n_logprobs = logprobs ? (uint32_t)o->logprobs : 0,
        .tools = o->tools,
        .one_call = o->one_call,
        .must_call = o->must_call,
        .may_call = o->may_call,
        .draft = o->draft,
    };
}

void request_constrain_ahead(const struct request_options *o, struct generator *s, struct constrain_ahead *a)
{
    constrain_ahead(a, s, o->grammar, o->must_call || o->may_call);
}

/* The beginning of error texts. */
struct where {
    char text[40];
};

static struct where where_of(const struct request *r)
{
    struct where w;
    if (r->line)
        snprintf(w.text, sizeof w.text, "line %" PRIu64, r->line);
    else
        snprintf(w.text, sizeof w.text, "the request");
    return w;
}

/* ---- fields ---- */

/* Two names of one field may be given if they say the same. */
static int set_field(struct request *r, const char *field, json_t *value, const char *where,
                     struct moeflux_err *e)
{
    const json_t *other = json_object_get(r->fields, field);
    if (other && !json_is_null(other) && !json_is_null(value) && !json_equal(other, value))
        return err_set(e, ERR_FORMAT, "%s: %s is given twice", where, field);
    if (other && json_is_null(value))
        return 0;
    return json_object_set(r->fields, field, value) < 0
               ? err_set(e, ERR_MEMORY, "out of memory for %s", where)
               : 0;
}

static int collect_fields(struct request *r, json_t *root, struct moeflux_err *e)
{
    const char *name;
    json_t *value;
    struct where where = where_of(r);
    int rc = 0;
    json_object_foreach(root, name, value)
    {
        const char *field = request_fields_find(name, REQUEST_IN_LINE);
        rc = field ? set_field(r, field, value, where.text, e)
                   : err_set(e, ERR_FORMAT, "%s: unknown field \"%.60s\"", where.text, name);
        if (rc)
            break;
    }
    return rc;
}

static int parse(struct request *r, const char *text, size_t len, struct moeflux_err *e)
{
    json_error_t why;
    if (json_count_values(text, len) > MAX_VALUES)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": more than %d values", r->line, MAX_VALUES);
    json_t *root = json_sent_read(text, len, &why);
    if (!root)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": byte %d: %s", r->line, why.position, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": expected a JSON object", r->line);
    }
    /* The id is read first, so that an error in another field can name it. */
    json_t *id = json_object_get(root, "id");
    bool id_ok = !id || json_is_null(id) || json_is_string(id) || json_is_integer(id);
    if (id && id_ok && json_object_set(r->fields, "id", id) == 0)
        r->id = id;
    json_object_del(root, "id");
    int rc = id_ok
                 ? collect_fields(r, root, e)
                 : err_set(e, ERR_FORMAT, "line %" PRIu64 ": id: expected a text or a whole number", r->line);
    json_decref(root);
    return rc;
}

int request_too_long(struct request *r, uint64_t line, size_t max_bytes, struct moeflux_err *e)
{
    *r = (struct request){.line = line, .id = json_null()};
    if (!(r->key = json_id_key(r->id, line)))
        return err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, line);
    return err_set(e, ERR_FORMAT, "line %" PRIu64 ": more than %zu bytes", line, max_bytes);
}

int request_read(struct request *r, const char *text, size_t len, uint64_t line,
                 const struct request_options *defaults, struct moeflux_err *e)
{
    *r = (struct request){.line = line, .id = json_null(), .options = *defaults, .fields = json_object()};
    struct where where = where_of(r);
    int rc = r->fields ? parse(r, text, len, e) : err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    if (!(r->key = json_id_key(r->id, line)))
        return err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    return rc ? rc : request_fields_take(r, where.text, e);
}

int request_take(struct request *r, struct json_t *object, const struct request_options *defaults,
                 struct moeflux_err *e)
{
    *r = (struct request){.id = json_null(), .options = *defaults, .fields = json_object()};
    struct where where = where_of(r);
    if (!r->fields)
        return err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    int rc = collect_fields(r, object, e);
    return rc ? rc : request_fields_take(r, where.text, e);
}

int request_encode(struct request *r, struct generator *s, struct moeflux_err *e)
{
    struct where where = where_of(r);
    return request_prompt_encode(r, s, where.text, e);
}

int request_check_length(struct request *r, uint32_t max_context, struct moeflux_err *e)
{
    struct where where = where_of(r);
    if (r->tokens.n <= max_context)
        return 0;
    r->is_too_long = true;
    /* Clients look for this phrase. */
    return err_set(e, ERR_USAGE,
                   "%s: the prompt has %zu tokens, which exceeds the available context size of %u tokens",
                   where.text, r->tokens.n, max_context);
}

void request_free(struct request *r)
{
    json_decref(r->fields);
    free(r->key);
    str_free(&r->grammar);
    json_decref(r->tools);
    free(r->bias);
    free(r->breakers);
    token_list_free(&r->tokens);
    *r = (struct request){0};
}
