/* http_request.h - one HTTP request and its reply. The thread of its connection does all the work for it. */
#ifndef MOEFLUX_SERVER_HTTP_REQUEST_H
#define MOEFLUX_SERVER_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "base/token_list.h"
#include "api/api_request.h"
#include "api/refusal.h"

struct MHD_Connection;
struct dialect;
struct http_request;
struct json_t;
struct reply;
struct server;
struct server_answer;

struct endpoint {
    const char *method, *path; /* path: without "/v1" in front; a slash at its end: all paths below it */
    bool open;                 /* needs no API key */
    /* Answers a request whose body was read. Returns 0, or -1: close the connection. */
    int (*answer)(struct http_request *req);
    const struct dialect *dialect; /* form of bodies and errors; NULL: OpenAI's errors */
};

struct http_request {
    struct server *server;
    struct MHD_Connection *connection;
    const struct endpoint *endpoint; /* NULL: refused */
    const char *url_end;             /* end of the path as it was sent; not dereferenced */
    const char *url;                 /* borrowed; NULL: the headers are arriving */
    const char *allowed;             /* the method that is allowed, if the one used is not; else NULL */
    const char *cors;                /* origin that may read the reply; NULL: none */
    struct str body;
    uint64_t taken_bytes; /* reserved for the body (reading.h) */

    /* Used by answers only. */
    struct api_request api;
    struct server_answer *answers; /* [api.n_choices]; NULL: none */
    struct reply *reply;
    uint64_t sent_ns;

    /* Used by replies that are written while they are sent. */
    struct str out;
    size_t out_pos; /* bytes of `out` that were sent */

    /* Used by /tokenize only. */
    struct token_list ids;
    size_t n_sent; /* ids that are written */

    struct refusal refusal; /* status 0: none */
    uint32_t at;            /* answers: index of the answer whose events are sent */
    bool has_nul;           /* the path contains a NUL */
    bool closes;            /* no other request may follow on this connection */
    bool is_page;           /* the reply is the chat page */
    bool preflight;         /* a browser's CORS preflight request */
    bool has_turn;          /* counts among the large bodies that are being read */
    bool begun;             /* a part of the reply was made */
    bool ended;             /* nothing follows `out` */
    bool with_pieces;       /* /tokenize: texts of the tokens, too */
};

/* Returns whether the client has disconnected, if the system knows. */
bool http_request_client_is_gone(const struct http_request *req);
/* Switches the connection's timeout off while an answer is computed and nothing is sent. */
void http_request_set_waiting(const struct http_request *req, bool waiting);

/* Sends a reply. This and the functions below return 0, or -1: close the connection. */
int http_request_reply(struct http_request *req, unsigned status, const char *type, const char *bytes,
                       size_t n);
/* Sends JSON with status 200. Takes ownership of `value`; NULL stands for lack of memory. */
int http_request_reply_json(struct http_request *req, struct json_t *value);
/* Sends the refusal. */
int http_request_refuse(struct http_request *req);
/* Copies the next bytes of `out`: the end of a function for http_request_reply_stream. */
long http_request_read_out(struct http_request *req, char *buf, size_t most);
/* Sends the bytes of `read`, which returns their number until it returns -1 (the end) or -2 (a failure). */
int http_request_reply_stream(struct http_request *req, const char *type,
                              long (*read)(void *http_request, uint64_t pos, char *buf, size_t most));

#endif
