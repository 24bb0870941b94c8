/* server.h - serves a model over HTTP to clients of OpenAI's and Anthropic's APIs.
 *
 *   server_new -> open a model with server_progress -> server_start -> ... -> server_stop -> server_free ->
 *   close the model
 *
 * Each connection has a thread (libmicrohttpd's), which reads requests, waits and writes. A fixed number of
 * worker threads compute the answers concurrently (workers.h). Requests cannot name files. There is no TLS:
 * use a proxy. */
#ifndef MOEFLUX_SERVER_SERVER_H
#define MOEFLUX_SERVER_SERVER_H

#include <stdint.h>

#include "moeflux_chat.h"

struct moeflux_chat;
struct server;

struct server_options {    /* strings are borrowed */
    const char *host;      /* name or address */
    uint16_t port;         /* 0: any free port */
    const char *key_file;  /* NULL: none */
    const char *keys;      /* keys with commas between them; NULL: none. Without both clients need no key */
    const char *cors;      /* origin whose pages may use the server; "*": all; NULL: only the server's page */
    const char *name;      /* the model's name for clients */
    uint32_t context;      /* tokens of each sequence; 0: the default (generator_prepare) */
    uint32_t parallel;     /* concurrent answers; >= 1 */
    uint32_t sequences;    /* most sequences in memory, also running ones; >= parallel */
    uint64_t state_bytes;  /* most bytes of idle sequences; 0: no limit */
    const char *state_dir; /* directory for evicted sequences; NULL: none */
    uint64_t state_dir_bytes;     /* most bytes of its files; 0: no limit */
    uint32_t state_dir_files;     /* most files; 0: no limit */
    uint32_t address_connections; /* most connections of one address; 0: only their total is limited */
    uint32_t most_waiting;        /* most requests that wait for any of their answers */
    uint32_t grace_s;             /* time that running answers get after server_stop */
    const struct moeflux_request *request; /* fields that a request does not have; used by server_start */
    /* Shows the user a line that is no failure; called on any thread. */
    void (*tell)(void *ctx, const char *text);
    /* Called once on a worker's thread when a device is lost: a thread of the caller is to call
     * server_await_loss. NULL: answers fail from then on. */
    void (*lost)(void *ctx);
    void *ctx;
};

/* Creates a server: reads the keys and binds the port. ERR_IO, ERR_USAGE, ERR_MEMORY. */
int server_new(struct server **out, const struct server_options *o, struct moeflux_err *e);

/* Returns the progress to open the model with. Until server_start it calls `loading`; then it stops an
 * evaluation if no client waits for its result. */
struct moeflux_progress server_progress(struct server *s, struct moeflux_progress loading);

/* Begins to accept requests. Do not use or close the chat before server_free. ERR_USAGE: its model has no
 * tokenizer. */
int server_start(struct server *s, struct moeflux_chat *chat, struct moeflux_err *e);

/* Returns 0 if no device is lost. Otherwise waits until all running answers have ended, and returns ERR_LOST
 * with the failure of the first one: no worker uses the models then, and requests wait until
 * server_resume or server_stop. server_progress calls `loading` again, and is to open the models.
 * ERR_INTERRUPTED: `loading` asked for the end while answers ran. */
int server_await_loss(struct server *s, struct moeflux_err *e);
/* Computes answers again, with the chat's new models. Errors: those of server_start. */
int server_resume(struct server *s, struct moeflux_err *e);

/* Returns "http://127.0.0.1:8080", with the actual port. */
const char *server_url(const struct server *s);

/* Stops accepting requests, waits up to grace_s for running answers, interrupts the rest, saves the sequences
 * if there is a directory, and closes the connections. */
void server_stop(struct server *s);

/* Stops and frees the server. NULL and a server that was never started are legal. */
void server_free(struct server *s);

#endif
