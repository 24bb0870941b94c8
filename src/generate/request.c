#include "generate/request.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/chat_messages.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/tools.h"
#include "sample/sampler.h"
#include "text/chat/tool_calls.h"

#define MAX_SEED   (((int64_t)1 << 53) - 1)
#define MAX_TOKENS ((int64_t)1 << 30)
#define MAX_VALUES (1 << 18)

/* All fields with their other names. Others are refused: a mistyped "temp" must not be ignored. */
static const struct {
    const char *name, *field;
} names[] = {
    {"id", "id"},
    {"prompt", "prompt"},
    {"messages", "messages"},
    {"system", "system"},
    {"raw", "raw"},
    {"think", "think"},
    {"no_think", "no_think"},
    {"n", "n"},
    {"predict", "n"},
    {"n_predict", "n"},
    {"max_tokens", "n"},
    {"ignore_eos", "ignore_eos"},
    {"seed", "seed"},
    {"temp", "temp"},
    {"temperature", "temp"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"repeat_penalty", "repeat_penalty"},
    {"repeat_last_n", "repeat_last_n"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"logit_bias", "logit_bias"},
    {"stop", "stop"},
    {"logprobs", "logprobs"},
    {"top_logprobs", "top_logprobs"},
    {"chat_template_kwargs", "chat_template_kwargs"},
    {"tools", "tools"},
    {"tool_choice", "tool_choice"},
    {"parallel_tool_calls", "parallel_tool_calls"},
    {"json_schema", "json_schema"},
    {"json_object", "json_object"},
    {"grammar", "grammar"},
};

struct sampler_options request_sampling(const struct request_options *o, uint64_t seed)
{
    return (struct sampler_options){
        .temperature = o->temp,
        .top_k = (uint32_t)o->top_k,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .repeat_penalty = o->repeat_penalty,
        .repeat_last = (uint32_t)o->repeat_last,
        .presence_penalty = o->presence_penalty,
        .frequency_penalty = o->frequency_penalty,
        .bias = o->bias,
        .n_bias = o->n_bias,
        .seed = seed,
    };
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
        .logprobs = logprobs,
        .n_logprobs = logprobs ? (uint32_t)o->logprobs : 0,
        .tools = o->tools,
        .one_call = o->one_call,
        .must_call = o->must_call,
    };
}

void request_constrain_ahead(const struct request_options *o, struct generator *s, struct constrain_ahead *a)
{
    constrain_ahead(a, s, o->grammar, o->must_call);
}

enum chat_thinking request_thinking(const struct request_options *o)
{
    return o->think ? CHAT_THINKING_ON : o->no_think ? CHAT_THINKING_OFF : CHAT_THINKING_AUTO;
}

char *request_key(const struct json_t *id, uint64_t line)
{
    struct str key = {0};
    if (json_is_string(id)) {
        str_add_text(&key, "text ");
        str_add(&key, json_string_value(id), json_string_length(id));
    } else if (json_is_integer(id)) {
        str_addf(&key, "number %" JSON_INTEGER_FORMAT, json_integer_value(id));
    } else {
        str_addf(&key, "line %" PRIu64, line);
    }
    if (str_ok(&key))
        return key.data;
    str_free(&key);
    return NULL;
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

/* Returns the field of a name, which may have "-" for "_" like a flag; NULL: none. */
static const char *field_of(const char *name)
{
    char plain[24];
    size_t n = strlen(name);
    if (n >= sizeof plain)
        return NULL;
    for (size_t i = 0; i <= n; i++)
        plain[i] = (char)(name[i] == '-' ? '_' : name[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, plain) == 0)
            return names[i].field;
    return NULL;
}

static int collect_fields(struct request *r, json_t *root, struct moeflux_err *e)
{
    const char *name;
    json_t *value;
    struct where where = where_of(r);
    json_object_foreach(root, name, value)
    {
        const char *field = field_of(name);
        if (!field)
            return err_set(e, ERR_FORMAT, "%s: unknown field \"%.60s\"", where.text, name);
        if (json_object_get(r->fields, field))
            return err_set(e, ERR_FORMAT, "%s: %s is given twice", where.text, field);
        if (json_object_set(r->fields, field, value) < 0)
            return err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    }
    return 0;
}

static int parse(struct request *r, const char *text, size_t len, struct moeflux_err *e)
{
    json_error_t why;
    if (json_count_values(text, len) > MAX_VALUES)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": more than %d values", r->line, MAX_VALUES);
    json_t *root = json_read_sent(text, len, &why);
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

static void get_whole(struct json_view *v, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc || !value)
        return;
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < lo || n > hi)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s: expected a whole number from %" PRId64 " to %" PRId64,
                        v->where, key, lo, hi);
    else
        *out = n;
}

/* Reads a number; the sampler checks its range. */
static void get_real(struct json_view *v, const char *key, float *out)
{
    *out = (float)json_view_real_or(v, key, (double)*out, -1e9, 1e9);
}

/* Reads {"ID": -100 to 100, ...}. */
static int get_bias(struct request *r, struct json_view *v, struct moeflux_err *e)
{
    json_t *object = (json_t *)(uintptr_t)json_view_object(v, "logit_bias"), *value;
    const char *key;
    uint32_t n = 0;
    if (v->rc || !json_object_size(object))
        return v->rc;
    if (!(r->bias = mem_new(json_object_size(object), sizeof *r->bias, e)))
        return ERR_MEMORY;
    json_object_foreach(object, key, value)
    {
        double by = json_number_value(value);
        size_t len = strlen(key);
        if (len == 0 || len > 9 || strspn(key, "0123456789") != len)
            return err_set(e, ERR_FORMAT, "%s: logit_bias: expected token ids, found \"%.40s\"", v->where,
                           key);
        if (!json_is_number(value) || !(by >= -100 && by <= 100))
            return err_set(e, ERR_FORMAT, "%s: logit_bias: %s: expected a number from -100 to 100", v->where,
                           key);
        r->bias[n++] = (struct sampler_bias){.id = atoi(key), .value = (float)by};
    }
    r->options.bias = r->bias;
    r->options.n_bias = n;
    return 0;
}

/* Reads a string or an array of strings; they replace those of the command line. */
static void get_stops(struct json_view *v, struct request_options *o)
{
    const json_t *value = json_view_get(v, "stop");
    bool is_list = json_is_array(value);
    if (v->rc || !value)
        return;
    size_t n = is_list ? json_array_size(value) : 1;
    if (n > REQUEST_MAX_STOPS) {
        v->rc = err_set(v->e, ERR_FORMAT, "%s: stop: expected at most %d texts, found %zu", v->where,
                        REQUEST_MAX_STOPS, n);
        return;
    }
    o->n_stops = 0;
    for (size_t i = 0; i < n && !v->rc; i++) {
        const char *text = json_string_value(is_list ? json_array_get(value, i) : value);
        if (text && *text)
            o->stops[o->n_stops++] = text;
        else
            v->rc = err_set(v->e, ERR_FORMAT,
                            "%s: stop: expected a text that is not empty, or a list of them", v->where);
    }
}

/* Reads logprobs: a number of tokens or, in chats, true or false with the number in top_logprobs. */
static void get_logprobs(struct json_view *v, struct request_options *o)
{
    const json_t *value = json_view_get(v, "logprobs");
    bool has_top = json_view_get(v, "top_logprobs") != NULL;
    int64_t top = 0;
    get_whole(v, "top_logprobs", 0, LOGPROBS_MAX, &top);
    if (!json_is_boolean(value))
        get_whole(v, "logprobs", 0, LOGPROBS_MAX, &o->logprobs);
    else
        o->logprobs = json_is_true(value) ? top : REQUEST_NO_LOGPROBS;
    if (!v->rc && has_top && !json_is_true(value))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: top_logprobs goes with \"logprobs\": true only", v->where);
}

static int check_tool_choice(const struct json_view *v, const struct request_options *o, const json_t *choice)
{
    const json_t *name = json_member(json_member(choice, "function"), "name");
    if (!json_is_text(choice, "auto") && !json_is_text(choice, "required") && !json_is_string(name))
        return err_set(v->e, ERR_FORMAT,
                       "%s: tool_choice: expected \"none\", \"auto\", \"required\" or a function", v->where);
    if (!o->tools)
        return err_set(v->e, ERR_FORMAT, "%s: tool_choice goes with tools only", v->where);
    if (name && !tools_have(o->tools, json_string_value(name)))
        return err_set(v->e, ERR_FORMAT, "%s: tool_choice: no tool is called \"%.60s\"", v->where,
                       json_string_value(name));
    return 0;
}

/* Reads tool_choice; "none" means that no tools are offered. */
static void get_tool_choice(struct json_view *v, struct request_options *o)
{
    const json_t *choice = json_view_get(v, "tool_choice");
    if (v->rc || !choice)
        return;
    if (json_is_text(choice, "none")) {
        o->tools = NULL;
        return;
    }
    v->rc = check_tool_choice(v, o, choice);
    o->must_call = !json_is_text(choice, "auto");
    o->tool = json_string_value(json_member(json_member(choice, "function"), "name"));
}

/* Reads tools; they replace those of the command line. */
static void get_tools(struct json_view *v, struct request_options *o)
{
    const json_t *tools = json_view_get(v, "tools");
    if (!v->rc && tools) {
        v->rc = tools_check(tools, v->where, v->e);
        o->tools = json_array_size(tools) ? tools : NULL;
    }
    /* A raw prompt cannot contain them. */
    if (!tools && o->raw)
        o->tools = NULL;
    o->one_call = !json_view_bool_or(v, "parallel_tool_calls", !o->one_call);
    get_tool_choice(v, o);
}

/* Reads the field that the answer must fit; there may be only one. */
static int get_grammar(struct request *r, struct json_view *v, struct moeflux_err *e)
{
    const json_t *schema = json_view_get(v, "json_schema");
    const char *grammar = json_view_text_or(v, "grammar", NULL);
    bool object = json_view_bool_or(v, "json_object", false);
    char name[64];
    int rc = v->rc;
    if (!rc && (schema != NULL) + (grammar != NULL) + object > 1)
        return err_set(e, ERR_FORMAT, "%s: json_schema, json_object and grammar exclude each other",
                       v->where);
    snprintf(name, sizeof name, "%s: %s", v->where,
             schema    ? "json_schema"
             : grammar ? "grammar"
                       : "json_object");
    if (!rc && json_is_string(schema))
        rc = constrain_grammar(CONSTRAIN_JSON_SCHEMA, json_string_value(schema), json_string_length(schema),
                               name, &r->grammar, e);
    else if (!rc && schema)
        rc = constrain_schema(schema, name, &r->grammar, e);
    else if (!rc && grammar)
        rc = constrain_grammar(CONSTRAIN_GRAMMAR, grammar, strlen(grammar), name, &r->grammar, e);
    else if (!rc && object)
        rc = constrain_grammar(CONSTRAIN_JSON_OBJECT, NULL, 0, name, &r->grammar, e);
    if (r->grammar.len)
        r->options.grammar = str_text(&r->grammar);
    if (!rc && r->options.grammar && r->options.must_call)
        rc = err_set(e, ERR_FORMAT, "%s: tool_choice: a call cannot fit a grammar of its own too", v->where);
    if (!rc && (r->options.grammar || r->options.must_call) && r->options.ignore_eos)
        rc = err_set(e, ERR_FORMAT, "%s: ignore_eos and a grammar exclude each other", v->where);
    return rc;
}

/* Reads further variables of the template. The answer's loop also needs to know whether there is thinking, so
 * all names of that variable are set, and the template finds the one it uses. */
static void get_kwargs(struct json_view *v, struct request *r)
{
    struct request_options *o = &r->options;
    o->kwargs = json_view_object(v, "chat_template_kwargs");
    json_t *own = json_object_get(r->fields, "chat_template_kwargs");
    json_t *on = json_object_get(own, "enable_thinking"), *mode = json_object_get(own, "thinking_mode");
    if (!json_is_boolean(on))
        on = json_object_get(own, "thinking");
    if (!json_is_boolean(on) && (json_is_text(mode, "enabled") || json_is_text(mode, "disabled")))
        on = json_is_text(mode, "enabled") ? json_true() : json_false();
    if (!json_is_boolean(on))
        return;
    json_object_set(own, "enable_thinking", on);
    json_object_set(own, "thinking", on);
    json_object_set_new(own, "thinking_mode", json_string(json_is_true(on) ? "enabled" : "disabled"));
    o->think = json_is_true(on);
    o->no_think = !o->think;
    o->by_kwargs = true;
}

static int get_options(struct request *r, const char *where, struct moeflux_err *e)
{
    struct request_options *o = &r->options;
    struct json_view v = {.objects = {r->fields}, .where = where, .e = e};
    get_whole(&v, "n", REQUEST_NO_LIMIT, MAX_TOKENS, &o->predict);
    get_whole(&v, "seed", -1, MAX_SEED, &o->seed);
    get_whole(&v, "top_k", 0, MAX_TOKENS, &o->top_k);
    get_whole(&v, "repeat_last_n", 0, SAMPLER_MAX_REPEAT_LAST, &o->repeat_last);
    get_real(&v, "temp", &o->temp);
    get_real(&v, "top_p", &o->top_p);
    get_real(&v, "min_p", &o->min_p);
    get_real(&v, "repeat_penalty", &o->repeat_penalty);
    get_real(&v, "presence_penalty", &o->presence_penalty);
    get_real(&v, "frequency_penalty", &o->frequency_penalty);
    get_stops(&v, o);
    get_logprobs(&v, o);
    o->ignore_eos = json_view_bool_or(&v, "ignore_eos", o->ignore_eos);
    o->raw = json_view_bool_or(&v, "raw", o->raw);
    get_tools(&v, o);
    if (json_view_bool_or(&v, "think", false)) {
        o->think = true;
        o->no_think = false;
    }
    if (json_view_bool_or(&v, "no_think", false)) {
        o->no_think = true;
        o->think = json_view_bool_or(&v, "think", false);
    }
    get_kwargs(&v, r);
    /* A raw prompt cannot contain the system text of the command line. */
    o->system = json_view_text_or(&v, "system", o->raw ? NULL : o->system);
    o->prompt = json_view_text_or(&v, "prompt", NULL);
    const json_t *messages = json_view_array(&v, "messages");
    int rc = get_grammar(r, &v, e);
    rc = rc ? rc : get_bias(r, &v, e);
    if (rc)
        return rc;
    if (!o->prompt == !messages)
        return err_set(e, ERR_FORMAT, "%s: expected either prompt or messages", where);
    if (o->think && o->no_think)
        return err_set(e, ERR_FORMAT, "%s: think and no_think exclude each other", where);
    if (o->raw && (messages || o->system || o->tools || o->kwargs))
        return err_set(e, ERR_FORMAT, "%s: raw takes a prompt alone", where);
    struct sampler_options sampling = request_sampling(o, 0);
    struct moeflux_err why;
    rc = sampler_check(&sampling, &why);
    return rc ? err_set(e, rc, "%s: %s", where, why.text) : 0;
}

int request_too_long(struct request *r, uint64_t line, size_t max_bytes, struct moeflux_err *e)
{
    *r = (struct request){.line = line, .id = json_null()};
    if (!(r->key = request_key(r->id, line)))
        return err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, line);
    return err_set(e, ERR_FORMAT, "line %" PRIu64 ": more than %zu bytes", line, max_bytes);
}

int request_read(struct request *r, const char *text, size_t len, uint64_t line,
                 const struct request_options *defaults, struct moeflux_err *e)
{
    *r = (struct request){.line = line, .id = json_null(), .options = *defaults, .fields = json_object()};
    struct where where = where_of(r);
    int rc = r->fields ? parse(r, text, len, e) : err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    if (!(r->key = request_key(r->id, line)))
        return err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    return rc ? rc : get_options(r, where.text, e);
}

int request_take(struct request *r, struct json_t *object, const struct request_options *defaults,
                 struct moeflux_err *e)
{
    *r = (struct request){.id = json_null(), .options = *defaults, .fields = json_object()};
    struct where where = where_of(r);
    if (!r->fields)
        return err_set(e, ERR_MEMORY, "out of memory for %s", where.text);
    int rc = collect_fields(r, object, e);
    return rc ? rc : get_options(r, where.text, e);
}

/* ---- tokens ---- */

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

static int say(json_t *messages, const char *role, const char *text, struct moeflux_err *e)
{
    return chat_say(messages, role, text, strlen(text), NULL, e);
}

static int read_prompt(const struct request *r, json_t *to, const char *where, struct moeflux_err *e)
{
    const struct request_options *o = &r->options;
    if (is_blank(o->prompt))
        return err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    int rc = o->system && *o->system ? say(to, "system", o->system, e) : 0;
    return rc ? rc : say(to, "user", o->prompt, e);
}

static int encode_raw(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    const char *prompt = r->options.prompt;
    if (!*prompt)
        return err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    size_t len = strlen(prompt);
    if (s->most_prompt_bytes && len > s->most_prompt_bytes)
        return err_set(e, ERR_NO_FIT, "the prompt has %zu bytes, expected at most %" PRIu64, len,
                       s->most_prompt_bytes);
    return generator_encode(s, prompt, len, SPECIALS_AS_TOKENS, &r->tokens, NULL, e);
}

/* Makes the grammar of the calls in the model's form. */
static int call_grammar(struct request *r, const struct generator *s, const char *where,
                        struct moeflux_err *e)
{
    const struct request_options *o = &r->options;
    const struct tool_choice choice = {
        .tools = o->tools, .name = o->tool, .once = o->one_call, .where = where};
    str_clear(&r->grammar);
    int rc = tools_grammar(s, &choice, &r->grammar, e);
    r->options.grammar = str_text(&r->grammar);
    return rc;
}

/* Renders the messages. A template fails if it does not take this form of the calls' arguments: then the next
 * form is tried. If all fail, the first error is reported. */
static int render_messages(struct request *r, struct generator *s, const json_t *given, const char *where,
                           struct moeflux_err *e)
{
    struct moeflux_err first = {0};
    int rc = 0;
    if (json_object_get(r->fields, "system") &&
        json_is_text(json_member(json_array_get(given, 0), "role"), "system"))
        return err_set(e, ERR_FORMAT, "%s: system is given twice", where);
    for (enum call_arguments form = 0; form < N_CALL_ARGUMENTS; form++) {
        json_t *messages;
        bool has_calls;
        rc = chat_messages_read(given, r->options.system, form, &messages, &has_calls, where, e);
        if (rc)
            return rc;
        struct chat_prompt prompt = {.messages = messages,
                                     .tools = r->options.tools,
                                     .kwargs = r->options.kwargs,
                                     .opens_answer = true,
                                     .most_bytes = s->most_prompt_bytes};
        rc = chat_prompt_tokens(&s->chat, &prompt, &r->tokens, NULL, e);
        json_decref(messages);
        if (!rc || !has_calls || rc == ERR_NO_FIT)
            return rc;
        if (form == 0)
            first = *e;
    }
    *e = first;
    return (int)first.code;
}

static int render_prompt(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    json_t *messages = json_array();
    struct chat_prompt prompt = {.messages = messages,
                                 .tools = r->options.tools,
                                 .kwargs = r->options.kwargs,
                                 .opens_answer = true,
                                 .most_bytes = s->most_prompt_bytes};
    int rc =
        messages ? read_prompt(r, messages, where, e) : err_set(e, ERR_MEMORY, "out of memory for %s", where);
    if (!rc)
        rc = chat_prompt_tokens(&s->chat, &prompt, &r->tokens, NULL, e);
    json_decref(messages);
    return rc;
}

static int encode_chat(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    const json_t *given = json_object_get(r->fields, "messages");
    /* Each request may switch thinking on or off. */
    int rc = generator_use_chat(s, request_thinking(&r->options), "a request", e);
    if (rc == ERR_UNSUPPORTED && r->options.by_kwargs) {
        r->options.think = r->options.no_think = false;
        rc = generator_use_chat(s, CHAT_THINKING_AUTO, "a request", e);
    }
    if (!rc && r->options.tools)
        rc = tools_check_model(s, where, e);
    if (!rc && r->options.must_call)
        rc = call_grammar(r, s, where, e);
    if (rc)
        return rc;
    return given && !json_is_null(given) ? render_messages(r, s, given, where, e)
                                         : render_prompt(r, s, where, e);
}

static int check_bias(const struct request_options *o, uint32_t vocab_size, const char *where,
                      struct moeflux_err *e)
{
    for (uint32_t i = 0; i < o->n_bias; i++)
        if ((uint32_t)o->bias[i].id >= vocab_size)
            return err_set(e, ERR_FORMAT, "%s: logit_bias: token %d, expected 0 to %u", where, o->bias[i].id,
                           vocab_size - 1);
    return 0;
}

/* Makes a prompt that was not encoded for its length an error of the request, whoever reports it. */
static int refuse_length(struct request *r, const struct generator *s, const char *where,
                         struct moeflux_err *e)
{
    struct moeflux_err why = *e;
    r->is_too_long = true;
    return err_set(e, ERR_USAGE, "%s: %.200s; the context holds %u tokens (-c)", where, why.text,
                   s->max_context);
}

int request_encode(struct request *r, struct generator *s, struct moeflux_err *e)
{
    struct where named = where_of(r);
    const char *where = named.text;
    int rc = check_bias(&r->options, s->info.vocab_size, where, e);
    if (rc)
        return rc;
    rc = r->options.raw ? encode_raw(r, s, where, e) : encode_chat(r, s, where, e);
    if (rc == ERR_NO_FIT)
        return refuse_length(r, s, where, e);
    if (!rc && r->tokens.n == 0)
        rc = err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    return rc;
}

void request_free(struct request *r)
{
    json_decref(r->fields);
    free(r->key);
    str_free(&r->grammar);
    free(r->bias);
    token_list_free(&r->tokens);
    *r = (struct request){0};
}
