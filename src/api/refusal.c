#include "api/refusal.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "text/utf8.h"

static void fill(struct refusal *r, unsigned status, const char *param, const char *code, const char *fmt,
                 va_list ap)
{
    if (r->status)
        return;
    r->status = status;
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    snprintf(r->code, sizeof r->code, "%s", code ? code : "");
    vsnprintf(r->text, sizeof r->text, fmt, ap);
}

int refusal_set(struct refusal *r, unsigned status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(r, status, param, code, fmt, ap);
    va_end(ap);
    return -1;
}

int refusal_field(struct refusal *r, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(r, 400, param, NULL, fmt, ap);
    va_end(ap);
    return -1;
}

int refusal_of(struct refusal *r, int rc, const struct moeflux_err *e)
{
    bool own_fault = rc == ERR_USAGE || rc == ERR_FORMAT || rc == ERR_UNSUPPORTED;
    /* A server opens a lost device again. */
    bool busy = rc == ERR_NO_FIT || rc == ERR_MEMORY || rc == ERR_INTERRUPTED || rc == ERR_LOST;
    return refusal_set(r, own_fault ? 400 : busy ? 503 : 500, NULL, NULL, "%s", e->text);
}

static const char *type_of(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static json_t *text_or_null(const char *text)
{
    return *text ? utf8_json(text, strlen(text)) : json_null();
}

struct json_t *refusal_json(const struct refusal *r)
{
    json_t *error =
        json_pack("{s: o, s: s, s: o, s: o}", "message", text_or_null(r->text), "type", type_of(r->status),
                  "param", text_or_null(r->param), "code", text_or_null(r->code));
    if (r->n_ctx) {
        json_object_set_new(error, "n_prompt_tokens", json_integer(r->n_prompt_tokens));
        json_object_set_new(error, "n_ctx", json_integer(r->n_ctx));
    }
    return json_pack("{s: o}", "error", error);
}
