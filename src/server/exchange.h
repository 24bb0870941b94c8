/* exchange.h - a request and its reply. One thread, its connection's, does all that is done for it. */
#ifndef MOEFLUX_SERVER_EXCHANGE_H
#define MOEFLUX_SERVER_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "api/call.h"
#include "api/refusal.h"

struct MHD_Connection;
struct completion;
struct exchange;
struct job;
struct json_t;
struct server;

struct endpoint {
    const char *method, *path;
    bool open; /* without a key */
    /* The body is read. 0: replied; -1: the connection is to be closed. */
    int (*answer)(struct exchange *x);
};

struct exchange {
    struct server *server;
    struct MHD_Connection *connection;
    const struct endpoint *endpoint; /* NULL: refused */
    const char *url;                 /* borrowed */
    const char *allowed;             /* of a method that is not: which one is; NULL */
    bool is_page;                    /* the reply is run by a browser */
    bool preflight;                  /* a browser asks whether it may ask */
    const char *cors;                /* the origin that may read the reply; NULL: none */
    uint64_t begin_ns;
    struct str body;
    struct refusal no; /* status 0: none */

    /* Of completions. */
    struct call call;
    struct job **jobs; /* one for each of its asks; NULL: none */
    struct completion *completion;
    uint32_t at; /* the job whose events are sent */
    struct str out;
    size_t out_pos; /* bytes of `out` that were sent */
    uint64_t sent_ns;
    bool ended;
};

/* Whether the client has gone away, as far as one can tell. */
bool exchange_is_gone(const struct exchange *x);
/* While an answer is awaited nothing moves on the connection: its timeout is off. */
void exchange_set_waiting(const struct exchange *x, bool waiting);

/* Replies. 0, or -1: the connection is to be closed. */
int exchange_reply(struct exchange *x, unsigned status, const char *type, const char *bytes, size_t n);
/* Takes `value` over; NULL stands for lack of memory. */
int exchange_reply_json(struct exchange *x, struct json_t *value);
/* x->no. */
int exchange_refuse(struct exchange *x);
/* What `read` gives until it returns a negative number: -1 the end, -2 a failure. */
int exchange_reply_stream(struct exchange *x, const char *type,
                          long (*read)(void *exchange, uint64_t pos, char *buf, size_t most));

#endif
