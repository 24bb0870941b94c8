/* The forms of OpenAI's chats and completions: choices with a message or a text. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_request.h"
#include "generate/choice.h"
#include "api/dialect.h"
#include "api/refusal.h"
#include "api/token_lists.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/answer_json.h"
#include "generate/logprobs.h"
#include "moeflux.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

struct choice_output {
    struct str text, thinking, arguments; /* arguments: those of the current tool call */
    json_t *calls;                        /* array of tool calls; NULL: none */
    json_t *logprobs;                     /* array, in chats only; NULL: nothing yet */
    struct token_lists lists;             /* the same in completions of a text */
    bool begun;                           /* the prompt was added (`echo`), the first event was sent */
};

static struct choice_output *output_of(const struct reply *r, uint32_t idx)
{
    return (struct choice_output *)r->state + idx;
}

static int open(struct reply *r, struct moeflux_err *e)
{
    r->state = mem_new(r->request->n_choices, sizeof(struct choice_output), e);
    return r->state ? 0 : ERR_MEMORY;
}

static void close(struct reply *r)
{
    for (uint32_t i = 0; r->state && i < r->request->n_choices; i++) {
        struct choice_output *x = output_of(r, i);
        str_free(&x->text);
        str_free(&x->thinking);
        str_free(&x->arguments);
        json_decref(x->calls);
        json_decref(x->logprobs);
        json_decref(token_lists_take(&x->lists));
    }
    free(r->state);
}

/* ---- parts ---- */

static json_t *text_json(const struct str *s)
{
    return utf8_json(str_text(s), s->len);
}

/* Returns the API's finish_reason. "length" also stands for an answer that the end of the server cut off. */
static const char *finish_reason(const struct choice_result *r)
{
    switch (r->stop) {
    case MOEFLUX_STOP_EOS:
    case MOEFLUX_STOP_TEXT:
        return "stop";
    case MOEFLUX_STOP_CALLS:
        return "tool_calls";
    default:
        return "length";
    }
}

static json_t *usage(const struct api_request *request)
{
    json_int_t prompt = 0, cached = 0, answered = 0, drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < request->n_choices; i++) {
        const struct choice *a = api_request_choice(request, i);
        /* The choices of one prompt share it. */
        if (i % request->n == 0) {
            prompt += (json_int_t)a->request.tokens.n;
            cached += a->result.n_reused;
        }
        answered += a->result.n_answered;
        drafted += (json_int_t)a->result.drafts.n_drafted;
        accepted += (json_int_t)a->result.drafts.n_accepted;
    }
    return json_pack("{s: I, s: I, s: I, s: {s: I}, s: {s: I, s: I}}", "prompt_tokens", prompt,
                     "completion_tokens", answered, "total_tokens", prompt + answered,
                     "prompt_tokens_details", "cached_tokens", cached, "completion_tokens_details",
                     "accepted_prediction_tokens", accepted, "rejected_prediction_tokens",
                     drafted - accepted);
}

static json_t *head(const struct reply *r, const char *kind)
{
    char id[40];
    snprintf(id, sizeof id, "%s-%016" PRIx64, r->request->chat ? "chatcmpl" : "cmpl", r->drawn);
    return json_pack("{s: s, s: s, s: I, s: o, s: s}", "id", id, "object", kind, "created",
                     (json_int_t)r->created, "model", utf8_json(r->model, strlen(r->model)),
                     "system_fingerprint", "moeflux-" MOEFLUX_VERSION);
}

/* Returns whether the prompt's first token is a begin token that its text does not have. */
static bool adds_bos(const struct reply *r, const struct choice *a)
{
    const char *bytes, *text = a->request.options.prompt;
    int32_t bos = tokenizer_bos(r->tokenizer);
    size_t n = bos >= 0 ? tokenizer_bytes(r->tokenizer, bos, &bytes) : 0;
    return n && text && a->request.tokens.n && a->request.tokens.ids[0] == bos &&
           strncmp(text, bytes, n) != 0;
}

/* Appends the prompt's text, and the probabilities of its tokens, for `echo`. */
static void add_prompt(struct reply *r, uint32_t idx, struct str *out)
{
    const struct choice *a = api_request_choice(r->request, idx);
    struct str all = {0};
    for (size_t i = adds_bos(r, a); i < a->request.tokens.n; i++) {
        const char *bytes;
        int32_t id = a->request.tokens.ids[i];
        size_t n = tokenizer_bytes(r->tokenizer, id, &bytes);
        str_add(&all, n ? bytes : "", n);
        if (r->request->logprobs)
            token_lists_add(&output_of(r, idx)->lists, r->tokenizer, id,
                            i && i <= a->scores.n ? logprobs_of(&a->scores, i - 1) : NULL, a->scores.n_top);
    }
    out->failed |= !str_ok(&all);
    str_add(out, str_text(&all), all.len);
    str_free(&all);
}

/* Keeps a token's log-probabilities: in a chat those of its content only, in a completion those of all
 * tokens. */
static void add_logprobs(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    struct choice_output *x = output_of(r, idx);
    if (!p->logprobs || p->id < 0)
        return;
    if (!r->request->chat) {
        token_lists_add(&x->lists, r->tokenizer, p->id, p->logprobs, p->n_logprobs);
    } else if (p->kind == MOEFLUX_PIECE_TEXT) {
        if (!x->logprobs)
            x->logprobs = json_array();
        json_array_append_new(x->logprobs, answer_json_logprob(r->tokenizer, p->logprobs, p->n_logprobs));
    }
}

/* Returns the log-probabilities since the last call of this; JSON's null: none. */
static json_t *take_logprobs(struct reply *r, uint32_t idx)
{
    struct choice_output *x = output_of(r, idx);
    if (!r->request->chat) {
        json_t *lists = token_lists_take(&x->lists);
        return lists ? lists : json_null();
    }
    json_t *content = x->logprobs;
    x->logprobs = NULL;
    return content ? json_pack("{s: o}", "content", content) : json_null();
}

/* ---- whole ---- */

/* Returns a tool call that begins, without arguments. */
static json_t *call_json(const struct moeflux_piece *p)
{
    return json_pack("{s: s, s: s, s: {s: o, s: s}}", "id", p->call->id, "type", "function", "function",
                     "name", utf8_json(p->call->name, strlen(p->call->name)), "arguments", "");
}

static void keep_part(struct choice_output *x, const struct moeflux_piece *p)
{
    json_t *last = json_array_get(x->calls, json_array_size(x->calls) - 1);
    switch (p->kind) {
    case MOEFLUX_PIECE_CALL_BEGINS:
        str_clear(&x->arguments);
        if (!x->calls)
            x->calls = json_array();
        json_array_append_new(x->calls, call_json(p));
        break;
    case MOEFLUX_PIECE_CALL_ARGUMENTS:
        str_add(&x->arguments, p->text, p->len);
        break;
    case MOEFLUX_PIECE_CALL_ENDS:
        json_object_set_new(json_object_get(last, "function"), "arguments", text_json(&x->arguments));
        break;
    case MOEFLUX_PIECE_CALL_FAILS:
        json_array_remove(x->calls, json_array_size(x->calls) - 1);
        break;
    case MOEFLUX_PIECE_TEXT:
        str_add(&x->text, p->text, p->len);
        break;
    case MOEFLUX_PIECE_THINKING:
        str_add(&x->thinking, p->text, p->len);
        break;
    case MOEFLUX_PIECE_CONTROL:
        break;
    }
}

/* Begins the text of a choice whose prompt was evaluated. */
static void begin_text(struct reply *r, uint32_t idx)
{
    struct choice_output *x = output_of(r, idx);
    if (!x->begun && r->request->echo)
        add_prompt(r, idx, &x->text);
    x->begun = true;
}

static void keep(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    struct choice_output *x = output_of(r, idx);
    begin_text(r, idx);
    add_logprobs(r, idx, p);
    keep_part(x, p);
}

static json_t *choice_json(struct reply *r, uint32_t idx)
{
    struct choice_output *x = output_of(r, idx);
    begin_text(r, idx);
    json_t *out = json_pack("{s: i, s: s, s: o}", "index", (int)idx, "finish_reason",
                            finish_reason(&api_request_choice(r->request, idx)->result), "logprobs",
                            take_logprobs(r, idx));
    if (!r->request->chat) {
        json_object_set_new(out, "text", text_json(&x->text));
        return out;
    }
    /* A list even if all tokens were thinking: clients read its length. */
    if (r->request->logprobs && json_is_null(json_object_get(out, "logprobs")))
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

static json_t *whole(struct reply *r)
{
    json_t *out = head(r, r->request->chat ? "chat.completion" : "text_completion"), *choices = json_array();
    for (uint32_t i = 0; i < r->request->n_choices; i++)
        json_array_append_new(choices, choice_json(r, i));
    json_object_set_new(out, "choices", choices);
    json_object_set_new(out, "usage", usage(r->request));
    return out;
}

/* ---- events ---- */

/* Appends an event of one choice. Takes ownership of `delta`, which is the text in a completion. finish:
 * reason; NULL: more follows. */
static void send_choice(struct reply *r, uint32_t idx, json_t *delta, const char *finish)
{
    json_t *choice =
        json_pack("{s: i, s: o, s: s?, s: o}", "index", (int)idx, r->request->chat ? "delta" : "text", delta,
                  "finish_reason", finish, "logprobs", take_logprobs(r, idx));
    json_t *event = head(r, r->request->chat ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(event, "choices", json_pack("[o]", choice));
    /* If clients ask for the usage, only the last event has it; it is null in the others. */
    if (r->request->include_usage)
        json_object_set_new(event, "usage", json_null());
    reply_event(r, NULL, event);
}

static void send_begin(struct reply *r, uint32_t idx)
{
    struct choice_output *x = output_of(r, idx);
    if (x->begun)
        return;
    x->begun = true;
    if (r->request->chat) {
        send_choice(r, idx, json_pack("{s: s, s: s}", "role", "assistant", "content", ""), NULL);
    } else if (r->request->echo) {
        struct str prompt = {0};
        add_prompt(r, idx, &prompt);
        send_choice(r, idx, text_json(&prompt), NULL);
        str_free(&prompt);
    }
}

/* Returns what an event reports about a tool call; NULL: nothing. */
static json_t *call_delta(const struct moeflux_piece *p)
{
    json_t *call = NULL;
    if (p->kind == MOEFLUX_PIECE_CALL_BEGINS)
        call = call_json(p);
    else if (p->kind == MOEFLUX_PIECE_CALL_ARGUMENTS)
        call = json_pack("{s: {s: o}}", "function", "arguments", utf8_json(p->text, p->len));
    if (!call)
        return NULL;
    json_object_set_new(call, "index", json_integer(p->call_idx));
    return json_pack("{s: [o]}", "tool_calls", call);
}

static void send_piece(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    send_begin(r, idx);
    add_logprobs(r, idx, p);
    if (p->call) {
        json_t *delta = call_delta(p);
        if (delta)
            send_choice(r, idx, delta, NULL);
        return;
    }
    if (!p->len && !output_of(r, idx)->logprobs && !output_of(r, idx)->lists.object)
        return;
    json_t *text = utf8_json(p->text, p->len);
    if (r->request->chat)
        text = json_pack("{s: o}", p->kind == MOEFLUX_PIECE_THINKING ? "reasoning_content" : "content", text);
    send_choice(r, idx, text, NULL);
}

static void piece(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    if (r->out)
        send_piece(r, idx, p);
    else
        keep(r, idx, p);
}

static void end(struct reply *r, uint32_t idx)
{
    const struct choice_result *of = &api_request_choice(r->request, idx)->result;
    if (of->rc) {
        struct refusal why = {0};
        refusal_of(&why, of->rc, &of->error);
        reply_event(r, NULL, refusal_json(&why));
        return;
    }
    send_begin(r, idx);
    send_choice(r, idx, r->request->chat ? json_object() : json_string(""), finish_reason(of));
}

/* Appends the usage, if it was asked for, and the end. */
static void last(struct reply *r)
{
    if (r->request->include_usage) {
        json_t *event = head(r, r->request->chat ? "chat.completion.chunk" : "text_completion");
        json_object_set_new(event, "choices", json_array());
        json_object_set_new(event, "usage", usage(r->request));
        reply_event(r, NULL, event);
    }
    str_add_text(r->out, "data: [DONE]\n\n");
}

static void alive(struct reply *r)
{
    str_add_text(r->out, ": still here\n\n");
}

const struct dialect dialect_chat = {
    .path = "/v1/chat/completions",
    .chat = true,
    .open = open,
    .close = close,
    .piece = piece,
    .whole = whole,
    .end = end,
    .last = last,
    .alive = alive,
    .error = refusal_json,
};

const struct dialect dialect_completions = {
    .path = "/v1/completions",
    .open = open,
    .close = close,
    .piece = piece,
    .whole = whole,
    .end = end,
    .last = last,
    .alive = alive,
    .error = refusal_json,
};
