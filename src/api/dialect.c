#include "api/dialect.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api/api_request.h"
#include "api/chat_body.h"
#include "api/fields.h"
#include "api/refusal.h"
#include "base/err.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "generate/generator.h"

/* ---- bodies ---- */

/* Copies the fields that have another name in chat completions. */
static void rename_fields(const struct dialect *d, const json_t *in, struct chat_body *to)
{
    for (const struct dialect_name *n = d->names; n && n->own; n++) {
        if (strchr(n->own, '.'))
            continue;
        const json_t *value = fields_get(in, n->own);
        json_object_del(to->fields, n->own);
        if (value)
            chat_body_set(to, n->chat, json_incref((json_t *)(uintptr_t)value));
    }
}

/* Makes a refusal of a chat completion name the field that the body has. */
static void rename_refusal(const struct dialect *d, struct refusal *refusal)
{
    char text[sizeof refusal->text];
    for (const struct dialect_name *n = d->names; n && n->own; n++) {
        size_t len = strlen(n->chat);
        if (strcmp(refusal->param, n->chat) != 0)
            continue;
        if (strncmp(refusal->text, n->chat, len) == 0) {
            snprintf(text, sizeof text, "%s%s", n->own, refusal->text + len);
            memcpy(refusal->text, text, sizeof text);
        }
        snprintf(refusal->param, sizeof refusal->param, "%s", n->own);
        return;
    }
}

/* Reads a body of another dialect than OpenAI's chats and completions. */
static int read_foreign(const struct dialect *d, struct api_request *c, const json_t *in,
                        const struct generator *g, const struct api_request_defaults *defaults,
                        struct refusal *refusal)
{
    struct chat_body body;
    chat_body_init(&body, in, refusal);
    rename_fields(d, in, &body);
    if (!refusal->status)
        d->read(in, defaults, &body);
    int rc = chat_body_end(&body);
    if (!rc)
        rc = api_request_take(c, d->chat, body.fields, g, defaults, refusal);
    if (rc)
        rename_refusal(d, refusal);
    c->given = json_incref(body.given);
    c->responses = defaults->responses;
    memcpy(c->note, body.note, sizeof c->note);
    chat_body_free(&body);
    return rc;
}

int dialect_read(const struct dialect *d, struct api_request *c, const char *body, size_t len,
                 const struct generator *g, const struct api_request_defaults *defaults,
                 struct refusal *refusal)
{
    *c = (struct api_request){.chat = d->chat};
    if (!d->read)
        return api_request_read(c, d->chat, body, len, g, defaults, refusal);
    json_t *in = fields_parse(body, len, refusal);
    int rc = in ? read_foreign(d, c, in, g, defaults, refusal) : -1;
    json_decref(in);
    return rc;
}

/* ---- replies ---- */

struct reply *reply_new(const struct dialect *d, const struct api_request *request, const char *model,
                        const struct generator *g, struct str *out, struct moeflux_err *e)
{
    struct reply *r = mem_new(1, sizeof *r, e);
    if (!r)
        return NULL;
    *r = (struct reply){d, request, model, g->tokenizer, .created = (int64_t)time(NULL), .out = out};
    if (getrandom(&r->drawn, sizeof r->drawn, 0) != (ssize_t)sizeof r->drawn) {
        err_errno(e, ERR_IO, "no identifier could be drawn");
    } else if (d->open(r, e) == 0) {
        return r;
    }
    reply_free(r);
    return NULL;
}

int reply_reset(struct reply *r, struct moeflux_err *e)
{
    r->dialect->close(r);
    r->state = NULL;
    return r->dialect->open(r, e);
}

void reply_free(struct reply *r)
{
    if (!r)
        return;
    r->dialect->close(r);
    free(r);
}

void reply_event(struct reply *r, const char *name, struct json_t *value)
{
    char *text = json_sent_dump(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    /* Without memory the event is missing, and `out` has failed. */
    r->out->failed |= text == NULL;
    if (name)
        str_addf(r->out, "event: %s\n", name);
    str_add_text(r->out, "data: ");
    str_add_text(r->out, text ? text : "");
    str_add_text(r->out, "\n\n");
    free(text);
}
