/* remote.h - one request to a server that speaks Hugging Face's interface, with its redirects.
 *
 * The token is sent to the endpoint's scheme, host and port alone. libcurl takes proxies from the
 * environment (HTTPS_PROXY, NO_PROXY, ...). */
#ifndef MOEFLUX_HUB_REMOTE_H
#define MOEFLUX_HUB_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "hub/stop.h"

struct libcurl;
struct moeflux_err;

/* Whom requests go to. */
struct remote_host {
    const struct libcurl *lib;
    const char *endpoint; /* "https://huggingface.co" */
    const char *token;    /* NULL: none */
    const char *agent;    /* User-Agent */
    const char *ca_file;  /* certificates of authorities; NULL: those of the system */
    struct stop stop;     /* ends a running request */
};

/* A thread's connections. */
struct remote;
struct remote *remote_new(const struct remote_host *host, struct moeflux_err *e);
void remote_free(struct remote *r);

enum { REMOTE_NO_LENGTH = -1, REMOTE_ORIGIN = 600 };

/* What came back. Those of the endpoint are kept when it redirects elsewhere. */
struct remote_reply {
    int status;                           /* that of the last hop; 0: no reply */
    int64_t length;                       /* bytes of the body; REMOTE_NO_LENGTH */
    bool has_range;                       /* Content-Range: bytes range_from-.../range_total */
    uint64_t range_from, range_total;     /* range_total 0: unknown */
    int64_t retry_after;                  /* seconds; -1: not given */
    char etag[160];                       /* that of the last hop; "": none, or a weak one */
    char linked_etag[160], commit[64];    /* the endpoint's; "": none */
    int64_t linked_size;                  /* bytes, by the endpoint; -1: none */
    char error_code[64], error_text[200]; /* X-Error-Code, X-Error-Message */
    bool moved;                           /* another host than the endpoint has replied */
    char origin[REMOTE_ORIGIN];           /* moved: its scheme, host and port */
    struct str url;                       /* that of the last hop */
    bool cut;                             /* the connection failed: `fault` says how */
    bool hopeless;                        /* another try will not help */
    char fault[300];
};
void remote_reply_free(struct remote_reply *reply);

struct remote_call {
    const char *url;
    uint64_t from, to;    /* bytes [from, to) are wanted; to 0: all */
    const char *if_range; /* an entity tag with its quotation marks; NULL: none */
    /* Takes a part of the body of a reply with status 200 or 206; returns whether to go on. */
    bool (*take)(void *ctx, const struct remote_reply *reply, const char *bytes, size_t n);
    void *ctx;
};

/* Makes a request and fills `reply`, which the caller frees. A reply of any status, and a connection that
 * fails or is stopped, is no failure of the call. ERR_MEMORY. */
int remote_get(struct remote *r, const struct remote_call *call, struct remote_reply *reply,
               struct moeflux_err *e);

/* Appends a URL without its user and password, for a message. */
void remote_add_shown(struct str *out, const char *url);

/* Appends a name of a repository, revision or file as a part of a path; keep_slashes: "/" stays. */
void remote_add_escaped(struct str *url, const char *name, bool keep_slashes);

#endif
