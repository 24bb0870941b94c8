/* server.h - a model for clients of OpenAI's API, over HTTP.
 *
 *   server_new -> open a model with server_progress -> server_start -> ... -> server_stop -> server_free ->
 *   close the model
 *
 * Connections have a thread each (libmicrohttpd's), which reads requests, waits and writes. Answers are
 * computed by as many threads as may run side by side (workers.h). Requests name no files. There is no TLS:
 * that is a proxy's. */
#ifndef MOEFLUX_SERVER_SERVER_H
#define MOEFLUX_SERVER_SERVER_H

#include <stdint.h>

#include "generate/request.h"
#include "moeflux.h"

struct generator;
struct server;

struct server_options {   /* texts are borrowed */
    const char *host;     /* a name or a number */
    uint16_t port;        /* 0: any that is free */
    const char *key_file; /* NULL: clients need no key */
    /* the origin whose pages may use the server, "*": all; NULL: those of the server alone */
    const char *cors;
    const char *name;               /* of the model, as clients see it */
    uint32_t context;               /* tokens of each sequence; 0: the default (generator_prepare) */
    uint32_t parallel;              /* answers that take turns; >= 1 */
    uint32_t sequences;             /* kept in memory, running ones included; >= parallel */
    uint64_t state_bytes;           /* of those that do not run; 0: no limit */
    const char *state_dir;          /* where those that leave memory are saved; NULL: nowhere */
    uint64_t state_dir_bytes;       /* of its files; 0: no limit */
    uint32_t state_dir_files;       /* their number; 0: no limit */
    uint32_t most_waiting;          /* requests */
    uint32_t grace_s;               /* for running answers at the end */
    struct request_options request; /* what a request says nothing about */
    /* Gets a line that the user should know and that stops nothing; any thread. */
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

/* Reads the keys and takes the port. ERR_IO, ERR_USAGE, ERR_MEMORY. */
int server_new(struct server **out, const struct server_options *o, struct moeflux_err *e);

/* The progress to open the model with: `loading` until server_start, then whether somebody waits for what is
 * computed. */
struct moeflux_progress server_progress(struct server *s, struct moeflux_progress loading);

/* Accepts requests from now on. The generator was opened (generator_open); the server prepares it. It must
 * not be used or closed before server_free. */
int server_start(struct server *s, struct generator *g, struct moeflux_err *e);

/* "http://127.0.0.1:8080", with the port that was taken. */
const char *server_url(const struct server *s);

/* Accepts no more, waits for up to grace_s for the answers that run, cuts what is left then, and saves the
 * sequences if there is a directory. */
void server_stop(struct server *s);

/* NULL and a server that was never started are legal. */
void server_free(struct server *s);

#endif
