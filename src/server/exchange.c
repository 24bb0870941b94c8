#include "server/exchange.h"

#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "server/metrics.h"
#include "server/state.h"

bool exchange_is_gone(const struct exchange *x)
{
    char next;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return true;
    ssize_t n = recv(info->connect_fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void exchange_set_waiting(const struct exchange *x, bool waiting)
{
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              waiting ? 0u : (unsigned)SERVER_TIMEOUT_S);
}

/* Returns the headers that a page of an allowed origin may send: all that it asks for, because clients in
 * browsers have their own, such as x-stainless-lang of OpenAI's. A value that is not a list of names is not
 * echoed. */
static const char *headers_allowed(const struct exchange *x)
{
    enum { MOST = 1000 };
    static const char chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~, ";
    const char *asked =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    size_t n = asked ? strspn(asked, chars) : 0;
    return n > 0 && n <= MOST && asked[n] == '\0' ? asked : "authorization, content-type";
}

static void add_cors(const struct exchange *x, struct MHD_Response *r)
{
    if (!x->cors)
        return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", x->cors);
    MHD_add_response_header(r, "Vary", x->preflight ? "Origin, Access-Control-Request-Headers" : "Origin");
    if (x->preflight) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(r, "Access-Control-Allow-Headers", headers_allowed(x));
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    }
}

/* Adds the page's content security policy: its style and script are inline, it connects only to its own
 * server, and no other page may show it in a frame. */
static void add_policy(const struct exchange *x, struct MHD_Response *r)
{
    static const char policy[] =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    if (!x->is_page)
        return;
    MHD_add_response_header(r, "Content-Security-Policy", policy);
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
}

/* Queues a response and takes ownership of it; NULL stands for lack of memory. */
static int queue(struct exchange *x, unsigned status, const char *type, struct MHD_Response *r)
{
    if (!r)
        return -1;
    if (type)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    add_cors(x, r);
    add_policy(x, r);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, x->allowed);
    enum MHD_Result queued = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    metrics_request(&x->server->metrics, status);
    return queued == MHD_YES ? 0 : -1;
}

int exchange_reply(struct exchange *x, unsigned status, const char *type, const char *bytes, size_t n)
{
    return queue(x, status, type,
                 MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY));
}

static int reply_json(struct exchange *x, unsigned status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    int rc = text ? exchange_reply(x, status, "application/json", text, strlen(text)) : -1;
    free(text);
    return rc;
}

int exchange_reply_json(struct exchange *x, struct json_t *value)
{
    return reply_json(x, MHD_HTTP_OK, value);
}

int exchange_refuse(struct exchange *x)
{
    return reply_json(x, x->no.status, refusal_json(&x->no));
}

int exchange_reply_stream(struct exchange *x, const char *type,
                          long (*read)(void *exchange, uint64_t pos, char *buf, size_t most))
{
    enum { PIECE = 16 << 10 };
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, read, x, NULL);
    if (r) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        /* Keeps nginx and similar proxies from buffering the stream. */
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    return queue(x, MHD_HTTP_OK, type, r);
}
