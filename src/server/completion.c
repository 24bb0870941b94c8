#include "server/completion.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "moeflux.h"
#include "server/call.h"
#include "server/jobs.h"
#include "server/refusal.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

struct choice {
    struct str text, thinking;
    json_t *logprobs; /* NULL: not asked for, or nothing yet */
    bool begun;       /* the first event was sent */
};

struct completion {
    const struct call *call;
    const char *model;
    const struct tokenizer *tokenizer;
    char id[40];
    int64_t created;        /* seconds of the epoch */
    struct choice *choices; /* [call->n_jobs] */
};

struct completion *completion_new(const struct call *call, const char *model, const struct tokenizer *t,
                                  struct moeflux_err *e)
{
    uint64_t drawn;
    struct completion *c = mem_new(1, sizeof *c, e);
    if (!c)
        return NULL;
    *c = (struct completion){call, model, t, .created = (int64_t)time(NULL)};
    c->choices = mem_new(call->n_jobs, sizeof *c->choices, e);
    if (!c->choices || getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) {
        if (c->choices)
            err_errno(e, ERR_IO, "no identifier could be drawn");
        completion_free(c);
        return NULL;
    }
    snprintf(c->id, sizeof c->id, "%s-%016" PRIx64, call->chat ? "chatcmpl" : "cmpl", drawn);
    return c;
}

void completion_free(struct completion *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; c->choices && i < c->call->n_jobs; i++) {
        str_free(&c->choices[i].text);
        str_free(&c->choices[i].thinking);
        json_decref(c->choices[i].logprobs);
    }
    free(c->choices);
    free(c);
}

/* ---- parts ---- */

static json_t *text_json(const struct str *s)
{
    return json_text_new(str_text(s), s->len);
}

/* "length" also stands for an answer that the server's end has cut. */
static const char *finish_reason(const struct job_result *r)
{
    return r->stop == ANSWER_EOS ? "stop" : "length";
}

static json_t *usage(const struct call *call)
{
    uint64_t prompt = 0, cached = 0, answered = 0;
    for (uint32_t i = 0; i < call->n_jobs; i++) {
        const struct job *j = call->jobs[i];
        /* The choices of one prompt have it in common. */
        if (i % call->n == 0) {
            prompt += j->request.tokens.n;
            cached += j->result.n_reused;
        }
        answered += j->result.n_answered;
    }
    return json_pack("{s: I, s: I, s: I, s: {s: I}}", "prompt_tokens", (json_int_t)prompt,
                     "completion_tokens", (json_int_t)answered, "total_tokens",
                     (json_int_t)(prompt + answered), "prompt_tokens_details", "cached_tokens",
                     (json_int_t)cached);
}

static json_t *head(const struct completion *c, const char *kind)
{
    return json_pack("{s: s, s: s, s: I, s: o, s: s}", "id", c->id, "object", kind, "created",
                     (json_int_t)c->created, "model", json_text_new(c->model, strlen(c->model)),
                     "system_fingerprint", "moeflux-" MOEFLUX_VERSION);
}

/* The prompt's text, for `echo`. */
static void add_prompt(const struct completion *c, const struct job *j, struct str *out)
{
    for (size_t i = 0; i < j->request.tokens.n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(c->tokenizer, j->request.tokens.ids[i], &bytes);
        str_add(out, n ? bytes : "", n);
    }
}

static struct str *text_of(struct choice *x, enum chat_part part)
{
    return part == CHAT_THINKING ? &x->thinking : &x->text;
}

/* ---- whole ---- */

void completion_keep(struct completion *c, uint32_t idx, const struct job_piece *p)
{
    struct choice *x = &c->choices[idx];
    if (!x->begun && c->call->echo)
        add_prompt(c, c->call->jobs[idx], &x->text);
    x->begun = true;
    str_add(text_of(x, p->part), p->text, p->len);
}

static json_t *choice_json(struct completion *c, uint32_t idx)
{
    struct choice *x = &c->choices[idx];
    const struct job *j = c->call->jobs[idx];
    json_t *out = json_pack("{s: i, s: s, s: O?}", "index", (int)idx, "finish_reason",
                            finish_reason(&j->result), "logprobs", x->logprobs);
    if (!c->call->chat) {
        json_object_set_new(out, "text", text_json(&x->text));
        return out;
    }
    json_t *message = json_pack("{s: s, s: o}", "role", "assistant", "content", text_json(&x->text));
    if (x->thinking.len)
        json_object_set_new(message, "reasoning_content", text_json(&x->thinking));
    json_object_set_new(out, "message", message);
    return out;
}

struct json_t *completion_json(struct completion *c)
{
    json_t *out = head(c, c->call->chat ? "chat.completion" : "text_completion"), *choices = json_array();
    for (uint32_t i = 0; i < c->call->n_jobs; i++)
        json_array_append_new(choices, choice_json(c, i));
    json_object_set_new(out, "choices", choices);
    json_object_set_new(out, "usage", usage(c->call));
    return out;
}

/* ---- events ---- */

/* Takes `value` over. */
static void send(struct str *out, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    /* Without memory the event is missing, and `out` says so. */
    out->failed |= text == NULL;
    str_add_text(out, "data: ");
    str_add_text(out, text ? text : "");
    str_add_text(out, "\n\n");
    free(text);
}

/* One choice's event. delta: taken over; of a completion the text. finish: NULL: it goes on. */
static void send_choice(struct completion *c, uint32_t idx, json_t *delta, const char *finish,
                        struct str *out)
{
    json_t *choice = json_pack("{s: i, s: o, s: s?, s: n}", "index", (int)idx,
                               c->call->chat ? "delta" : "text", delta, "finish_reason", finish, "logprobs");
    json_t *event = head(c, c->call->chat ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(event, "choices", json_pack("[o]", choice));
    /* Clients that ask for the usage find it absent in all events but one. */
    if (c->call->include_usage)
        json_object_set_new(event, "usage", json_null());
    send(out, event);
}

static void send_begin(struct completion *c, uint32_t idx, struct str *out)
{
    struct choice *x = &c->choices[idx];
    if (x->begun)
        return;
    x->begun = true;
    if (c->call->chat) {
        send_choice(c, idx, json_pack("{s: s, s: s}", "role", "assistant", "content", ""), NULL, out);
    } else if (c->call->echo) {
        struct str prompt = {0};
        add_prompt(c, c->call->jobs[idx], &prompt);
        send_choice(c, idx, text_json(&prompt), NULL, out);
        str_free(&prompt);
    }
}

void completion_send_piece(struct completion *c, uint32_t idx, const struct job_piece *p, struct str *out)
{
    send_begin(c, idx, out);
    if (!p->len)
        return;
    json_t *text = json_text_new(p->text, p->len);
    if (c->call->chat)
        text = json_pack("{s: o}", p->part == CHAT_THINKING ? "reasoning_content" : "content", text);
    send_choice(c, idx, text, NULL, out);
}

void completion_send_end(struct completion *c, uint32_t idx, struct str *out)
{
    const struct job_result *r = &c->call->jobs[idx]->result;
    if (r->rc) {
        struct refusal why = {0};
        refusal_of(&why, r->rc, &r->error);
        send(out, refusal_json(&why));
        return;
    }
    send_begin(c, idx, out);
    send_choice(c, idx, c->call->chat ? json_object() : json_string(""), finish_reason(r), out);
}

void completion_send_last(struct completion *c, struct str *out)
{
    if (c->call->include_usage) {
        json_t *event = head(c, c->call->chat ? "chat.completion.chunk" : "text_completion");
        json_object_set_new(event, "choices", json_array());
        json_object_set_new(event, "usage", usage(c->call));
        send(out, event);
    }
    str_add_text(out, "data: [DONE]\n\n");
}
