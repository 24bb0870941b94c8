#include "api/call.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ask.h"
#include "api/fields.h"
#include "api/messages.h"
#include "api/refusal.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/generator.h"
#include "generate/turn_stops.h"

#define MAX_SEED   (((int64_t)1 << 53) - 1)
#define MAX_TOKENS ((int64_t)1 << 30)

enum { DEFAULT_COMPLETION = 16 };

/* ---- sampling ---- */

static const struct {
    const char *name, *field; /* name in the API, name in generate/request.h */
    double lo, hi;
} reals[] = {
    {"temperature", "temp", 0, 100},
    {"top_p", "top_p", 0, 1},
    {"min_p", "min_p", 0, 1},
    {"repeat_penalty", "repeat_penalty", 0, 100},
    {"repetition_penalty", "repeat_penalty", 0, 100},
    {"presence_penalty", "presence_penalty", -2, 2},
    {"frequency_penalty", "frequency_penalty", -2, 2},
};

static const struct {
    const char *name, *field;
    int64_t lo, hi;
} wholes[] = {
    /* If several are given, the one that is last in this list wins. */
    {"max_tokens", "n", 0, MAX_TOKENS},
    {"max_completion_tokens", "n", 0, MAX_TOKENS},
    {"repeat_last_n", "repeat_last_n", 0, 1 << 20},
};

static void set(json_t *out, const char *field, json_t *value, struct refusal *no)
{
    if (json_object_set_new(out, field, value) < 0)
        refusal_set(no, 503, NULL, NULL, "out of memory for the request");
}

static void read_sampling(const json_t *in, bool chat, json_t *out, struct refusal *no)
{
    if (!chat)
        set(out, "n", json_integer(DEFAULT_COMPLETION), no);
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        int64_t n = fields_int(in, wholes[i].name, -1, wholes[i].lo, wholes[i].hi, no);
        if (n >= 0)
            set(out, wholes[i].field, json_integer(n), no);
    }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        double x = fields_real(in, reals[i].name, NAN, reals[i].lo, reals[i].hi, no);
        /* top_p 0 means the likeliest token alone; a very small value keeps just that. */
        if (x == 0 && strcmp(reals[i].field, "top_p") == 0)
            x = 1e-9;
        if (!isnan(x))
            set(out, reals[i].field, json_real(x), no);
    }
    /* Clients send -1 or 0 for "all". */
    int64_t top_k = fields_int(in, "top_k", -2, -1, MAX_TOKENS, no);
    if (top_k >= -1)
        set(out, "top_k", json_integer(top_k > 0 ? top_k : 0), no);
    if (fields_bool(in, "ignore_eos", false, no))
        set(out, "ignore_eos", json_true(), no);
}

/* ---- unsupported fields ---- */

/* Refuses unsupported fields that would change the answer: they must not be ignored. */
static void refuse_unknown(const json_t *in, struct refusal *no)
{
    static const char *const names[] = {"suffix", "functions", "function_call", "audio"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = fields_get(in, names[i]);
        bool empty = !value || (json_is_object(value) && json_object_size(value) == 0) ||
                     (json_is_array(value) && json_array_size(value) == 0) ||
                     (json_is_string(value) && json_string_length(value) == 0);
        if (!empty)
            refusal_set(no, 400, names[i], "unsupported_parameter", "%s is not supported", names[i]);
    }
    const json_t *kinds = fields_array(in, "modalities", no);
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || strcmp(kind, "text") != 0)
            refusal_set(no, 400, "modalities", "unsupported_parameter",
                        "modalities: only \"text\" is supported");
    }
}

/* ---- the form of the answer ---- */

static void read_form(struct call *c, const json_t *in, struct refusal *no)
{
    const json_t *options = fields_object(in, "stream_options", no);
    c->n = (uint32_t)fields_int(in, "n", 1, 1, CALL_MAX_CHOICES, no);
    c->stream = fields_bool(in, "stream", false, no);
    c->include_usage = options && fields_bool(options, "include_usage", false, no);
    if (options && !c->stream)
        refusal_field(no, "stream_options", "stream_options goes with stream only");
    fields_text(in, "model", no);
    if (fields_int(in, "best_of", c->n, 1, CALL_MAX_CHOICES, no) != c->n)
        refusal_set(no, 400, "best_of", "unsupported_parameter", "best_of must be equal to n");
    c->echo = !c->chat && fields_bool(in, "echo", false, no);
}

static void set_schema(json_t *out, const json_t *schema, const char *place, struct refusal *no)
{
    if (json_is_object(schema))
        set(out, "json_schema", json_incref((json_t *)(uintptr_t)schema), no);
    else
        refusal_field(no, "response_format", "response_format: %s: expected an object, found %s", place,
                      fields_kind(schema));
}

/* Reads {"type": "json_schema", "json_schema": {"schema": ...}} or {"type": "json_object"}; some clients add
 * "schema" to the latter. */
static void read_format(const json_t *in, json_t *out, struct refusal *no)
{
    const json_t *format = fields_object(in, "response_format", no);
    const char *type = format ? fields_text(format, "type", no) : "text";
    const json_t *named = format ? fields_object(format, "json_schema", no) : NULL;
    const json_t *direct = format ? fields_get(format, "schema") : NULL;
    if (!type)
        refusal_field(no, "response_format", "response_format: type is missing");
    else if (strcmp(type, "json_object") == 0 && direct)
        set_schema(out, direct, "schema", no);
    else if (strcmp(type, "json_object") == 0)
        set(out, "json_object", json_true(), no);
    else if (strcmp(type, "json_schema") == 0)
        set_schema(out, named ? fields_get(named, "schema") : NULL, "json_schema.schema", no);
    else if (strcmp(type, "text") != 0)
        refusal_field(no, "response_format",
                      "response_format: expected the type text, json_object or json_schema, found \"%.40s\"",
                      type);
}

/* Copies the fields that generate/request.c takes unchanged; it checks them. */
static void pass_on(const json_t *in, bool chat, json_t *out, struct refusal *no)
{
    static const struct {
        const char *name;
        bool of_chats;
    } names[] = {{"logit_bias", false},
                 {"stop", false},
                 {"logprobs", false},
                 {"top_logprobs", false},
                 {"grammar", false},
                 {"tools", true},
                 {"tool_choice", true},
                 {"parallel_tool_calls", true},
                 {"chat_template_kwargs", true}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = fields_get(in, names[i].name);
        if (value && (chat || !names[i].of_chats))
            set(out, names[i].name, json_incref((json_t *)(uintptr_t)value), no);
    }
}

static void read_logprobs(struct call *c, const json_t *in, struct refusal *no)
{
    const json_t *value = fields_get(in, "logprobs");
    if (c->chat)
        c->logprobs = fields_bool(in, "logprobs", false, no);
    else if (json_is_boolean(value))
        refusal_field(no, "logprobs", "logprobs: expected a whole number, found %s", fields_kind(value));
    else
        c->logprobs = value != NULL;
}

/* ---- prompts ---- */

/* Refuses the body for an error of generate/request.c: "the request: FIELD: ...", "the request: FIELD goes
 * with ..." or "the request: FIELD is ...". */
static int refuse_request(struct refusal *no, int rc, const struct moeflux_err *e)
{
    static const char begin[] = "the request: ";
    const char *text = e->text;
    size_t n = strlen(begin);
    if (strncmp(text, begin, n) != 0 || rc == ERR_MEMORY)
        return refusal_of(no, rc, e);
    text += n;
    char field[sizeof no->param];
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    bool named = len < sizeof field && (text[len] == ':' || strncmp(text + len, " goes with", 10) == 0 ||
                                        strncmp(text + len, " is ", 4) == 0);
    snprintf(field, sizeof field, "%.*s", named ? (int)len : 0, text);
    /* Fields that have another name in the API. */
    const char *name = strcmp(field, "json_schema") == 0 ? "response_format"
                       : strncmp(text, "message ", 8) == 0 || strncmp(text, "the last message", 16) == 0
                           ? "messages"
                           : field;
    return refusal_field(no, name, "%s", text);
}

static int add_tokens(struct request *r, const json_t *ids, const struct generator *g, struct refusal *no)
{
    struct moeflux_err e;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t n = json_integer_value(id);
        if (!json_is_integer(id) || n < 0 || n >= (int64_t)g->info.vocab_size)
            return refusal_field(no, "prompt", "prompt: expected token ids from 0 to %u",
                                 g->info.vocab_size - 1);
        int rc = token_list_add(&r->tokens, (int32_t)n, &e);
        if (rc)
            return refusal_of(no, rc, &e);
    }
    return 0;
}

static bool is_ids(const json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

/* Makes the request for one prompt: a text or token ids. */
static int take_prompt(struct request *r, const json_t *prompt, json_t *fields, struct generator *g,
                       const struct request_options *defaults, struct refusal *no)
{
    struct moeflux_err e;
    bool ids = is_ids(prompt);
    if (!ids && !json_is_string(prompt))
        return refusal_field(no, "prompt",
                             "prompt: expected a text, token ids, or an array of these, found %s",
                             fields_kind(prompt));
    set(fields, "raw", json_true(), no);
    set(fields, "prompt", ids ? json_string("ids") : json_incref((json_t *)(uintptr_t)prompt), no);
    if (no->status)
        return -1;
    int rc = request_take(r, fields, defaults, &e);
    if (!rc && !ids && *r->options.prompt)
        rc = request_encode(r, g, &e);
    if (rc)
        return refuse_request(no, rc, &e);
    if (ids && add_tokens(r, prompt, g, no))
        return -1;
    return r->tokens.n ? 0 : refusal_field(no, "prompt", "prompt: it is empty");
}

static int take_messages(struct request *r, const json_t *in, json_t *fields, struct generator *g,
                         const struct request_options *defaults, struct refusal *no)
{
    struct moeflux_err e;
    json_t *messages = messages_read(fields_array(in, "messages", no), no);
    if (!messages)
        return -1;
    set(fields, "messages", messages, no);
    if (no->status)
        return -1;
    int rc = request_take(r, fields, defaults, &e);
    if (!rc)
        rc = request_encode(r, g, &e);
    return rc ? refuse_request(no, rc, &e) : 0;
}

/* ---- choices ---- */

static int check_length(const struct request *r, const struct generator *g, struct refusal *no)
{
    if (r->tokens.n <= g->max_context)
        return 0;
    return refusal_set(no, 400, NULL, "context_length_exceeded",
                       "the prompt has %zu tokens, the context holds %u", r->tokens.n, g->max_context);
}

/* Makes the next choice. prompt NULL: of the messages. */
static int make_ask(struct call *c, const json_t *in, const json_t *sampling, const json_t *prompt,
                    uint64_t seed, struct generator *g, const struct call_defaults *defaults,
                    struct refusal *no)
{
    struct ask *a = &c->asks[c->n_asks++];
    a->seed = seed;
    a->score = c->echo && c->logprobs;
    json_t *fields = json_deep_copy(sampling);
    if (!fields)
        return refusal_set(no, 503, NULL, NULL, "out of memory for the request");
    int rc = prompt ? take_prompt(&a->request, prompt, fields, g, &defaults->options, no)
                    : take_messages(&a->request, in, fields, g, &defaults->options, no);
    json_decref(fields);
    if (!rc)
        rc = check_length(&a->request, g, no);
    if (!rc && defaults->turns)
        turn_stops_find(&a->request, g, &a->stops);
    return rc;
}

static int choose_seed(const json_t *in, const struct call_defaults *defaults, uint64_t *seed,
                       struct refusal *no)
{
    struct moeflux_err e;
    const json_t *given = fields_get(in, "seed");
    int64_t n = fields_int(in, "seed", defaults->options.seed, INT64_MIN, INT64_MAX, no);
    *seed = (uint64_t)n & MAX_SEED;
    if ((given && n != -1) || (!given && n >= 0))
        return 0;
    int rc = generator_draw_seed(seed, &e);
    return rc ? refusal_of(no, rc, &e) : 0;
}

static int make_asks(struct call *c, const json_t *in, const json_t *sampling, struct generator *g,
                     const struct call_defaults *defaults, struct refusal *no)
{
    const json_t *prompt = c->chat ? NULL : fields_get(in, "prompt");
    bool many = json_is_array(prompt) && !is_ids(prompt);
    size_t n_prompts = many ? json_array_size(prompt) : 1;
    struct moeflux_err e;
    uint64_t seed = 0;
    if (!c->chat && !prompt)
        return refusal_field(no, "prompt", "prompt is missing");
    if (n_prompts == 0 || n_prompts * c->n > CALL_MAX_CHOICES)
        return refusal_field(no, "prompt",
                             "%zu prompts with %u choices each, expected 1 to %d choices in all", n_prompts,
                             c->n, CALL_MAX_CHOICES);
    if (!(c->asks = mem_new(n_prompts * c->n, sizeof *c->asks, &e)))
        return refusal_of(no, ERR_MEMORY, &e);
    int rc = choose_seed(in, defaults, &seed, no);
    for (size_t i = 0; !rc && i < n_prompts * c->n; i++)
        rc = make_ask(c, in, sampling, many ? json_array_get(prompt, i / c->n) : prompt, seed + i % c->n, g,
                      defaults, no);
    return rc;
}

int call_take(struct call *c, bool chat, const struct json_t *in, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no)
{
    json_t *sampling = json_object();
    *c = (struct call){.chat = chat};
    if (!sampling)
        return refusal_set(no, 503, NULL, NULL, "out of memory for the request");
    read_form(c, in, no);
    read_sampling(in, chat, sampling, no);
    read_logprobs(c, in, no);
    read_format(in, sampling, no);
    pass_on(in, chat, sampling, no);
    refuse_unknown(in, no);
    if (!no->status) {
        struct generator own;
        generator_share(&own, g, 0);
        make_asks(c, in, sampling, &own, defaults, no);
        generator_unshare(&own);
    }
    json_decref(sampling);
    return no->status ? -1 : 0;
}

int call_read(struct call *c, bool chat, const char *body, size_t len, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no)
{
    json_t *in = fields_parse(body, len, no);
    *c = (struct call){.chat = chat};
    int rc = in ? call_take(c, chat, in, g, defaults, no) : -1;
    json_decref(in);
    return rc;
}

void call_free(struct call *c)
{
    for (uint32_t i = 0; i < c->n_asks; i++)
        ask_free(&c->asks[i]);
    free(c->asks);
    *c = (struct call){0};
}
