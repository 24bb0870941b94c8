/* The form of OpenAI's responses: items of reasoning, messages and function calls. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_request.h"
#include "api/chat_body.h"
#include "generate/choice.h"
#include "api/dialect.h"
#include "api/fields.h"
#include "api/items.h"
#include "api/refusal.h"
#include "api/response_store.h"
#include "api/responses_body.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/utf8.h"

static const struct dialect_name names[] = {
    {"max_output_tokens", "max_tokens"},
    {"text.format", "response_format"},
    {"reasoning.effort", "reasoning_effort"},
    {NULL, NULL},
};

struct state {
    struct items items;
    json_int_t n_events;
};

static int open(struct reply *r, struct moeflux_err *e)
{
    r->state = mem_new(1, sizeof(struct state), e);
    return r->state ? 0 : ERR_MEMORY;
}

static void close(struct reply *r)
{
    struct state *s = r->state;
    if (s)
        items_free(&s->items);
    free(s);
}

/* ---- items ---- */

static json_t *text_json(const struct str *s)
{
    return utf8_json(str_text(s), s->len);
}

/* Returns whether the client wants `encrypted_content`. */
static bool seals_thinking(const struct reply *r)
{
    const json_t *include = json_object_get(r->request->given, "include");
    for (size_t i = 0; i < json_array_size(include); i++)
        if (json_is_text(json_array_get(include, i), "reasoning.encrypted_content"))
            return true;
    return false;
}

struct item_id {
    char text[48];
};

static struct item_id id_of(const struct reply *r, enum item_kind kind, size_t idx)
{
    static const char *const begins[] = {"rs", "msg", "fc"};
    struct item_id id;
    snprintf(id.text, sizeof id.text, "%s_%016" PRIx64 "_%zu", begins[kind], r->drawn, idx);
    return id;
}

/* Returns the content part of reasoning or a message, with a text. Takes ownership of `text`. */
static json_t *part_json(enum item_kind kind, json_t *text)
{
    if (kind == ITEM_THINKING)
        return json_pack("{s: s, s: o}", "type", "reasoning_text", "text", text);
    return json_pack("{s: s, s: o, s: [], s: []}", "type", "output_text", "text", text, "annotations",
                     "logprobs");
}

/* Sets name and namespace of a call: the model sees a joined name. */
static void set_name(const struct reply *r, const struct item *item, json_t *out)
{
    const json_t *tools = json_object_get(r->request->given, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *space = json_array_get(tools, i), *inner = json_object_get(space, "tools");
        const char *name = json_string_value(json_object_get(space, "name"));
        for (size_t k = 0; name && k < json_array_size(inner); k++) {
            json_t *own = json_object_get(json_array_get(inner, k), "name");
            struct str joined = {0};
            if (json_is_string(own))
                responses_body_join_name(name, json_string_value(own), &joined);
            bool found = str_ok(&joined) && strcmp(str_text(&joined), str_text(&item->name)) == 0;
            str_free(&joined);
            if (!found)
                continue;
            json_object_set(out, "name", own);
            json_object_set(out, "namespace", json_object_get(space, "name"));
            return;
        }
    }
    json_object_set_new(out, "name", text_json(&item->name));
}

static json_t *call_json(const struct reply *r, const struct item *item, const char *id, const char *status)
{
    bool whole = strcmp(status, "in_progress") != 0;
    json_t *out = json_pack("{s: s, s: s, s: s, s: o, s: o}", "id", id, "type", "function_call", "status",
                            status, "call_id", text_json(&item->call_id), "arguments",
                            whole ? text_json(&item->text) : json_string(""));
    set_name(r, item, out);
    return out;
}

/* Returns an item. status: "in_progress" (without its text), "completed" or "incomplete". */
static json_t *item_json(const struct reply *r, size_t idx, const char *status)
{
    const struct item *item = &((const struct state *)r->state)->items.list[idx];
    struct item_id id = id_of(r, item->kind, idx);
    bool whole = strcmp(status, "in_progress") != 0;
    if (item->kind == ITEM_CALL)
        return call_json(r, item, id.text, status);
    json_t *content = whole ? json_pack("[o]", part_json(item->kind, text_json(&item->text))) : json_array();
    if (item->kind == ITEM_TEXT)
        return json_pack("{s: s, s: s, s: s, s: s, s: o}", "id", id.text, "type", "message", "status", status,
                         "role", "assistant", "content", content);
    json_t *reasoning = json_pack("{s: s, s: s, s: s, s: [], s: o}", "id", id.text, "type", "reasoning",
                                  "status", status, "summary", "content", content);
    if (whole && seals_thinking(r))
        json_object_set_new(reasoning, "encrypted_content",
                            chat_body_seal(str_text(&item->text), item->text.len));
    return reasoning;
}

/* ---- the response ---- */

static const struct choice_result *result(const struct reply *r)
{
    return &api_request_choice(r->request, 0)->result;
}

static json_t *usage(const struct reply *r)
{
    const struct choice *a = api_request_choice(r->request, 0);
    const struct state *s = r->state;
    json_int_t prompt = (json_int_t)a->request.tokens.n, answered = a->result.n_answered;
    return json_pack("{s: I, s: {s: I}, s: I, s: {s: I}, s: I}", "input_tokens", prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)a->result.n_reused, "output_tokens",
                     answered, "output_tokens_details", "reasoning_tokens", (json_int_t)s->items.n_thinking,
                     "total_tokens", prompt + answered);
}

/* Sets the fields of the request that the reply repeats, with the values that they have by default. */
static void set_given(const struct reply *r, json_t *out)
{
    static const struct {
        const char *name, *value; /* value: JSON */
    } fields[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\": null, \"summary\": null}"},
        {"safety_identifier", "null"},
        {"service_tier", "\"default\""},
        {"store", "true"},
        {"temperature", "null"},
        {"text", "{\"format\": {\"type\": \"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_p", "null"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = fields_get(r->request->given, fields[i].name);
        json_object_set_new(out, fields[i].name,
                            value ? json_incref((json_t *)(uintptr_t)value)
                                  : json_loads(fields[i].value, JSON_DECODE_ANY, NULL));
    }
    json_object_set_new(out, "background", json_false());
}

static const char *status_of(const struct choice_result *of)
{
    bool ended =
        of->stop == MOEFLUX_STOP_EOS || of->stop == MOEFLUX_STOP_CALLS || of->stop == MOEFLUX_STOP_TEXT;
    return of->rc ? "failed" : ended ? "completed" : "incomplete";
}

/* Returns the response with the items so far. */
static json_t *response_json(const struct reply *r, const char *status)
{
    const struct state *s = r->state;
    const struct items *items = &s->items;
    bool running = strcmp(status, "in_progress") == 0, cut = strcmp(status, "incomplete") == 0;
    char id[40];
    json_t *output = json_array();
    for (size_t i = 0; i < items->n; i++)
        if (!items->list[i].failed)
            json_array_append_new(output, item_json(r, i, cut && i + 1 == items->n ? status : "completed"));
    snprintf(id, sizeof id, "resp_%016" PRIx64, r->drawn);
    json_t *out = json_pack(
        "{s: s, s: s, s: I, s: s, s: n, s: o, s: o, s: o, s: o}", "id", id, "object", "response",
        "created_at", (json_int_t)r->created, "status", status, "error", "incomplete_details",
        cut ? json_pack("{s: s}", "reason", "max_output_tokens") : json_null(), "model",
        utf8_json(r->model, strlen(r->model)), "output", output, "usage", running ? json_null() : usage(r));
    set_given(r, out);
    return out;
}

/* Returns the input as later requests read it, which the caller owns: the answer went on with an assistant's
 * message at its end. */
static json_t *input_to_keep(const json_t *given)
{
    const json_t *input = json_object_get(given, "input");
    size_t n = json_array_size(input);
    const json_t *last = json_array_get(input, n ? n - 1 : 0);
    json_t *kept = json_incref((json_t *)(uintptr_t)input);
    if (!json_is_text(json_object_get(last, "role"), "assistant"))
        return kept;
    json_t *all = json_copy(kept), *cut = json_copy((json_t *)(uintptr_t)last);
    json_decref(kept);
    json_object_set_new(cut, "status", json_string("incomplete"));
    json_array_set_new(all, n - 1, cut);
    return all;
}

/* Keeps a finished response for later requests, unless the client does not want that. */
static void keep(const struct reply *r, const json_t *response)
{
    const json_t *given = r->request->given;
    if (!r->request->responses || json_is_false(json_object_get(given, "store")))
        return;
    json_t *input = input_to_keep(given);
    response_store_put(r->request->responses,
                       json_string_value(json_object_get(given, "previous_response_id")), input, response);
    json_decref(input);
}

/* ---- events ---- */

/* Sends an event. Takes ownership of `value`. */
static void send(struct reply *r, const char *type, json_t *value)
{
    struct state *s = r->state;
    json_t *event = json_pack("{s: s, s: I}", "type", type, "sequence_number", s->n_events++);
    if (!value || json_object_update(event, value) < 0) {
        json_decref(event);
        event = NULL;
    }
    json_decref(value);
    reply_event(r, type, event);
}

static enum item_kind kind_of(const struct reply *r, size_t idx)
{
    return ((const struct state *)r->state)->items.list[idx].kind;
}

/* Returns the beginning of an event of an item. part: also of its only part of content. */
static json_t *place_json(const struct reply *r, size_t idx, bool part)
{
    struct item_id id = id_of(r, kind_of(r, idx), idx);
    json_t *out = json_pack("{s: s, s: I}", "item_id", id.text, "output_index", (json_int_t)idx);
    if (part)
        json_object_set_new(out, "content_index", json_integer(0));
    return out;
}

static void send_item(struct reply *r, const char *type, size_t idx, const char *status)
{
    send(r, type,
         json_pack("{s: I, s: o}", "output_index", (json_int_t)idx, "item", item_json(r, idx, status)));
}

/* Sends an event of an item with one more member. Takes ownership of `value`. */
static void send_member(struct reply *r, const char *type, size_t idx, const char *name, json_t *value)
{
    enum item_kind kind = kind_of(r, idx);
    json_t *event = place_json(r, idx, kind != ITEM_CALL);
    if (json_object_set_new(event, name, value) < 0) {
        json_decref(event);
        event = NULL;
    }
    bool has_logprobs = strncmp(type, "response.output_text", 20) == 0;
    if (has_logprobs && event)
        json_object_set_new(event, "logprobs", json_array());
    send(r, type, event);
}

static void item_begins(void *ctx, size_t idx)
{
    struct reply *r = ctx;
    enum item_kind kind = kind_of(r, idx);
    send_item(r, "response.output_item.added", idx, "in_progress");
    if (kind != ITEM_CALL)
        send_member(r, "response.content_part.added", idx, "part", part_json(kind, json_string("")));
}

static void item_grows(void *ctx, size_t idx, const char *text, size_t len)
{
    static const char *const types[] = {"response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    struct reply *r = ctx;
    send_member(r, types[kind_of(r, idx)], idx, "delta", utf8_json(text, len));
}

/* Ends an item. status: as in item_json. */
static void send_done(struct reply *r, size_t idx, const char *status)
{
    static const char *const types[] = {"response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done"};
    const struct item *item = &((const struct state *)r->state)->items.list[idx];
    bool is_call = item->kind == ITEM_CALL;
    send_member(r, types[item->kind], idx, is_call ? "arguments" : "text", text_json(&item->text));
    if (!is_call)
        send_member(r, "response.content_part.done", idx, "part",
                    part_json(item->kind, text_json(&item->text)));
    send_item(r, "response.output_item.done", idx, status);
}

static void item_ends(void *ctx, size_t idx)
{
    struct reply *r = ctx;
    const struct state *s = r->state;
    send_done(r, idx, s->items.list[idx].failed ? "incomplete" : "completed");
}

/* Ends the last item of an answer that was cut. */
static void item_is_cut(void *ctx, size_t idx)
{
    send_done(ctx, idx, "incomplete");
}

static void begin(struct reply *r)
{
    send(r, "response.created", json_pack("{s: o}", "response", response_json(r, "in_progress")));
    send(r, "response.in_progress", json_pack("{s: o}", "response", response_json(r, "in_progress")));
}

static void piece(struct reply *r, uint32_t idx, const struct moeflux_piece *p)
{
    const struct item_sink sink = {item_begins, item_grows, item_ends, r};
    struct state *s = r->state;
    (void)idx;
    items_take(&s->items, p, r->out ? &sink : NULL);
}

static void end(struct reply *r, uint32_t idx)
{
    struct state *s = r->state;
    const struct choice_result *of = &api_request_choice(r->request, idx)->result;
    const char *status = status_of(of);
    bool complete = strcmp(status, "completed") == 0;
    const struct item_sink sink = {item_begins, item_grows, complete ? item_ends : item_is_cut, r};
    char type[40];
    items_end(&s->items, &sink);
    r->out->failed |= s->items.failed;
    json_t *response = response_json(r, status);
    if (of->rc)
        json_object_set_new(response, "error",
                            json_pack("{s: s, s: o}", "code", "server_error", "message",
                                      utf8_json(of->error.text, strlen(of->error.text))));
    else
        keep(r, response);
    snprintf(type, sizeof type, "response.%s", status);
    send(r, type, json_pack("{s: o}", "response", response));
}

/* An event, since clients such as Codex give up after five minutes without one; comments do not count. */
static void alive(struct reply *r)
{
    send(r, "keepalive", json_object());
}

/* ---- whole replies ---- */

static json_t *whole(struct reply *r)
{
    struct state *s = r->state;
    items_end(&s->items, NULL);
    if (s->items.failed)
        return NULL;
    json_t *response = response_json(r, status_of(result(r)));
    keep(r, response);
    return response;
}

static json_t *count(size_t n_tokens)
{
    return json_pack("{s: s, s: I}", "object", "response.input_tokens", "input_tokens", (json_int_t)n_tokens);
}

const struct dialect dialect_responses = {
    .path = "/v1/responses",
    .chat = true,
    .read = responses_body_read,
    .names = names,
    .open = open,
    .close = close,
    .piece = piece,
    .whole = whole,
    .begin = begin,
    .end = end,
    .alive = alive,
    .error = refusal_json,
    .count = count,
};
