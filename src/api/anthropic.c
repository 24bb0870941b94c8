/* The form of Anthropic's messages: blocks of thinking, text and calls. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/anthropic_body.h"
#include "api/api_request.h"
#include "api/chat_body.h"
#include "generate/choice.h"
#include "api/dialect.h"
#include "api/items.h"
#include "api/refusal.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "text/utf8.h"

static const struct dialect_name names[] = {
    {"stop_sequences", "stop"},
    {"output_config.format", "response_format"},
    {"output_config.effort", "reasoning_effort"},
    {NULL, NULL},
};

static int open(struct reply *r, struct moeflux_err *e)
{
    r->state = mem_new(1, sizeof(struct items), e);
    return r->state ? 0 : ERR_MEMORY;
}

static void close(struct reply *r)
{
    if (r->state)
        items_free(r->state);
    free(r->state);
}

/* ---- parts ---- */

static const struct choice_result *result(const struct reply *r)
{
    return &api_request_choice(r->request, 0)->result;
}

/* Returns the usage. The tokens that were read from memory are not part of input_tokens. ended: false: the
 * answer is not computed yet, so its result may not be read. */
static json_t *usage(const struct reply *r, bool ended)
{
    const struct choice *a = api_request_choice(r->request, 0);
    json_int_t prompt = (json_int_t)a->request.tokens.n, cached = ended ? a->result.n_reused : 0;
    return json_pack("{s: I, s: i, s: I, s: I}", "input_tokens", prompt - cached,
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", cached, "output_tokens",
                     ended ? (json_int_t)a->result.n_answered : 0);
}

static const char *stop_reason(const struct choice_result *of)
{
    switch (of->stop) {
    case MOEFLUX_STOP_EOS:
        return "end_turn";
    case MOEFLUX_STOP_CALLS:
        return "tool_use";
    case MOEFLUX_STOP_TEXT:
        return "stop_sequence";
    case MOEFLUX_STOP_CONTEXT:
        return "model_context_window_exceeded";
    default:
        return "max_tokens";
    }
}

/* Returns the message. Takes ownership of content. stop: NULL: it has not ended. */
static json_t *message(const struct reply *r, json_t *content, const char *stop)
{
    char id[40];
    snprintf(id, sizeof id, "msg_%016" PRIx64, r->drawn);
    return json_pack("{s: s, s: s, s: s, s: o, s: o, s: s?, s: s?, s: o}", "id", id, "type", "message",
                     "role", "assistant", "model", utf8_json(r->model, strlen(r->model)), "content", content,
                     "stop_reason", stop, "stop_sequence", stop ? result(r)->stop_text : NULL, "usage",
                     usage(r, stop != NULL));
}

static json_t *text_json(const struct str *s)
{
    return utf8_json(str_text(s), s->len);
}

/* Returns the arguments of a call as an object. */
static json_t *input(const struct item *call)
{
    const char *text = str_text(&call->text);
    json_error_t why;
    json_t *object = json_sent_load(text, call->text.len, JSON_ALLOW_NUL, &why);
    if (json_is_object(object))
        return object;
    json_decref(object);
    return json_object();
}

/* Returns whether the client does not want to see the thinking. */
static bool hides_thinking(const struct reply *r)
{
    const json_t *thinking = json_object_get(r->request->given, "thinking");
    return json_is_text(json_object_get(thinking, "display"), "omitted");
}

/* Returns the signature of thinking, which clients send back: the thinking itself if they do not see it. */
static json_t *signature(const struct reply *r, const struct item *item)
{
    size_t n = hides_thinking(r) ? item->text.len : 0;
    return chat_body_seal(str_text(&item->text), n);
}

/* Returns a block. whole: with its text; else as it begins. */
static json_t *block(const struct reply *r, const struct item *item, bool whole)
{
    static const struct str empty;
    const struct str *text = whole ? &item->text : &empty;
    switch (item->kind) {
    case ITEM_THINKING:
        return json_pack("{s: s, s: o, s: o}", "type", "thinking", "thinking",
                         text_json(hides_thinking(r) ? &empty : text), "signature",
                         whole ? signature(r, item) : json_string(""));
    case ITEM_TEXT:
        return json_pack("{s: s, s: o}", "type", "text", "text", text_json(text));
    default:
        return json_pack("{s: s, s: o, s: o, s: o}", "type", "tool_use", "id", text_json(&item->call_id),
                         "name", text_json(&item->name), "input", whole ? input(item) : json_object());
    }
}

/* ---- events ---- */

static const struct item *item_of(const struct reply *r, size_t idx)
{
    return &((const struct items *)r->state)->list[idx];
}

static void send_delta(struct reply *r, size_t idx, const char *type, const char *name, json_t *text)
{
    reply_event(r, "content_block_delta",
                json_pack("{s: s, s: I, s: {s: s, s: o}}", "type", "content_block_delta", "index",
                          (json_int_t)idx, "delta", "type", type, name, text));
}

static void block_begins(void *ctx, size_t idx)
{
    struct reply *r = ctx;
    reply_event(r, "content_block_start",
                json_pack("{s: s, s: I, s: o}", "type", "content_block_start", "index", (json_int_t)idx,
                          "content_block", block(r, item_of(r, idx), false)));
}

static void block_grows(void *ctx, size_t idx, const char *text, size_t len)
{
    static const char *const types[] = {"thinking_delta", "text_delta", "input_json_delta"};
    static const char *const members[] = {"thinking", "text", "partial_json"};
    struct reply *r = ctx;
    enum item_kind kind = item_of(r, idx)->kind;
    if (kind != ITEM_THINKING || !hides_thinking(r))
        send_delta(r, idx, types[kind], members[kind], utf8_json(text, len));
}

static void block_ends(void *ctx, size_t idx)
{
    struct reply *r = ctx;
    if (item_of(r, idx)->kind == ITEM_THINKING)
        send_delta(r, idx, "signature_delta", "signature", signature(r, item_of(r, idx)));
    reply_event(r, "content_block_stop",
                json_pack("{s: s, s: I}", "type", "content_block_stop", "index", (json_int_t)idx));
}

static void alive(struct reply *r)
{
    reply_event(r, "ping", json_pack("{s: s}", "type", "ping"));
}

/* Sends the head at once, so that the client hears pings while the prompt is computed. How much of it is
 * known already comes with the last usage. */
static void begin(struct reply *r)
{
    reply_event(
        r, "message_start",
        json_pack("{s: s, s: o}", "type", "message_start", "message", message(r, json_array(), NULL)));
    alive(r);
}

static void piece(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    const struct item_sink sink = {block_begins, block_grows, block_ends, r};
    (void)idx;
    items_take(r->state, p, r->out ? &sink : NULL);
}

static json_t *error(const struct refusal *refusal);

static void end(struct reply *r, uint32_t idx)
{
    const struct item_sink sink = {block_begins, block_grows, block_ends, r};
    const struct choice_result *of = &api_request_choice(r->request, idx)->result;
    struct items *items = r->state;
    items_end(items, &sink);
    r->out->failed |= items->failed;
    if (of->rc) {
        struct refusal why = {0};
        refusal_of(&why, of->rc, &of->error);
        reply_event(r, "error", error(&why));
        return;
    }
    reply_event(r, "message_delta",
                json_pack("{s: s, s: {s: s, s: s?}, s: o}", "type", "message_delta", "delta", "stop_reason",
                          stop_reason(of), "stop_sequence", of->stop_text, "usage", usage(r, true)));
    reply_event(r, "message_stop", json_pack("{s: s}", "type", "message_stop"));
}

/* ---- whole replies ---- */

static json_t *whole(struct reply *r)
{
    struct items *items = r->state;
    json_t *content = json_array();
    items_end(items, NULL);
    for (size_t i = 0; i < items->n; i++)
        if (!items->list[i].failed)
            json_array_append_new(content, block(r, &items->list[i], true));
    if (!items->failed)
        return message(r, content, stop_reason(result(r)));
    json_decref(content);
    return NULL;
}

static const char *error_type(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status < 500 ? "invalid_request_error" : "api_error";
    }
}

static json_t *error(const struct refusal *refusal)
{
    /* Claude Code shortens a conversation when it reads these words and numbers. */
    bool too_long = strcmp(refusal->code, "context_length_exceeded") == 0;
    char text[sizeof refusal->text + 32];
    if (refusal->n_ctx)
        snprintf(text, sizeof text, "prompt is too long: %u tokens > %u maximum", refusal->n_prompt_tokens,
                 refusal->n_ctx);
    else
        snprintf(text, sizeof text, "%s%s", too_long ? "prompt is too long: " : "", refusal->text);
    return json_pack("{s: s, s: {s: s, s: o}}", "type", "error", "error", "type", error_type(refusal->status),
                     "message", utf8_json(text, strlen(text)));
}

static json_t *count(size_t n_tokens)
{
    return json_pack("{s: I}", "input_tokens", (json_int_t)n_tokens);
}

const struct dialect dialect_messages = {
    .path = "/v1/messages",
    .chat = true,
    .read = anthropic_body_read,
    .names = names,
    .open = open,
    .close = close,
    .piece = piece,
    .whole = whole,
    .begin = begin,
    .end = end,
    .alive = alive,
    .error = error,
    .count = count,
};
