/* retry.h - when a request is made again. */
#ifndef MOEFLUX_HUB_RETRY_H
#define MOEFLUX_HUB_RETRY_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct remote_reply;
struct stop;

struct retry {
    uint32_t most;     /* tries without progress, at least 1 */
    uint32_t n;        /* that failed so far */
    bool has_progress; /* the current try has brought bytes: it does not count */
    const struct stop *stop;
    void (*tell)(void *ctx, const char *text); /* gets a line if a wait takes seconds; NULL: none does */
    void *ctx;
};

/* Whether a reply is a failure that may pass: a cut connection, too many requests, a fault of the server. */
bool retry_may_help(const struct remote_reply *reply);

/* Notes that bytes came, so that the tries begin anew. */
void retry_note_progress(struct retry *r);

/* Ends a try, and waits before the next one: the time that the server asks for, else twice as long as before,
 * and not at all if a connection was cut after progress, or for the first time. what: begins the messages.
 * ERR_IO: no tries are left; ERR_INTERRUPTED. */
int retry_wait(struct retry *r, const struct remote_reply *reply, const char *what, struct moeflux_err *e);

/* Writes what was wrong with a reply: "status 503", "Connection reset by peer". */
void retry_explain(const struct remote_reply *reply, char *out, uint32_t cap);

#endif
