/* dialect.h - the forms of the API that clients speak: OpenAI's chats, completions and responses, and
 * Anthropic's messages. A dialect is a row of functions; whoever answers a request knows only the row.
 *
 *   dialect_read -> reply_new -> begin -> piece ... end of each choice -> last     as events
 *                             -> piece ... -> whole                                one JSON object
 *
 * dialect_read turns every body into a chat completion or a completion of a text, which api_request.c reads.
 * So the sampling options, tools and formats have one reader. */
#ifndef MOEFLUX_API_DIALECT_H
#define MOEFLUX_API_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_piece;
struct api_request;
struct api_request_defaults;
struct chat_body;
struct generator;
struct json_t;
struct moeflux_err;
struct refusal;
struct reply;
struct tokenizer;

/* Another name of a field of chat completions. A name with a dot, of a member, is used in errors only: the
 * dialect's `read` makes the field. */
struct dialect_name {
    const char *own, *chat;
};

struct dialect {
    const char *path; /* the endpoint's: "/v1/chat/completions" */
    bool chat;        /* false: the completion of a text */

    /* Adds the messages, tools and other fields of a body. NULL: the body is a chat completion or a
     * completion already. Failures fill to->refusal. */
    void (*read)(const struct json_t *body, const struct api_request_defaults *defaults,
                 struct chat_body *to);
    const struct dialect_name *names; /* fields with other names, ended by NULL; NULL: none */

    /* Makes r->state. ERR_MEMORY. */
    int (*open)(struct reply *r, struct moeflux_err *e);
    void (*close)(struct reply *r);
    /* Takes a piece of choice idx: keeps it and, with r->out, appends its events. */
    void (*piece)(struct reply *r, uint32_t idx, const struct moeflux_piece *p);
    /* Returns the whole reply; the caller owns it. NULL: no memory. */
    struct json_t *(*whole)(struct reply *r);

    /* Append events to r->out. begin: before the prompt is computed; NULL: none. end: once choice idx is done
     * or has failed. last: once all are; NULL: none. alive: nothing has been sent for a while. */
    void (*begin)(struct reply *r);
    void (*end)(struct reply *r, uint32_t idx);
    void (*last)(struct reply *r);
    void (*alive)(struct reply *r);

    /* Returns a refusal as JSON; the caller owns it. NULL: no memory. */
    struct json_t *(*error)(const struct refusal *refusal);
    /* Returns the reply to a request for the number of its tokens; likewise. NULL: there is none. */
    struct json_t *(*count)(size_t n_tokens);
};

extern const struct dialect dialect_chat, dialect_completions, dialect_responses, dialect_messages;

/* Reads a body and makes its choices. c: freed by the caller with api_request_free, after a failure too.
 * Returns 0, or -1 with the refusal filled, which names the body's own fields. */
int dialect_read(const struct dialect *d, struct api_request *c, const char *body, size_t len,
                 const struct generator *g, const struct api_request_defaults *defaults,
                 struct refusal *refusal);

/* ---- a reply ---- */

struct reply {
    const struct dialect *dialect;
    const struct api_request *request;
    const char *model; /* name */
    const struct tokenizer *tokenizer;
    uint64_t drawn;  /* random number of its identifiers */
    int64_t created; /* seconds since the epoch */
    struct str *out; /* where events go; NULL: the reply is whole */
    void *state;     /* the dialect's */
};

/* Creates the reply to a request. All pointers are borrowed. out: where events are appended; NULL: the reply
 * is whole. NULL with `e` filled. */
struct reply *reply_new(const struct dialect *d, const struct api_request *request, const char *model,
                        const struct generator *g, struct str *out, struct moeflux_err *e);
/* Discards the pieces, because the answers are computed again. ERR_MEMORY. */
int reply_reset(struct reply *r, struct moeflux_err *e);
/* Frees the reply; NULL is legal. */
void reply_free(struct reply *r);

/* Appends an event to r->out. name: of the event, for dialects whose events have one; NULL: none. Takes
 * ownership of `value`; NULL stands for lack of memory, which r->out remembers. */
void reply_event(struct reply *r, const char *name, struct json_t *value);

#endif
