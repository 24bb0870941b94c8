#include "hub/remote.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "hub/libcurl.h"

/* A connection that brings nothing for so long counts as cut. */
enum { CONNECT_SECONDS = 30, SILENT_SECONDS = 60, MAX_HOPS = 10, MOST_IGNORED = 65536 };

struct remote {
    struct remote_host host;
    CURL *easy;
    char message[CURL_ERROR_SIZE];
    bool wants_body; /* the current hop's status is 200 or 206 */
    const struct remote_call *call;
    struct remote_reply *reply;
    struct str location; /* the current hop's redirect */
    bool refused;        /* `take` asked to end, or an error's page is too long */
    uint64_t ignored;    /* bytes of the hop's error page */
};

struct remote *remote_new(const struct remote_host *host, struct moeflux_err *e)
{
    struct remote *r = mem_new(1, sizeof *r, e);
    if (!r)
        return NULL;
    r->host = *host;
    r->easy = host->lib->easy_init();
    if (r->easy)
        return r;
    err_set(e, ERR_MEMORY, "out of memory for a connection");
    free(r);
    return NULL;
}

void remote_free(struct remote *r)
{
    if (!r)
        return;
    r->host.lib->easy_cleanup(r->easy);
    str_free(&r->location);
    free(r);
}

void remote_reply_free(struct remote_reply *reply)
{
    str_free(&reply->url);
}

void remote_add_escaped(struct str *url, const char *name, bool keep_slashes)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *name; name++) {
        if (strchr(plain, *name) || (keep_slashes && *name == '/'))
            str_add(url, name, 1);
        else
            str_addf(url, "%%%02X", (unsigned char)*name);
    }
}

void remote_add_shown(struct str *out, const char *url)
{
    const char *scheme = strstr(url, "://"), *host = scheme ? scheme + 3 : url, *at = strrchr(host, '@');
    str_add(out, url, (size_t)(host - url));
    str_add_text(out, at ? at + 1 : host);
}

/* --- headers --- */

static bool header_is(const char *line, size_t n, const char *name, char *value, size_t cap)
{
    size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':')
        return false;
    const char *at = line + len + 1, *end = line + n;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && strchr(" \t\r\n", end[-1]))
        end--;
    snprintf(value, cap, "%.*s", (int)size_min((uint64_t)(end - at), INT_MAX), at);
    return true;
}

static void read_range(struct remote_reply *reply, const char *value)
{
    uint64_t to;
    int n = 0;
    reply->has_range =
        sscanf(value, "bytes %" SCNu64 "-%" SCNu64 "/%n", &reply->range_from, &to, &n) == 2 && n;
    reply->range_total = reply->has_range ? strtoull(value + n, NULL, 10) : 0;
}

/* Returns the seconds that a Retry-After asks to wait, a number or a date. */
static int64_t read_delay(const struct libcurl *lib, const char *value)
{
    char *end;
    long long seconds = strtoll(value, &end, 10);
    if (end != value && !*end)
        return seconds < 0 ? 0 : seconds;
    time_t then = lib->getdate(value, NULL), now = time(NULL);
    return then == (time_t)-1 ? -1 : then < now ? 0 : (int64_t)(then - now);
}

/* Returns the seconds until a limit of requests ends: RateLimit: "api";r=0;t=120. */
static int64_t read_limit(const char *value)
{
    const char *at = strstr(value, ";t=");
    return at ? strtoll(at + 3, NULL, 10) : -1;
}

/* An entity tag without its quotation marks and "W/". */
static void read_tag(char *out, size_t cap, const char *value)
{
    value += strncmp(value, "W/", 2) == 0 ? 2 : 0;
    value += *value == '"';
    snprintf(out, cap, "%.*s", (int)strcspn(value, "\""), value);
}

/* Reads a header of any hop. */
static void read_header(struct remote *r, const char *line, size_t n)
{
    struct remote_reply *reply = r->reply;
    char value[4096];
    if (header_is(line, n, "location", value, sizeof value)) {
        str_clear(&r->location);
        str_add_text(&r->location, value);
    } else if (header_is(line, n, "content-length", value, sizeof value)) {
        reply->length = strtoll(value, NULL, 10);
    } else if (header_is(line, n, "content-range", value, sizeof value)) {
        read_range(reply, value);
    } else if (header_is(line, n, "retry-after", value, sizeof value)) {
        reply->retry_after = read_delay(r->host.lib, value);
    } else if (reply->status == 429 && header_is(line, n, "ratelimit", value, sizeof value)) {
        reply->retry_after = reply->retry_after < 0 ? read_limit(value) : reply->retry_after;
    } else if (header_is(line, n, "etag", value, sizeof value)) {
        /* A weak tag does not say that the bytes are the same; a part of one says nothing. */
        size_t length = strlen(value);
        bool is_whole = value[0] == '"' && length < sizeof reply->etag;
        memcpy(reply->etag, is_whole ? value : "", is_whole ? length + 1 : 1);
    } else if (header_is(line, n, "x-error-code", value, sizeof value)) {
        snprintf(reply->error_code, sizeof reply->error_code, "%.60s", value);
    } else if (header_is(line, n, "x-error-message", value, sizeof value)) {
        snprintf(reply->error_text, sizeof reply->error_text, "%.190s", value);
    }
}

/* Reads a header that only the endpoint may send. */
static void read_own_header(struct remote *r, const char *line, size_t n)
{
    struct remote_reply *reply = r->reply;
    char value[256];
    if (header_is(line, n, "x-linked-etag", value, sizeof value))
        read_tag(reply->linked_etag, sizeof reply->linked_etag, value);
    else if (header_is(line, n, "x-linked-size", value, sizeof value))
        reply->linked_size = strtoll(value, NULL, 10);
    else if (header_is(line, n, "x-repo-commit", value, sizeof value))
        snprintf(reply->commit, sizeof reply->commit, "%.60s", value);
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx)
{
    struct remote *r = ctx;
    n *= size;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* also after an interim reply, or a proxy's */
        const char *space = memchr(line, ' ', n);
        r->reply->status = space ? atoi(space + 1) : 0;
        r->reply->length = REMOTE_NO_LENGTH;
        r->reply->has_range = false;
        r->reply->etag[0] = '\0';
        r->wants_body = r->reply->status == 200 || r->reply->status == 206;
    }
    read_header(r, line, n);
    if (!r->reply->moved)
        read_own_header(r, line, n);
    return n;
}

/* --- a hop --- */

static size_t on_body(char *bytes, size_t size, size_t n, void *ctx)
{
    struct remote *r = ctx;
    n *= size;
    /* What a page of an error says is not read, and a long one is cut off. */
    r->ignored += r->wants_body ? 0 : n;
    if (r->wants_body ? r->call->take(r->call->ctx, r->reply, bytes, n) : r->ignored <= MOST_IGNORED)
        return n;
    r->refused = true;
    return 0;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct remote *r = ctx;
    (void)a, (void)b, (void)c, (void)d;
    return stop_is_set(&r->host.stop);
}

/* Writes scheme, host and port of a URL. Returns false if it is no URL of HTTP. */
static bool find_origin(const struct libcurl *lib, const char *url, char *out, size_t cap)
{
    char *scheme = NULL, *host = NULL, *port = NULL;
    CURLU *u = lib->url();
    bool ok = u && lib->url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              lib->url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              lib->url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              lib->url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
              (strcasecmp(scheme, "http") == 0 || strcasecmp(scheme, "https") == 0);
    if (ok)
        snprintf(out, cap, "%s://%s:%s", scheme, host, port);
    lib->free(scheme);
    lib->free(host);
    lib->free(port);
    lib->url_cleanup(u);
    return ok;
}

/* Whether two URLs have the same scheme, host and port. */
static bool is_same_origin(const struct libcurl *lib, const char *a, const char *b)
{
    char first[REMOTE_ORIGIN], second[REMOTE_ORIGIN];
    return find_origin(lib, a, first, sizeof first) && find_origin(lib, b, second, sizeof second) &&
           strcasecmp(first, second) == 0;
}

/* Returns the headers of a hop; *ok: false without memory. */
static struct curl_slist *make_headers(struct remote *r, bool *ok)
{
    const struct libcurl *lib = r->host.lib;
    struct curl_slist *list = NULL, *more;
    struct str line = {0};
    *ok = true;
    if (r->host.token && is_same_origin(lib, r->host.endpoint, str_text(&r->reply->url))) {
        str_addf(&line, "Authorization: Bearer %s", r->host.token);
        *ok = str_ok(&line) && (list = lib->slist_append(NULL, str_text(&line)));
        str_clear(&line);
    }
    if (*ok && r->call->if_range) {
        str_addf(&line, "If-Range: %s", r->call->if_range);
        *ok = str_ok(&line) && (more = lib->slist_append(list, str_text(&line)));
        list = *ok ? more : list;
    }
    str_free(&line);
    return list;
}

static CURLcode perform(struct remote *r, struct curl_slist *headers)
{
    const struct libcurl *lib = r->host.lib;
    CURL *c = r->easy;
    char range[64];
    lib->easy_reset(c); /* connections stay */
    lib->easy_setopt(c, CURLOPT_URL, str_text(&r->reply->url));
    lib->easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    lib->easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    lib->easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    lib->easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    lib->easy_setopt(c, CURLOPT_USERAGENT, r->host.agent);
    lib->easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    lib->easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    lib->easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    lib->easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENT_SECONDS);
    lib->easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    lib->easy_setopt(c, CURLOPT_ERRORBUFFER, r->message);
    lib->easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    lib->easy_setopt(c, CURLOPT_HEADERDATA, r);
    lib->easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    lib->easy_setopt(c, CURLOPT_WRITEDATA, r);
    lib->easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    lib->easy_setopt(c, CURLOPT_XFERINFODATA, r);
    lib->easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    if (r->call->to) {
        snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, r->call->from, r->call->to - 1);
        lib->easy_setopt(c, CURLOPT_RANGE, range);
    }
    if (r->host.ca_file)
        lib->easy_setopt(c, CURLOPT_CAINFO, r->host.ca_file);
    r->message[0] = '\0';
    return lib->easy_perform(c);
}

static bool is_hopeless(CURLcode code)
{
    switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return true;
    default:
        return false;
    }
}

/* Makes the request of one hop. */
static int make_hop(struct remote *r, struct moeflux_err *e)
{
    struct remote_reply *reply = r->reply;
    bool ok;
    struct curl_slist *headers = make_headers(r, &ok);
    str_clear(&r->location);
    r->refused = false;
    r->ignored = 0;
    reply->status = 0;
    CURLcode code = ok ? perform(r, headers) : CURLE_OUT_OF_MEMORY;
    r->host.lib->slist_free_all(headers);
    if (code == CURLE_OUT_OF_MEMORY)
        return err_set(e, ERR_MEMORY, "out of memory for a request");
    reply->cut = code != CURLE_OK && !r->refused;
    reply->hopeless = reply->cut && is_hopeless(code);
    /* The message about a proxy's address may have its password. */
    bool has_message = r->message[0] && !strchr(r->message, '@');
    if (reply->cut)
        snprintf(reply->fault, sizeof reply->fault, "%s",
                 has_message ? r->message : r->host.lib->easy_strerror(code));
    return 0;
}

/* --- redirects --- */

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static void refuse(struct remote_reply *reply, const char *why)
{
    reply->cut = reply->hopeless = true;
    snprintf(reply->fault, sizeof reply->fault, "%s", why);
}

/* Sets the URL of the next hop. */
static void follow(struct remote *r)
{
    const struct libcurl *lib = r->host.lib;
    struct remote_reply *reply = r->reply;
    char *next = NULL;
    CURLU *u = lib->url();
    bool was_safe = strncasecmp(str_text(&reply->url), "https:", 6) == 0;
    if (!u || lib->url_set(u, CURLUPART_URL, str_text(&reply->url), 0) != CURLUE_OK || !r->location.len ||
        lib->url_set(u, CURLUPART_URL, str_text(&r->location), 0) != CURLUE_OK ||
        lib->url_get(u, CURLUPART_URL, &next, 0) != CURLUE_OK ||
        !find_origin(lib, next, reply->origin, sizeof reply->origin))
        refuse(reply, "the server redirects to no URL of HTTP");
    else if (was_safe && strncasecmp(next, "https:", 6) != 0)
        refuse(reply, "the server redirects from https to http");
    if (!reply->cut) {
        reply->moved |= !is_same_origin(lib, next, r->host.endpoint);
        str_clear(&reply->url);
        str_add_text(&reply->url, next);
    }
    lib->free(next);
    lib->url_cleanup(u);
}

int remote_get(struct remote *r, const struct remote_call *call, struct remote_reply *reply,
               struct moeflux_err *e)
{
    int rc = 0;
    *reply = (struct remote_reply){.retry_after = -1, .linked_size = -1};
    r->call = call;
    r->reply = reply;
    str_add_text(&reply->url, call->url);
    reply->moved = !is_same_origin(r->host.lib, call->url, r->host.endpoint);
    find_origin(r->host.lib, call->url, reply->origin, sizeof reply->origin);
    for (int hop = 0; rc == 0 && !reply->cut; hop++) {
        rc = make_hop(r, e);
        if (rc || reply->cut || !is_redirect(reply->status))
            break;
        if (hop == MAX_HOPS)
            refuse(reply, "the server redirects too often");
        else
            follow(r);
    }
    if (rc == 0 && (!str_ok(&reply->url) || !str_ok(&r->location)))
        rc = err_set(e, ERR_MEMORY, "out of memory for a URL");
    return rc;
}
