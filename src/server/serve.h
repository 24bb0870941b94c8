/* serve.h - the verb `serve`: chooses how many answers run at the same time, opens the model, and serves
 * until the user asks for the end. If a device is lost, the model is opened again; a loss less than
 * SERVE_LOSS_S seconds after that ends the server. */
#ifndef MOEFLUX_SERVER_SERVE_H
#define MOEFLUX_SERVER_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "moeflux_chat.h"
#include "server/server.h"

struct moeflux_chat;

static const uint32_t SERVE_CHOOSES = UINT32_MAX;
enum { SERVE_LOSS_S = 60 };

struct serve_options {
    /* parallel, sequences: the user's numbers; 0: chosen here, as address_connections is if SERVE_CHOOSES */
    struct server_options server;
    uint32_t n_devices;              /* >= 1 */
    bool replicate;                  /* each device has a copy of the whole model */
    bool opens_once;                 /* the loss of a device ends the server */
    struct moeflux_progress loading; /* shown while the model opens */
    /* Opens the model with `progress`, and keeps memory free for the contexts of n_sequences. *chat: NULL,
     * and set to a chat with the model, which stays the caller's; or the chat that gets the model when it is
     * opened again (moeflux_chat_use_models). */
    int (*open)(void *ctx, struct moeflux_chat **chat, uint32_t n_sequences, struct moeflux_progress progress,
                struct moeflux_err *e);
    /* Called once, when requests are accepted. */
    void (*listening)(void *ctx, const char *url);
    /* Returns when the server is to end, or when server_options.lost was called. */
    void (*wait)(void *ctx);
    /* Called at the end, and after a loss: closes the models, if there are any, and keeps the chat. rc: how
     * the run ended; 0 after a loss. Returns rc, or its own failure. */
    int (*closing)(void *ctx, int rc, struct moeflux_err *e);
    void *ctx;
};

/* Runs the server from start to end. ERR_USAGE: fewer parallel answers than copies; ERR_LOST: a device was
 * lost and not opened again; ERR_FORMAT: the model has changed when it is opened again; else what `open`,
 * `closing` and the server return. */
int serve_run(const struct serve_options *o, struct moeflux_err *e);

#endif
