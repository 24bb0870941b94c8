#include "api/api_request.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/choice.h"
#include "api/fields.h"
#include "api/messages.h"
#include "api/refusal.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "base/seed.h"
#include "base/str.h"
#include "generate/generator.h"
#include "generate/request_api.h"
#include "generate/request_fields.h"
#include "generate/turn_stops.h"
#include "text/chat/chat.h"

#define MAX_SEED (((int64_t)1 << 53) - 1)

enum { DEFAULT_COMPLETION = 16 };

/* ---- fields of generate/request.h ---- */

static void set(json_t *out, const char *field, json_t *value, struct refusal *refusal)
{
    if (json_object_set_new(out, field, value) < 0)
        refusal_set(refusal, 503, NULL, NULL, "out of memory for the request");
}

/* Copies the fields that generate/request.c takes; it checks them. */
static void pass_on(const json_t *in, bool chat, json_t *out, struct refusal *refusal)
{
    static const char newer[] = "max_completion_tokens";
    unsigned place = chat ? REQUEST_IN_CHAT : REQUEST_IN_TEXT;
    const char *name;
    json_t *value;
    if (!chat)
        set(out, "max_tokens", json_integer(DEFAULT_COMPLETION), refusal);
    json_object_foreach((json_t *)(uintptr_t)in, name, value)
    {
        const char *field = request_fields_find(name, place);
        /* Clients that send both limits mean the newer one. */
        bool is_older =
            field && strcmp(field, "max_tokens") == 0 && strcmp(name, newer) != 0 && fields_get(in, newer);
        if (field && !is_older && !json_is_null(value))
            set(out, strcmp(field, "max_tokens") == 0 ? field : name, json_incref(value), refusal);
    }
}

/* Passes on Ollama's `think`: a switch, or an effort. The field of OpenAI's API takes precedence. */
static void pass_think(const json_t *in, json_t *out, struct refusal *refusal)
{
    json_t *think = (json_t *)(uintptr_t)fields_get(in, "think");
    bool is_effort = json_is_string(think);
    const char *as = is_effort ? "reasoning_effort" : "enable_thinking";
    if (!think)
        return;
    if (!is_effort && !json_is_boolean(think))
        refusal_field(refusal, "think", "think: expected true, false or an effort, found %s",
                      fields_kind(think));
    else if (is_effort && chat_effort_find(json_string_value(think)) == CHAT_N_EFFORTS)
        refusal_field(refusal, "think", "think: expected an effort from none to max, found \"%.40s\"",
                      json_string_value(think));
    else if (!json_object_get(out, as))
        set(out, as, json_incref(think), refusal);
}

/* ---- unsupported fields ---- */

/* Fields of other servers that would change the answer, which must not be ignored. A value that is 0,
 * empty, false or null asks for nothing; nor does `off`. use: what to take instead; NULL: nothing. */
static const struct {
    const char *name;
    double off;
    const char *use;
} unsupported[] = {
    {"suffix", 0, NULL},
    {"functions", 0, NULL},
    {"function_call", 0, NULL},
    {"audio", 0, NULL},
    {"chat_template", 0, NULL},
    {"documents", 0, NULL},
    {"lora", 0, NULL},
    {"lora_request", 0, NULL},
    {"mirostat", 0, NULL},
    {"mirostat_mode", 0, NULL},
    {"tfs_z", 1, NULL},
    {"tfs", 1, NULL},
    {"top_a", 0, NULL},
    {"dynatemp_range", 0, NULL},
    {"epsilon_cutoff", 0, NULL},
    {"eta_cutoff", 0, NULL},
    {"smoothing_factor", 0, NULL},
    {"length_penalty", 1, NULL},
    {"no_repeat_ngram_size", 0, NULL},
    {"encoder_repetition_penalty", 1, NULL},
    {"use_beam_search", 0, NULL},
    {"min_tokens", 0, NULL},
    {"n_keep", 0, NULL},
    {"samplers", 0, NULL},
    {"bad_words", 0, NULL},
    {"bad_words_ids", 0, NULL},
    {"banned_tokens", 0, NULL},
    {"allowed_token_ids", 0, NULL},
    {"stop_token_ids", 0, NULL},
    {"logits_processors", 0, NULL},
    {"prompt_logprobs", 0, NULL},
    {"truncate_prompt_tokens", -1, NULL},
    {"guided_whitespace_pattern", 0, NULL},
    {"mm_processor_kwargs", 0, NULL},
    {"image_data", 0, NULL},
    /* Ollama's own API has these; its clients send them to OpenAI's paths, too. */
    {"format", 0, "response_format"},
    {"options", 0, "the body's own fields (temperature, top_p, max_tokens, ...)"},
    {"system", 0, "a message with role system"},
    {"template", 0, NULL},
    {"raw", 0, "/v1/completions"},
    {"context", 0, "messages"},
    {"images", 0, NULL},
};

static bool is_off(const json_t *value, double off)
{
    double x = json_number_value(value);
    return !value || json_is_false(value) || (json_is_number(value) && (x == 0 || x == off)) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static void refuse_field(struct refusal *refusal, const char *name, const char *use)
{
    refusal_set(refusal, 400, name, "unsupported_parameter", "%s is not supported%s%s", name,
                use ? "; use " : "", use ? use : "");
}

static void refuse_unsupported(const json_t *in, struct refusal *refusal)
{
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (!is_off(fields_get(in, unsupported[i].name), unsupported[i].off))
            refuse_field(refusal, unsupported[i].name, unsupported[i].use);
    /* An empty object asks for a search with default settings. */
    if (fields_get(in, "web_search_options"))
        refuse_field(refusal, "web_search_options", NULL);
    if (json_is_false(fields_get(in, "skip_special_tokens")))
        refusal_set(refusal, 400, "skip_special_tokens", "unsupported_parameter",
                    "skip_special_tokens: false is not supported");
    /* A chat template writes its own special tokens, so vLLM's default for chats is false. */
    const json_t *adds = fields_get(in, "add_special_tokens");
    if (json_is_boolean(adds) && json_is_true(adds) != !fields_get(in, "messages"))
        refusal_set(refusal, 400, "add_special_tokens", "unsupported_parameter",
                    "add_special_tokens: %s is not supported", json_is_true(adds) ? "true" : "false");
    const json_t *kinds = fields_array(in, "modalities", refusal);
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || strcmp(kind, "text") != 0)
            refusal_set(refusal, 400, "modalities", "unsupported_parameter",
                        "modalities: only \"text\" is supported");
    }
}

/* ---- the form of the answer ---- */

static void read_form(struct api_request *c, const json_t *in, struct refusal *refusal)
{
    const json_t *options = fields_object(in, "stream_options", refusal);
    c->n = (uint32_t)fields_int(in, "n", 1, 1, API_REQUEST_MAX_CHOICES, refusal);
    c->stream = fields_bool(in, "stream", false, refusal);
    c->priority = (int32_t)fields_int(in, "priority", 0, INT32_MIN, INT32_MAX, refusal);
    c->include_usage = options && fields_bool(options, "include_usage", false, refusal);
    if (options && !c->stream)
        refusal_field(refusal, "stream_options", "stream_options goes with stream only");
    fields_text(in, "model", refusal);
    if (fields_int(in, "best_of", c->n, 1, API_REQUEST_MAX_CHOICES, refusal) != c->n)
        refusal_set(refusal, 400, "best_of", "unsupported_parameter", "best_of must be equal to n");
    c->echo = fields_bool(in, "echo", false, refusal);
    if (c->chat && c->echo)
        refusal_set(refusal, 400, "echo", "unsupported_parameter", "echo is not supported in chats");
}

static void read_logprobs(struct api_request *c, const json_t *in, struct refusal *refusal)
{
    const json_t *value = fields_get(in, "logprobs");
    if (c->chat)
        c->logprobs = fields_bool(in, "logprobs", false, refusal);
    else if (json_is_boolean(value))
        refusal_field(refusal, "logprobs", "logprobs: expected a whole number, found %s", fields_kind(value));
    else
        c->logprobs = value != NULL;
}

/* ---- prompts ---- */

/* Refuses the body for an error of generate/request.c: "the request: FIELD: ...", "the request: FIELD goes
 * with ..." or "the request: FIELD is ...". */
static int refuse_request(struct refusal *refusal, const struct request *r, int rc,
                          const struct moeflux_err *e)
{
    static const char begin[] = "the request: ";
    const char *text = e->text;
    size_t n = strlen(begin);
    if (r->is_too_long)
        return refusal_set(refusal, 400, NULL, "context_length_exceeded", "%s", text + n);
    if (strncmp(text, begin, n) != 0 || rc == ERR_MEMORY)
        return refusal_of(refusal, rc, e);
    text += n;
    char field[sizeof refusal->param];
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    bool named = len < sizeof field &&
                 (text[len] == ':' || text[len] == '[' || strncmp(text + len, " goes with", 10) == 0 ||
                  strncmp(text + len, " and ", 5) == 0 || strncmp(text + len, " is ", 4) == 0);
    snprintf(field, sizeof field, "%.*s", named ? (int)len : 0, text);
    return refusal_field(refusal, field, "%s", text);
}

static int add_tokens(struct request *r, const json_t *ids, const struct generator *g,
                      struct refusal *refusal)
{
    struct moeflux_err e;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t n = json_integer_value(id);
        if (!json_is_integer(id) || n < 0 || n >= (int64_t)g->info.vocab_size)
            return refusal_field(refusal, "prompt", "prompt: expected token ids from 0 to %u, found %s",
                                 g->info.vocab_size - 1, json_quote(id).text);
        int rc = token_list_add(&r->tokens, (int32_t)n, &e);
        if (rc)
            return refusal_of(refusal, rc, &e);
    }
    return 0;
}

static bool is_ids(const json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

/* Makes the request for one prompt: a text or token ids. */
static int take_prompt(struct request *r, const json_t *prompt, json_t *fields, struct generator *g,
                       const struct request_options *defaults, struct refusal *refusal)
{
    struct moeflux_err e;
    bool ids = is_ids(prompt);
    if (!ids && !json_is_string(prompt))
        return refusal_field(refusal, "prompt",
                             "prompt: expected a text, token ids, or an array of these, found %s",
                             fields_kind(prompt));
    set(fields, "raw", json_true(), refusal);
    set(fields, "prompt", ids ? json_string("ids") : json_incref((json_t *)(uintptr_t)prompt), refusal);
    if (refusal->status)
        return -1;
    int rc = request_take(r, fields, defaults, &e);
    if (!rc && !ids && *r->options.prompt)
        rc = request_encode(r, g, &e);
    if (rc)
        return refuse_request(refusal, r, rc, &e);
    if (ids && add_tokens(r, prompt, g, refusal))
        return -1;
    return r->tokens.n ? 0 : refusal_field(refusal, "prompt", "prompt: it is empty");
}

static int take_messages(struct request *r, const json_t *in, json_t *fields, struct generator *g,
                         const struct request_options *defaults, struct refusal *refusal)
{
    struct moeflux_err e;
    json_t *messages = messages_read(fields_array(in, "messages", refusal), refusal);
    if (!messages)
        return -1;
    set(fields, "messages", messages, refusal);
    if (refusal->status)
        return -1;
    int rc = request_take(r, fields, defaults, &e);
    if (!rc)
        rc = request_encode(r, g, &e);
    return rc ? refuse_request(refusal, r, rc, &e) : 0;
}

/* ---- choices ---- */

static int check_length(struct request *r, const struct generator *g, struct refusal *refusal)
{
    struct moeflux_err e;
    int rc = request_check_length(r, g->max_context, &e);
    if (!rc)
        return 0;
    refusal->n_prompt_tokens = (uint32_t)r->tokens.n;
    refusal->n_ctx = g->max_context;
    return refuse_request(refusal, r, rc, &e);
}

/* Makes the next choice. prompt NULL: of the messages. */
static int make_choice(struct api_request *c, const json_t *in, const json_t *sampling, const json_t *prompt,
                       uint64_t seed, struct generator *g, const struct api_request_defaults *defaults,
                       struct refusal *refusal)
{
    struct moeflux_err e;
    if (request_api_new_made(&c->requests[c->n_choices], &e))
        return refusal_of(refusal, ERR_MEMORY, &e);
    struct choice *a = api_request_choice(c, c->n_choices++);
    a->seed = seed;
    a->has_seed = true;
    a->score = c->echo && c->logprobs;
    json_t *fields = json_deep_copy(sampling);
    if (!fields)
        return refusal_set(refusal, 503, NULL, NULL, "out of memory for the request");
    int rc = prompt ? take_prompt(&a->request, prompt, fields, g, &defaults->options, refusal)
                    : take_messages(&a->request, in, fields, g, &defaults->options, refusal);
    json_decref(fields);
    if (!rc && !defaults->counts)
        rc = check_length(&a->request, g, refusal);
    if (!rc && defaults->turns) {
        turn_stops_find(&a->request, g, &a->stops);
        turn_stops_cut(&a->request, g, &a->stops, &a->cuts);
        a->is_placed = true;
    }
    return rc;
}

/* Returns the value of a number beyond 64 bits modulo 2^53. */
static int64_t seed_of_digits(const char *digits)
{
    uint64_t n = 0;
    for (; *digits; digits++)
        if (*digits >= '0' && *digits <= '9')
            n = (n * 10 + (uint64_t)(*digits - '0')) & MAX_SEED;
    return (int64_t)n;
}

static int choose_seed(const json_t *in, const struct api_request_defaults *defaults, uint64_t *seed,
                       struct refusal *refusal)
{
    struct moeflux_err e;
    const json_t *given = fields_get(in, "seed");
    const char *large = json_sent_number(given);
    int64_t n = large ? seed_of_digits(large)
                      : fields_int(in, "seed", defaults->options.seed, INT64_MIN, INT64_MAX, refusal);
    *seed = (uint64_t)n & MAX_SEED;
    if ((given && n != -1) || (!given && n >= 0))
        return 0;
    int rc = seed_draw(seed, &e);
    return rc ? refusal_of(refusal, rc, &e) : 0;
}

static int make_choices(struct api_request *c, const json_t *in, const json_t *sampling, struct generator *g,
                        const struct api_request_defaults *defaults, struct refusal *refusal)
{
    const json_t *prompt = c->chat ? NULL : fields_get(in, "prompt");
    bool many = json_is_array(prompt) && !is_ids(prompt);
    size_t n_prompts = many ? json_array_size(prompt) : 1;
    struct moeflux_err e;
    uint64_t seed = 0;
    if (!c->chat && !prompt)
        return refusal_field(refusal, "prompt", "prompt is missing");
    if (n_prompts == 0 || n_prompts * c->n > API_REQUEST_MAX_CHOICES)
        return refusal_field(refusal, "prompt",
                             "prompt: %zu prompts times n = %u, expected 1 to %d answers in all", n_prompts,
                             c->n, API_REQUEST_MAX_CHOICES);
    if (!(c->requests = mem_new(n_prompts * c->n, sizeof *c->requests, &e)))
        return refusal_of(refusal, ERR_MEMORY, &e);
    int rc = choose_seed(in, defaults, &seed, refusal);
    for (size_t i = 0; !rc && i < n_prompts * c->n; i++)
        rc = make_choice(c, in, sampling, many ? json_array_get(prompt, i / c->n) : prompt, seed + i % c->n,
                         g, defaults, refusal);
    return rc;
}

int api_request_take(struct api_request *c, bool chat, const struct json_t *in, const struct generator *g,
                     const struct api_request_defaults *defaults, struct refusal *refusal)
{
    json_t *sampling = json_object();
    *c = (struct api_request){.chat = chat};
    if (!sampling)
        return refusal_set(refusal, 503, NULL, NULL, "out of memory for the request");
    read_form(c, in, refusal);
    read_logprobs(c, in, refusal);
    pass_on(in, chat, sampling, refusal);
    if (chat)
        pass_think(in, sampling, refusal);
    refuse_unsupported(in, refusal);
    if (!refusal->status) {
        struct generator own;
        generator_share(&own, g, 0);
        make_choices(c, in, sampling, &own, defaults, refusal);
        generator_unshare(&own);
    }
    json_decref(sampling);
    return refusal->status ? -1 : 0;
}

int api_request_read(struct api_request *c, bool chat, const char *body, size_t len,
                     const struct generator *g, const struct api_request_defaults *defaults,
                     struct refusal *refusal)
{
    json_t *in = fields_parse(body, len, refusal);
    *c = (struct api_request){.chat = chat};
    int rc = in ? api_request_take(c, chat, in, g, defaults, refusal) : -1;
    json_decref(in);
    return rc;
}

struct choice *api_request_choice(const struct api_request *c, uint32_t idx)
{
    return c->requests[idx]->encoded;
}

const struct token_list *api_request_prompt(const struct api_request *c)
{
    return &api_request_choice(c, 0)->request.tokens;
}

const char *api_request_skipped_tool(const struct api_request *c)
{
    return api_request_choice(c, 0)->request.skipped_tool;
}

bool api_request_hides_tools(const struct api_request *c)
{
    return api_request_choice(c, 0)->request.tools_are_unseen;
}

void api_request_free(struct api_request *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++)
        moeflux_request_free(c->requests[i]);
    free(c->requests);
    json_decref(c->given);
    *c = (struct api_request){0};
}
