/* state.h - what the parts of the server have in common. */
#ifndef MOEFLUX_SERVER_STATE_H
#define MOEFLUX_SERVER_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/call.h"
#include "server/jobs.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/server.h"

struct MHD_Daemon;
struct sequences;
struct workers;

enum {
    SERVER_MAX_BODY = 16 << 20, /* bytes */
    SERVER_MAX_CONNECTIONS = 256,
    SERVER_HEADER_BYTES = 32 << 10, /* of a request's line and headers */
    SERVER_TIMEOUT_S = 60,          /* of a connection on which nothing moves, and of reading a body */
    SERVER_ALIVE_S = 5,             /* between two signs of life in a stream */
};

struct server {
    struct server_options options;
    struct keys keys;
    struct jobs jobs;
    struct metrics metrics;
    struct workers *workers;
    struct sequences *sequences[MOEFLUX_MAX_DEVICES]; /* of each copy of the model */
    struct generator *generator;
    struct call_defaults defaults;
    struct moeflux_progress loading;
    int64_t created; /* seconds of the epoch */
    int listener;    /* -1: the daemon's, or none */
    struct MHD_Daemon *daemon;
    char url[128];
    bool has_jobs, has_metrics;
    atomic_bool started;
    atomic_uint n_open; /* requests that are being answered */
};

#endif
