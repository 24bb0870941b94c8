#include "generate/request_fields.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "base/texts.h"
#include "generate/logprobs.h"
#include "generate/request.h"
#include "generate/tools.h"
#include "sample/sampler_fields.h"

#define MAX_SEED   (((int64_t)1 << 53) - 1)
#define MAX_TOKENS ((int64_t)1 << 30)

enum {
    LINE = REQUEST_IN_LINE,
    CHAT = REQUEST_IN_CHAT,
    TEXT = REQUEST_IN_TEXT,
    ALL = LINE | CHAT | TEXT,
    TALK = LINE | CHAT,
};

/* ---- names ---- */

/* All fields with their other names. Other fields of a line are refused: a mistyped "temp" must not be
 * ignored. */
static const struct {
    const char *name, *others;
    unsigned places;
} names[] = {
    {"id", "", LINE},
    {"prompt", "", LINE},
    {"messages", "", LINE},
    {"system", "", LINE},
    {"raw", "", LINE},
    {"think", "", LINE},
    {"no_think", "", LINE},
    {"max_tokens", "max_completion_tokens,n_predict", ALL},
    {"max_tokens", "n,predict", LINE},
    {"ignore_eos", "", ALL},
    {"seed", "", LINE},
    {"draft", "", ALL},
    {"draft_max", "", ALL},
    {"logit_bias", "", ALL},
    {"stop", "", ALL},
    {"include_stop_str_in_output", "", ALL},
    {"logprobs", "", ALL},
    {"top_logprobs", "", ALL},
    {"chat_template_kwargs", "", TALK},
    {"tools", "", TALK},
    {"tool_choice", "", TALK},
    {"parallel_tool_calls", "", TALK},
    {"reasoning_effort", "", TALK},
    {"reasoning_effort", "effort", LINE},
    {"reasoning", "", TALK},
    {"thinking", "", TALK},
    {"enable_thinking", "", TALK},
    {"think_budget", "thinking_budget,reasoning_budget,thinking_budget_tokens,thinking_token_budget", TALK},
    {"continue_final_message", "", TALK},
    {"add_generation_prompt", "", TALK},
    {"json_schema", "", ALL},
    {"json_object", "", LINE},
    {"grammar", "", ALL},
    {"response_format", "", ALL},
    {"guided_json", "", ALL},
    {"guided_regex", "", ALL},
    {"guided_choice", "", ALL},
    {"guided_grammar", "", ALL},
    {"structured_outputs", "", ALL},
};
enum { N_NAMES = sizeof names / sizeof *names };

/* Returns whether a list with commas has the name, with "-" for "_" in the list or, if `loose`, in the
 * name. */
static bool list_has(const char *list, const char *name, bool loose)
{
    size_t n = strlen(name);
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ","), i = 0;
        while (len == n && i < n &&
               ((at[i] == '-' ? '_' : at[i]) == (loose && name[i] == '-' ? '_' : name[i])))
            i++;
        if (len == n && i == n)
            return true;
        at += len + (at[len] == ',');
    }
    return false;
}

const char *request_fields_find(const char *name, unsigned places)
{
    bool loose = places == LINE;
    for (size_t i = 0; i < N_NAMES; i++)
        if ((names[i].places & places) == places &&
            (list_has(names[i].name, name, loose) || list_has(names[i].others, name, loose)))
            return names[i].name;
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        if (list_has(sampler_fields[i].name, name, loose) || list_has(sampler_fields[i].flags, name, loose))
            return sampler_fields[i].name;
    return NULL;
}

/* ---- numbers ---- */

void request_fields_whole(struct json_view *v, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *value = json_view_get(v, key);
    if (v->rc || !value)
        return;
    double x = json_number_value(value);
    /* Seeds reach up to 2^53, which a double holds. */
    if (!json_is_number(value) || x != floor(x) || !(x >= (double)lo && x <= (double)hi))
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: %s: expected a whole number from %" PRId64 " to %" PRId64 ", found %s", v->where,
                        key, lo, hi, json_quote(value).text);
    else
        *out = json_is_integer(value) ? json_integer_value(value) : (int64_t)x;
}

static void get_real(struct json_view *v, const struct moeflux_sampler_field *f,
                     struct moeflux_sampler_options *o)
{
    const json_t *value = json_view_get(v, f->name);
    double x = json_number_value(value);
    if (v->rc || !value)
        return;
    if (!json_is_number(value) || !(x >= f->lo && x <= f->hi)) {
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s: expected a number from %g to %g, found %s", v->where,
                        f->name, f->lo, f->hi, json_quote(value).text);
        return;
    }
    v->rc = moeflux_sampler_set(o, f->name, x, v->e);
}

static int fail_texts(const struct json_view *v, const char *name, int most)
{
    return err_set(v->e, ERR_FORMAT, "%s: %s: expected a list of at most %d texts", v->where, name, most);
}

/* Reads an array of strings, which replaces the list. An empty one means no texts. */
static void get_texts(struct json_view *v, const struct moeflux_sampler_field *f, struct request *r)
{
    struct moeflux_sampler_options *o = &r->options.sampling;
    const json_t *value = json_view_get(v, f->name);
    if (v->rc || !value)
        return;
    if (!json_is_array(value) || json_array_size(value) > TEXTS_MAX) {
        v->rc = fail_texts(v, f->name, TEXTS_MAX);
        return;
    }
    free(r->breakers);
    if (!(r->breakers = mem_new(json_array_size(value), sizeof *r->breakers, v->e))) {
        v->rc = ERR_MEMORY;
        return;
    }
    o->dry_sequence_breakers = r->breakers;
    o->n_dry_sequence_breakers = 0;
    for (size_t i = 0; i < json_array_size(value) && !v->rc; i++) {
        const char *text = json_string_value(json_array_get(value, i));
        if (text && *text)
            r->breakers[o->n_dry_sequence_breakers++] = text;
        else if (!text)
            v->rc = fail_texts(v, f->name, TEXTS_MAX);
    }
}

static void get_sampling(struct json_view *v, struct request *r)
{
    struct moeflux_sampler_options *o = &r->options.sampling;
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &sampler_fields[i];
        int64_t n = -2;
        if (f->kind == MOEFLUX_SAMPLER_LIST)
            get_texts(v, f, r);
        if (f->kind == MOEFLUX_SAMPLER_REAL)
            get_real(v, f, o);
        if (f->kind != MOEFLUX_SAMPLER_WHOLE)
            continue;
        request_fields_whole(v, f->name, -1, (int64_t)f->hi, &n);
        if (n >= -1)
            v->rc = moeflux_sampler_set(o, f->name, n == -1 ? f->all : (double)n, v->e);
    }
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
        r->bias[n++] = (struct moeflux_bias){.id = atoi(key), .value = (float)by};
    }
    r->options.sampling.bias = r->bias;
    r->options.sampling.n_bias = n;
    return 0;
}

/* Reads a string or an array of strings; they replace those of the command line. Empty ones are no stops. */
static void get_stops(struct json_view *v, struct request_options *o)
{
    const json_t *value = json_view_get(v, "stop");
    bool is_list = json_is_array(value);
    o->keep_stop = json_view_bool_or(v, "include_stop_str_in_output", o->keep_stop);
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
        const json_t *one = is_list ? json_array_get(value, i) : value;
        const char *text = json_string_value(one);
        if (text && *text)
            o->stops[o->n_stops++] = text;
        else if (!text)
            v->rc = err_set(v->e, ERR_FORMAT, "%s: stop: expected a text or a list of texts, found %s",
                            v->where, json_quote(one).text);
    }
}

/* Reads draft and draft_max; they replace those of the command line. */
static void get_draft(struct json_view *v, struct request_options *o)
{
    struct moeflux_err why;
    int64_t most = o->draft.most;
    const char *text = json_view_text_or(v, "draft", NULL);
    request_fields_whole(v, "draft_max", 1, MOEFLUX_MAX_DRAFT, &most);
    o->draft.most = (uint32_t)most;
    if (!v->rc && text && draft_options_parse(&o->draft, "draft", text, &why))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s", v->where, why.text);
}

/* Reads logprobs: a number of tokens or, in chats, true or false with the number in top_logprobs. */
static void get_logprobs(struct json_view *v, struct request_options *o)
{
    const json_t *value = json_view_get(v, "logprobs");
    int64_t top = 0;
    request_fields_whole(v, "top_logprobs", 0, MOEFLUX_MAX_LOGPROBS, &top);
    if (!json_is_boolean(value))
        request_fields_whole(v, "logprobs", 0, MOEFLUX_MAX_LOGPROBS, &o->logprobs);
    else
        o->logprobs = json_is_true(value) ? top : REQUEST_NO_LOGPROBS;
    if (!v->rc && top > 0 && !json_is_true(value))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: top_logprobs goes with \"logprobs\": true only", v->where);
}

static int check_tool_choice(const struct json_view *v, const struct request_options *o, const json_t *choice)
{
    const json_t *name = json_member(json_member(choice, "function"), "name");
    if (!json_is_text(choice, "auto") && !json_is_text(choice, "required") && !json_is_string(name))
        return err_set(
            v->e, ERR_FORMAT,
            "%s: tool_choice: expected \"none\", \"auto\", \"required\", a function or allowed_tools, "
            "found %s",
            v->where, json_quote(choice).text);
    if (!o->tools)
        return err_set(v->e, ERR_FORMAT, "%s: tool_choice goes with tools only", v->where);
    if (name && !tools_find(o->tools, json_string_value(name)))
        return err_set(v->e, ERR_FORMAT, "%s: tool_choice: no tool is called \"%.60s\"", v->where,
                       json_string_value(name));
    return 0;
}

/* Leaves the tools that {"mode", "tools"} names. */
static void allow_tools(struct json_view *v, const json_t *allowed, struct request *r)
{
    const json_t *named = json_member(allowed, "tools");
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(named); i++) {
        const char *name =
            json_string_value(json_member(json_member(json_array_get(named, i), "function"), "name"));
        const json_t *tool = name ? tools_find(r->options.tools, name) : NULL;
        if (tool)
            json_array_append(kept, (json_t *)(uintptr_t)tool);
        else
            v->rc = err_set(v->e, ERR_FORMAT, "%s: tool_choice: no tool is called \"%.60s\"", v->where,
                            name ? name : "");
    }
    json_decref(r->tools);
    r->tools = kept;
    r->options.tools = json_array_size(kept) ? kept : NULL;
}

/* Reads tool_choice; "none" means that no tools are offered. */
static void get_tool_choice(struct json_view *v, struct request *r, struct request_options *o)
{
    const json_t *choice = json_view_get(v, "tool_choice"),
                 *allowed = json_is_text(json_member(choice, "type"), "allowed_tools")
                                ? json_member(choice, "allowed_tools")
                                : NULL;
    if (v->rc || !choice)
        return;
    if (allowed && o->tools) {
        allow_tools(v, allowed, r);
        choice = json_member(allowed, "mode");
    }
    /* Tools that were left out may not be called, but others would have been a choice. */
    bool is_auto = json_is_text(choice, "auto");
    if (json_is_text(choice, "none") || (is_auto && r->skipped_tool && !o->tools)) {
        o->tools = NULL;
        return;
    }
    if (!v->rc)
        v->rc = check_tool_choice(v, o, choice);
    o->must_call = !is_auto;
    o->tool = json_string_value(json_member(json_member(choice, "function"), "name"));
}

/* Reads tools; they replace those of the command line. */
static void get_tools(struct json_view *v, struct request *r)
{
    struct request_options *o = &r->options;
    const json_t *tools = json_view_get(v, "tools");
    if (!v->rc && tools) {
        v->rc = tools_take(tools, v->where, &r->tools, &r->skipped_tool, v->e);
        o->tools = r->tools;
    }
    /* A raw prompt cannot contain them. */
    if (!tools && o->raw)
        o->tools = NULL;
    o->one_call = !json_view_bool_or(v, "parallel_tool_calls", !o->one_call);
    get_tool_choice(v, r, o);
}

/* Reads whether the answer continues a last message of the assistant, which it does unless told otherwise. */
static void get_continuing(struct json_view *v, const json_t *messages, struct request_options *o)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    bool is_answer = json_is_text(json_object_get(last, "role"), "assistant");
    bool opens = json_view_bool_or(v, "add_generation_prompt", !is_answer);
    bool continues = json_view_bool_or(v, "continue_final_message", is_answer && !opens);
    if (!v->rc && continues && !is_answer)
        v->rc =
            err_set(v->e, ERR_FORMAT,
                    "%s: continue_final_message goes with a last message of the assistant only", v->where);
    if (!v->rc && !opens && !is_answer)
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: add_generation_prompt: false goes with a last message of the assistant only",
                        v->where);
    if (!v->rc && opens && continues)
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: add_generation_prompt and continue_final_message exclude each other", v->where);
    o->new_message = !continues;
}

/* ---- all ---- */

static int check(const struct request_options *o, const json_t *messages, const char *where,
                 struct moeflux_err *e)
{
    struct moeflux_err why;
    if (!o->prompt == !messages)
        return err_set(e, ERR_FORMAT, "%s: expected either prompt or messages", where);
    if (o->think && o->no_think)
        return err_set(e, ERR_FORMAT, "%s: think and no_think exclude each other", where);
    if (o->raw && (messages || o->system || o->tools || o->kwargs))
        return err_set(e, ERR_FORMAT, "%s: raw takes a prompt alone", where);
    int rc = sampler_check(&o->sampling, &why);
    return rc ? err_set(e, rc, "%s: %s", where, why.text) : 0;
}

int request_fields_take(struct request *r, const char *where, struct moeflux_err *e)
{
    struct request_options *o = &r->options;
    struct json_view v = {.objects = {r->fields}, .where = where, .e = e};
    request_fields_whole(&v, "max_tokens", REQUEST_NO_LIMIT, MAX_TOKENS, &o->predict);
    request_fields_whole(&v, "seed", -1, MAX_SEED, &o->seed);
    get_sampling(&v, r);
    get_stops(&v, o);
    get_draft(&v, o);
    get_logprobs(&v, o);
    o->ignore_eos = json_view_bool_or(&v, "ignore_eos", o->ignore_eos);
    o->raw = json_view_bool_or(&v, "raw", o->raw);
    get_tools(&v, r);
    request_thinking_take(&v, r);
    /* A raw prompt cannot contain the system text of the command line. */
    o->system = json_view_text_or(&v, "system", o->raw ? NULL : o->system);
    o->prompt = json_view_text_or(&v, "prompt", NULL);
    const json_t *messages = json_view_array(&v, "messages");
    get_continuing(&v, messages, o);
    int rc = request_form_take(r, &v, e);
    rc = rc ? rc : get_bias(r, &v, e);
    return rc ? rc : check(o, messages, where, e);
}
