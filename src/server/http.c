#include "server/http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "api/dialect.h"
#include "server/endpoints.h"
#include "server/http_request.h"
#include "server/state.h"

/* ---- access ---- */

static const char *header(const struct http_request *req, const char *name)
{
    return MHD_lookup_connection_value(req->connection, MHD_HEADER_KIND, name);
}

/* Copies the host of "host:port"; an IPv6 address is in brackets. */
static void host_of(const char *authority, char *host, size_t cap)
{
    const char *end = authority[0] == '[' ? strchr(authority, ']') : strchr(authority, ':');
    size_t skip = authority[0] == '[' && end, n = end ? (size_t)(end - authority) - skip : strlen(authority);
    if (n >= cap)
        n = 0;
    memcpy(host, authority + skip, n);
    host[n] = '\0';
}

/* Returns whether a host name in a browser's request is an address or this server's own name. Against DNS
 * rebinding: another site may have its name point to this server. */
static bool is_own_host(const struct server *s, const char *host)
{
    unsigned char address[16];
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, s->options.host) == 0 ||
           inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* Returns whether the page that sends the request may do so: the server's own page, or one that the user has
 * allowed (--cors). Only browsers name an origin. */
static bool origin_is_allowed(struct http_request *req)
{
    const char *origin = header(req, MHD_HTTP_HEADER_ORIGIN), *host = header(req, MHD_HTTP_HEADER_HOST);
    const char *cors = req->server->options.cors;
    char name[256];
    if (!origin)
        return true;
    if (cors && (strcmp(cors, "*") == 0 || strcmp(cors, origin) == 0)) {
        req->cors = cors;
        return true;
    }
    const char *authority = strstr(origin, "://");
    if (!authority || !host || strcmp(authority + 3, host) != 0)
        return false;
    host_of(host, name, sizeof name);
    return is_own_host(req->server, name);
}

/* Looks for the key in the headers that OpenAI's, Anthropic's and Azure's clients use. */
static bool key_is_right(const struct http_request *req)
{
    static const char bearer[] = "Bearer ";
    static const char *const names[] = {"X-Api-Key", "api-key"};
    const struct keys *keys = &req->server->keys;
    const char *shown = header(req, MHD_HTTP_HEADER_AUTHORIZATION);
    bool right =
        shown && strncasecmp(shown, bearer, strlen(bearer)) == 0 && keys_have(keys, shown + strlen(bearer));
    for (size_t i = 0; !right && i < sizeof names / sizeof *names; i++) {
        const char *key = header(req, names[i]);
        right = key && keys_have(keys, key);
    }
    return right;
}

static void look_at(struct http_request *req, const char *method)
{
    const char *length = header(req, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const struct endpoint *p = endpoints_find(method, req->url, &req->allowed);
    bool allowed = origin_is_allowed(req);
    if (strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0 && req->cors) {
        req->preflight = true;
        return;
    }
    req->endpoint = p;
    if (!allowed)
        refusal_set(&req->refusal, 403, NULL, NULL, "pages of this origin may not use the server (--cors)");
    else if ((!p || !p->open) && req->server->keys.len && !key_is_right(req))
        refusal_set(&req->refusal, 401, NULL, "invalid_api_key", "the key is missing or wrong");
    else if (!p && req->allowed)
        refusal_set(&req->refusal, 405, NULL, NULL, "%.60s does not take the method %.20s", req->url, method);
    else if (!p)
        refusal_set(&req->refusal, 404, NULL, NULL, "there is nothing at %.200s", req->url);
    else if (length && strtoull(length, NULL, 10) > SERVER_MAX_BODY)
        refusal_set(&req->refusal, 413, NULL, NULL, "the body has %.20s bytes, at most %d are taken", length,
                    SERVER_MAX_BODY);
}

/* ---- a request ---- */

static struct http_request *begin(struct server *s, struct MHD_Connection *connection, const char *url)
{
    struct http_request *req = mem_new(1, sizeof *req, NULL);
    if (!req)
        return NULL;
    *req = (struct http_request){.server = s, .connection = connection, .url = url, .begin_ns = clock_ns()};
    atomic_fetch_add(&s->n_open, 1);
    return req;
}

static void end(void *cls, struct MHD_Connection *connection, void **con_cls,
                enum MHD_RequestTerminationCode how)
{
    struct server *s = cls;
    struct http_request *req = *con_cls;
    (void)connection, (void)how;
    if (!req)
        return;
    reply_free(req->reply);
    for (uint32_t i = 0; req->jobs && i < req->api.n_choices; i++)
        jobs_release(&s->jobs, req->jobs[i]);
    free(req->jobs);
    api_request_free(&req->api);
    str_free(&req->body);
    str_free(&req->out);
    free(req);
    *con_cls = NULL;
    atomic_fetch_sub(&s->n_open, 1);
}

/* Appends a part of the body. The body of a refused request is read, too, so that the client reads the
 * reply. */
static enum MHD_Result take_body(struct http_request *req, const char *data, size_t n)
{
    if (clock_ns() - req->begin_ns > SERVER_TIMEOUT_S * (uint64_t)1000000000)
        return MHD_NO;
    if (!req->refusal.status && req->body.len + n > SERVER_MAX_BODY)
        refusal_set(&req->refusal, 413, NULL, NULL, "the body has more than %d bytes", SERVER_MAX_BODY);
    if (req->refusal.status) {
        str_free(&req->body);
        return MHD_YES;
    }
    str_add(&req->body, data, n);
    if (!str_ok(&req->body))
        refusal_set(&req->refusal, 503, NULL, NULL, "out of memory for the body");
    return MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **con_cls)
{
    struct http_request *req = *con_cls;
    (void)version;
    if (!req) {
        if (!(req = *con_cls = begin(cls, connection, url)))
            return MHD_NO;
        look_at(req, method);
        /* A body that is too large is not read at all. */
        return req->refusal.status == 413 && http_request_refuse(req) ? MHD_NO : MHD_YES;
    }
    if (*n) {
        enum MHD_Result taken = take_body(req, data, *n);
        *n = 0;
        return taken;
    }
    int rc = req->refusal.status ? http_request_refuse(req)
             : req->preflight    ? http_request_reply(req, MHD_HTTP_NO_CONTENT, NULL, "", 0)
                                 : req->endpoint->answer(req);
    return rc ? MHD_NO : MHD_YES;
}

/* ---- the daemon ---- */

int http_start(struct server *s, struct moeflux_err *e)
{
    enum { STACK = 2 << 20 };
    unsigned flags =
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, s, MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_NOTIFY_COMPLETED,
        end, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVER_MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)SERVER_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVER_HEADER_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK, MHD_OPTION_END);
    if (!s->daemon)
        return err_errno(e, ERR_IO, "%s: the server could not be started", s->url);
    s->listener = -1;
    return 0;
}

void http_stop_accepting(struct server *s)
{
    if (!s->daemon)
        return;
    int fd = MHD_quiesce_daemon(s->daemon);
    if (fd >= 0)
        close(fd);
}

void http_stop(struct server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
