#include "server/http_request.h"

#include <jansson.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialect.h"
#include "base/json_sent.h"
#include "server/metrics.h"
#include "server/state.h"

/* A client that has sent more bytes before it closed is gone, too: so the bytes do not count, as they
 * would for recv. */
bool http_request_client_is_gone(const struct http_request *req)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return true;
    struct pollfd socket = {.fd = info->connect_fd, .events = POLLRDHUP};
    return poll(&socket, 1, 0) > 0;
}

void http_request_set_waiting(const struct http_request *req, bool waiting)
{
    MHD_set_connection_option(req->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              waiting ? 0u : (unsigned)SERVER_TIMEOUT_S);
}

/* Returns the headers that a page of an allowed origin may send: all that it asks for, because clients in
 * browsers have their own, such as x-stainless-lang of OpenAI's. A value that is not a list of names is not
 * echoed. */
static const char *headers_allowed(const struct http_request *req)
{
    enum { MOST = 1000 };
    static const char chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~, ";
    const char *asked =
        MHD_lookup_connection_value(req->connection, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    size_t n = asked ? strspn(asked, chars) : 0;
    return n > 0 && n <= MOST && asked[n] == '\0' ? asked : "authorization, content-type";
}

static void add_cors(const struct http_request *req, struct MHD_Response *r)
{
    if (!req->cors)
        return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", req->cors);
    MHD_add_response_header(r, "Vary", req->preflight ? "Origin, Access-Control-Request-Headers" : "Origin");
    if (req->preflight) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE");
        MHD_add_response_header(r, "Access-Control-Allow-Headers", headers_allowed(req));
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    }
}

/* Adds the page's content security policy: its style and script are inline, it connects only to its own
 * server, and no other page may show it in a frame. */
static void add_policy(const struct http_request *req, struct MHD_Response *r)
{
    static const char policy[] =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    if (!req->is_page)
        return;
    MHD_add_response_header(r, "Content-Security-Policy", policy);
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
}

/* Queues a response and takes ownership of it; NULL stands for lack of memory. */
static int queue(struct http_request *req, unsigned status, const char *type, struct MHD_Response *r)
{
    if (!r)
        return -1;
    if (type)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    add_cors(req, r);
    add_policy(req, r);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (req->closes)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, req->allowed);
    enum MHD_Result queued = MHD_queue_response(req->connection, status, r);
    MHD_destroy_response(r);
    metrics_request(&req->server->metrics, status);
    return queued == MHD_YES ? 0 : -1;
}

int http_request_reply(struct http_request *req, unsigned status, const char *type, const char *bytes,
                       size_t n)
{
    return queue(req, status, type,
                 MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY));
}

static int reply_json(struct http_request *req, unsigned status, json_t *value)
{
    char *text = json_sent_dump(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    int rc = text ? http_request_reply(req, status, "application/json", text, strlen(text)) : -1;
    free(text);
    return rc;
}

int http_request_reply_json(struct http_request *req, struct json_t *value)
{
    return reply_json(req, MHD_HTTP_OK, value);
}

int http_request_refuse(struct http_request *req)
{
    const struct dialect *d = req->endpoint ? req->endpoint->dialect : NULL;
    return reply_json(req, req->refusal.status, d ? d->error(&req->refusal) : refusal_json(&req->refusal));
}

long http_request_read_out(struct http_request *req, char *buf, size_t most)
{
    size_t n = req->out.len - req->out_pos;
    if (!str_ok(&req->out))
        return -2;
    if (n == 0)
        return -1;
    if (n > most)
        n = most;
    memcpy(buf, req->out.data + req->out_pos, n);
    req->out_pos += n;
    return (long)n;
}

int http_request_reply_stream(struct http_request *req, const char *type,
                              long (*read)(void *http_request, uint64_t pos, char *buf, size_t most))
{
    enum { PIECE = 16 << 10 };
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, read, req, NULL);
    if (r) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        /* Keeps nginx and similar proxies from buffering the stream. */
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    return queue(req, MHD_HTTP_OK, type, r);
}
