#include "server/http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "api/dialect.h"
#include "server/answers.h"
#include "server/connections.h"
#include "server/endpoints.h"
#include "server/http_request.h"
#include "server/reading.h"
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

/* ---- the form of a request ---- */

/* Counts of headers that a proxy and the server must read in the same way. */
struct seen {
    unsigned n_hosts, n_lengths, n_encodings;
    bool has_space; /* a name contains one */
};

static enum MHD_Result see_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                  const char *value, size_t value_len)
{
    struct seen *s = ctx;
    (void)kind, (void)value, (void)value_len;
    s->n_hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    s->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    s->n_encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    s->has_space |= strcspn(name, " \t") != name_len;
    return MHD_YES;
}

/* Returns why the request is ambiguous, so that a proxy might see another request; NULL: it is not. */
static const char *find_fault(const struct http_request *req, const char *version)
{
    struct seen s = {0};
    MHD_get_connection_values_n(req->connection, MHD_HEADER_KIND, see_header, &s);
    if (req->has_nul)
        return "the path contains a NUL";
    if (s.has_space)
        return "a header has a space in its name";
    if (s.n_hosts > 1 || (s.n_hosts == 0 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0))
        return "expected one Host header";
    if (s.n_lengths > 1)
        return "Content-Length is given twice";
    if (s.n_lengths && s.n_encodings)
        return "Content-Length and Transfer-Encoding exclude each other";
    const char *encoding = header(req, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    return encoding && strcasecmp(encoding, "chunked") != 0 ? "Transfer-Encoding: expected chunked" : NULL;
}

static void look_at(struct http_request *req, const char *method, const char *version)
{
    const char *fault = find_fault(req, version);
    if (fault) {
        refusal_set(&req->refusal, 400, NULL, NULL, "%s", fault);
        req->closes = true;
        return;
    }
    const char *length = header(req, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *coding = header(req, MHD_HTTP_HEADER_CONTENT_ENCODING);
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
    else if (coding && strcasecmp(coding, "identity") != 0)
        refusal_set(&req->refusal, 415, NULL, NULL, "Content-Encoding: %.40s is not supported", coding);
    else if (length && strtoull(length, NULL, 10) > SERVER_MAX_BODY)
        refusal_set(&req->refusal, 413, NULL, NULL, "the body has %.20s bytes, at most %d are taken", length,
                    SERVER_MAX_BODY);
}

/* ---- a request ---- */

/* Begins a request: called before anything else of it, with the path as it was sent. The library will take
 * a NUL for the path's end, or decode one (%00). */
static void *begin(void *cls, const char *url, struct MHD_Connection *connection)
{
    struct http_request *req = mem_new(1, sizeof *req, NULL);
    if (!req)
        return NULL;
    *req = (struct http_request){.server = cls, .connection = connection, .url_end = url + strlen(url)};
    const char *nul = strstr(url, "%00");
    req->has_nul = nul && nul < url + strcspn(url, "?");
    return req;
}

/* Returns whether bytes follow the path's NUL: in the library's buffer, the version follows the path. */
static bool is_cut(const struct http_request *req, const char *version)
{
    return version > req->url_end + 1 && version < req->url_end + SERVER_HEADER_BYTES;
}

static struct connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void end(void *cls, struct MHD_Connection *connection, void **con_cls,
                enum MHD_RequestTerminationCode how)
{
    struct server *s = cls;
    struct http_request *req = *con_cls;
    (void)how;
    connections_set_phase(&s->connections, connection_of(connection), CONNECTION_HEADERS);
    if (!req)
        return;
    answers_free(req);
    reading_give(req);
    token_list_free(&req->ids);
    str_free(&req->out);
    atomic_fetch_sub(&s->n_open, req->url != NULL);
    free(req);
    *con_cls = NULL;
}

/* Appends a part of the body. The body of a refused request is read, too, so that the client reads the
 * reply. */
static enum MHD_Result take_body(struct http_request *req, const char *data, size_t n)
{
    if (!req->refusal.status && req->body.len + n > SERVER_MAX_BODY)
        refusal_set(&req->refusal, 413, NULL, NULL, "the body has more than %d bytes", SERVER_MAX_BODY);
    if (!req->refusal.status && !reading_take(req, n))
        refusal_set(&req->refusal, 503, NULL, NULL, "too many large bodies at once");
    if (req->refusal.status) {
        reading_give(req);
        return MHD_YES;
    }
    str_add(&req->body, data, n);
    if (!str_ok(&req->body))
        refusal_set(&req->refusal, 503, NULL, NULL, "out of memory for the body");
    return MHD_YES;
}

static enum MHD_Result answer(struct http_request *req)
{
    connections_set_phase(&req->server->connections, connection_of(req->connection), CONNECTION_ANSWERED);
    int rc = req->refusal.status ? http_request_refuse(req)
             : req->preflight    ? http_request_reply(req, MHD_HTTP_NO_CONTENT, NULL, "", 0)
                                 : req->endpoint->answer(req);
    return rc ? MHD_NO : MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **con_cls)
{
    struct http_request *req = *con_cls;
    struct server *s = cls;
    if (!req)
        return MHD_NO;
    if (!req->url) {
        req->url = url;
        atomic_fetch_add(&s->n_open, 1);
        req->has_nul |= is_cut(req, version);
        look_at(req, method, version);
        connections_set_phase(&s->connections, connection_of(connection), CONNECTION_BODY);
        /* A body that is too large, or has no certain end, is not read at all. */
        bool reads = req->refusal.status != 413 && !req->closes;
        return !reads && http_request_refuse(req) ? MHD_NO : MHD_YES;
    }
    if (*n) {
        enum MHD_Result taken = take_body(req, data, *n);
        *n = 0;
        return taken;
    }
    return answer(req);
}

static void notify(void *cls, struct MHD_Connection *connection, void **context,
                   enum MHD_ConnectionNotificationCode what)
{
    struct server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        connections_remove(&s->connections, *context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *address =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    *context = connections_add(&s->connections, fd->connect_fd, address->client_addr);
}

/* ---- the daemon ---- */

/* Returns the most connections: those of answers, of requests that wait, and of clients that send nothing. */
static uint32_t most_connections(const struct server *s)
{
    enum { OTHERS = 128 };
    return (uint32_t)size_max(SERVER_CONNECTIONS, s->options.parallel + OTHERS);
}

static int start_daemon(struct server *s, struct moeflux_err *e)
{
    /* SLACK: connections that were closed, whose threads have not ended. STRICT: the library's word for
     * headers that no client of today sends. */
    enum { STACK = 2 << 20, SLACK = 64, STRICT = 1 };
    unsigned flags =
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle, s, MHD_OPTION_LISTEN_SOCKET, s->listener,
                                 MHD_OPTION_NOTIFY_COMPLETED, end, s, MHD_OPTION_NOTIFY_CONNECTION, notify, s,
                                 MHD_OPTION_URI_LOG_CALLBACK, begin, s, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)(most_connections(s) + SLACK), MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)SERVER_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)SERVER_HEADER_BYTES, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK,
                                 MHD_OPTION_STRICT_FOR_CLIENT, (int)STRICT, MHD_OPTION_END);
    if (!s->daemon)
        return err_errno(e, ERR_IO, "%s: the server could not be started", s->url);
    s->listener = -1;
    return 0;
}

int http_start(struct server *s, struct moeflux_err *e)
{
    struct connections_limits limits = {
        .most = most_connections(s),
        .most_of_address = s->options.address_connections,
        .arrival_ns = SERVER_TIMEOUT_S * (uint64_t)1000000000,
    };
    int rc = connections_init(&s->connections, &limits, e);
    if (rc)
        return rc;
    rc = start_daemon(s, e);
    if (rc)
        connections_free(&s->connections);
    return rc;
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
    if (!s->daemon)
        return;
    MHD_stop_daemon(s->daemon);
    connections_free(&s->connections);
    s->daemon = NULL;
}
