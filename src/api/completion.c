#include "api/completion.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api/choice.h"
#include "api/api_request.h"
#include "api/refusal.h"
#include "api/token_lists.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/answer_json.h"
#include "generate/logprobs.h"
#include "moeflux.h"
#include "text/tokenizer/tokenizer.h"

struct choice_output {
    struct str text, thinking, arguments; /* arguments: those of the current tool call */
    json_t *calls;                        /* array of tool calls; NULL: none */
    json_t *logprobs;                     /* array, in chats only; NULL: nothing yet */
    struct token_lists lists;             /* the same in completions of a text */
    bool begun;                           /* the prompt was added (`echo`), the first event was sent */
};

struct completion {
    const struct api_request *request;
    const char *model;
    const struct tokenizer *tokenizer;
    char id[40];
    int64_t created;               /* seconds since the epoch */
    struct choice_output *outputs; /* [request->n_choices] */
};

struct completion *completion_new(const struct api_request *request, const char *model,
                                  const struct tokenizer *t, struct moeflux_err *e)
{
    uint64_t drawn;
    struct completion *c = mem_new(1, sizeof *c, e);
    if (!c)
        return NULL;
    *c = (struct completion){request, model, t, .created = (int64_t)time(NULL)};
    c->outputs = mem_new(request->n_choices, sizeof *c->outputs, e);
    if (!c->outputs || getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) {
        if (c->outputs)
            err_errno(e, ERR_IO, "no identifier could be drawn");
        completion_free(c);
        return NULL;
    }
    snprintf(c->id, sizeof c->id, "%s-%016" PRIx64, request->chat ? "chatcmpl" : "cmpl", drawn);
    return c;
}

void completion_reset(struct completion *c)
{
    for (uint32_t i = 0; c->outputs && i < c->request->n_choices; i++) {
        str_free(&c->outputs[i].text);
        str_free(&c->outputs[i].thinking);
        str_free(&c->outputs[i].arguments);
        json_decref(c->outputs[i].calls);
        json_decref(c->outputs[i].logprobs);
        json_decref(token_lists_take(&c->outputs[i].lists));
        c->outputs[i] = (struct choice_output){0};
    }
}

void completion_free(struct completion *c)
{
    if (!c)
        return;
    completion_reset(c);
    free(c->outputs);
    free(c);
}

/* ---- parts ---- */

static json_t *text_json(const struct str *s)
{
    return answer_json_text(str_text(s), s->len);
}

/* Returns the API's finish_reason. "length" also stands for an answer that the end of the server cut off. */
static const char *finish_reason(const struct choice_result *r)
{
    switch (r->stop) {
    case ANSWER_EOS:
    case ANSWER_STOP_TEXT:
        return "stop";
    case ANSWER_TOOLS:
        return "tool_calls";
    default:
        return "length";
    }
}

static json_t *usage(const struct api_request *request)
{
    json_int_t prompt = 0, cached = 0, answered = 0;
    for (uint32_t i = 0; i < request->n_choices; i++) {
        const struct choice *a = &request->choices[i];
        /* The choices of one prompt share it. */
        if (i % request->n == 0) {
            prompt += (json_int_t)a->request.tokens.n;
            cached += a->result.n_reused;
        }
        answered += a->result.n_answered;
    }
    return json_pack("{s: I, s: I, s: I, s: {s: I}}", "prompt_tokens", prompt, "completion_tokens", answered,
                     "total_tokens", prompt + answered, "prompt_tokens_details", "cached_tokens", cached);
}

static json_t *head(const struct completion *c, const char *kind)
{
    return json_pack("{s: s, s: s, s: I, s: o, s: s}", "id", c->id, "object", kind, "created",
                     (json_int_t)c->created, "model", answer_json_text(c->model, strlen(c->model)),
                     "system_fingerprint", "moeflux-" MOEFLUX_VERSION);
}

/* Appends the prompt's text, and the probabilities of its tokens, for `echo`. */
static void add_prompt(struct completion *c, uint32_t idx, struct str *out)
{
    const struct choice *a = &c->request->choices[idx];
    struct str all = {0};
    for (size_t i = 0; i < a->request.tokens.n; i++) {
        const char *bytes;
        int32_t id = a->request.tokens.ids[i];
        size_t n = tokenizer_bytes(c->tokenizer, id, &bytes);
        str_add(&all, n ? bytes : "", n);
        if (c->request->logprobs)
            token_lists_add(&c->outputs[idx].lists, c->tokenizer, id,
                            i && i <= a->scores.n ? logprobs_of(&a->scores, i - 1) : NULL, a->scores.n_top);
    }
    out->failed |= !str_ok(&all);
    str_add(out, str_text(&all), all.len);
    str_free(&all);
}

/* Keeps a token's log-probabilities: in a chat those of its content only, in a completion those of all
 * tokens. */
static void add_logprobs(struct completion *c, uint32_t idx, const struct answer_piece *p)
{
    struct choice_output *x = &c->outputs[idx];
    if (!p->logprobs || p->id < 0)
        return;
    if (!c->request->chat) {
        token_lists_add(&x->lists, c->tokenizer, p->id, p->logprobs, p->n_top);
    } else if (p->part == CHAT_ANSWER) {
        if (!x->logprobs)
            x->logprobs = json_array();
        json_array_append_new(x->logprobs, answer_json_logprob(c->tokenizer, p->logprobs, p->n_top));
    }
}

/* Returns the log-probabilities since the last call of this; JSON's null: none. */
static json_t *take_logprobs(struct completion *c, uint32_t idx)
{
    struct choice_output *x = &c->outputs[idx];
    if (!c->request->chat) {
        json_t *lists = token_lists_take(&x->lists);
        return lists ? lists : json_null();
    }
    json_t *content = x->logprobs;
    x->logprobs = NULL;
    return content ? json_pack("{s: o}", "content", content) : json_null();
}

static struct str *text_of(struct choice_output *x, enum chat_part part)
{
    return part == CHAT_THINKING ? &x->thinking : &x->text;
}

/* ---- whole ---- */

/* Returns a tool call that begins, without arguments. */
static json_t *call_json(const struct answer_piece *p)
{
    return json_pack("{s: s, s: s, s: {s: o, s: s}}", "id", p->call->id, "type", "function", "function",
                     "name", answer_json_text(str_text(&p->call->name), p->call->name.len), "arguments", "");
}

static void keep_call(struct choice_output *x, const struct answer_piece *p)
{
    json_t *last = json_array_get(x->calls, json_array_size(x->calls) - 1);
    switch (p->event) {
    case ANSWER_CALL_BEGINS:
        str_clear(&x->arguments);
        if (!x->calls)
            x->calls = json_array();
        json_array_append_new(x->calls, call_json(p));
        break;
    case ANSWER_CALL_ARGUMENTS:
        str_add(&x->arguments, p->text, p->len);
        break;
    case ANSWER_CALL_ENDS:
        json_object_set_new(json_object_get(last, "function"), "arguments", text_json(&x->arguments));
        break;
    case ANSWER_CALL_FAILS:
        json_array_remove(x->calls, json_array_size(x->calls) - 1);
        break;
    }
}

/* Begins the text of a choice whose prompt was evaluated. */
static void begin_text(struct completion *c, uint32_t idx)
{
    struct choice_output *x = &c->outputs[idx];
    if (!x->begun && c->request->echo)
        add_prompt(c, idx, &x->text);
    x->begun = true;
}

void completion_keep(struct completion *c, uint32_t idx, const struct answer_piece *p)
{
    struct choice_output *x = &c->outputs[idx];
    begin_text(c, idx);
    add_logprobs(c, idx, p);
    if (p->part == CHAT_TOOL)
        keep_call(x, p);
    else
        str_add(text_of(x, p->part), p->text, p->len);
}

static json_t *choice_json(struct completion *c, uint32_t idx)
{
    struct choice_output *x = &c->outputs[idx];
    begin_text(c, idx);
    json_t *out =
        json_pack("{s: i, s: s, s: o}", "index", (int)idx, "finish_reason",
                  finish_reason(&c->request->choices[idx].result), "logprobs", take_logprobs(c, idx));
    if (!c->request->chat) {
        json_object_set_new(out, "text", text_json(&x->text));
        return out;
    }
    /* A list even if all tokens were thinking: clients read its length. */
    if (c->request->logprobs && json_is_null(json_object_get(out, "logprobs")))
        json_object_set_new(out, "logprobs", json_pack("{s: []}", "content"));
    bool calls = json_array_size(x->calls) > 0;
    json_t *message = json_pack("{s: s, s: o}", "role", "assistant", "content",
                                calls && !x->text.len ? json_null() : text_json(&x->text));
    if (calls)
        json_object_set(message, "tool_calls", x->calls);
    if (x->thinking.len)
        json_object_set_new(message, "reasoning_content", text_json(&x->thinking));
    json_object_set_new(out, "message", message);
    return out;
}

struct json_t *completion_json(struct completion *c)
{
    json_t *out = head(c, c->request->chat ? "chat.completion" : "text_completion"), *choices = json_array();
    for (uint32_t i = 0; i < c->request->n_choices; i++)
        json_array_append_new(choices, choice_json(c, i));
    json_object_set_new(out, "choices", choices);
    json_object_set_new(out, "usage", usage(c->request));
    return out;
}

/* ---- events ---- */

/* Appends an event. Takes ownership of `value`. */
static void send(struct str *out, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    /* Without memory the event is missing, and `out` has failed. */
    out->failed |= text == NULL;
    str_add_text(out, "data: ");
    str_add_text(out, text ? text : "");
    str_add_text(out, "\n\n");
    free(text);
}

/* Appends an event of one choice. Takes ownership of `delta`, which is the text in a completion. finish:
 * reason; NULL: more follows. */
static void send_choice(struct completion *c, uint32_t idx, json_t *delta, const char *finish,
                        struct str *out)
{
    json_t *choice =
        json_pack("{s: i, s: o, s: s?, s: o}", "index", (int)idx, c->request->chat ? "delta" : "text", delta,
                  "finish_reason", finish, "logprobs", take_logprobs(c, idx));
    json_t *event = head(c, c->request->chat ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(event, "choices", json_pack("[o]", choice));
    /* If clients ask for the usage, only the last event has it; it is null in the others. */
    if (c->request->include_usage)
        json_object_set_new(event, "usage", json_null());
    send(out, event);
}

static void send_begin(struct completion *c, uint32_t idx, struct str *out)
{
    struct choice_output *x = &c->outputs[idx];
    if (x->begun)
        return;
    x->begun = true;
    if (c->request->chat) {
        send_choice(c, idx, json_pack("{s: s, s: s}", "role", "assistant", "content", ""), NULL, out);
    } else if (c->request->echo) {
        struct str prompt = {0};
        add_prompt(c, idx, &prompt);
        send_choice(c, idx, text_json(&prompt), NULL, out);
        str_free(&prompt);
    }
}

/* Returns what an event reports about a tool call; NULL: nothing. */
static json_t *call_delta(const struct answer_piece *p)
{
    json_t *call = NULL;
    if (p->event == ANSWER_CALL_BEGINS)
        call = call_json(p);
    else if (p->event == ANSWER_CALL_ARGUMENTS)
        call = json_pack("{s: {s: o}}", "function", "arguments", answer_json_text(p->text, p->len));
    if (!call)
        return NULL;
    json_object_set_new(call, "index", json_integer(p->call_idx));
    return json_pack("{s: [o]}", "tool_calls", call);
}

void completion_send_piece(struct completion *c, uint32_t idx, const struct answer_piece *p, struct str *out)
{
    send_begin(c, idx, out);
    add_logprobs(c, idx, p);
    if (p->part == CHAT_TOOL) {
        json_t *delta = call_delta(p);
        if (delta)
            send_choice(c, idx, delta, NULL, out);
        return;
    }
    if (!p->len && !c->outputs[idx].logprobs && !c->outputs[idx].lists.object)
        return;
    json_t *text = answer_json_text(p->text, p->len);
    if (c->request->chat)
        text = json_pack("{s: o}", p->part == CHAT_THINKING ? "reasoning_content" : "content", text);
    send_choice(c, idx, text, NULL, out);
}

void completion_send_end(struct completion *c, uint32_t idx, struct str *out)
{
    const struct choice_result *r = &c->request->choices[idx].result;
    if (r->rc) {
        struct refusal why = {0};
        refusal_of(&why, r->rc, &r->error);
        send(out, refusal_json(&why));
        return;
    }
    send_begin(c, idx, out);
    send_choice(c, idx, c->request->chat ? json_object() : json_string(""), finish_reason(r), out);
}

void completion_send_last(struct completion *c, struct str *out)
{
    if (c->request->include_usage) {
        json_t *event = head(c, c->request->chat ? "chat.completion.chunk" : "text_completion");
        json_object_set_new(event, "choices", json_array());
        json_object_set_new(event, "usage", usage(c->request));
        send(out, event);
    }
    str_add_text(out, "data: [DONE]\n\n");
}
