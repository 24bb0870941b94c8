/* state.h - the data that the files of the server share. */
#ifndef MOEFLUX_SERVER_STATE_H
#define MOEFLUX_SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/reader.h"
#include "base/err.h"
#include "server/connections.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/reading.h"
#include "server/server.h"

struct MHD_Daemon;

/* The text of answers that the end of the server cuts off. */
#define SERVER_ENDS "the server is shutting down"

enum {
    SERVER_MAX_BODY = 16 << 20,     /* bytes */
    SERVER_CONNECTIONS = 256,       /* most of them, unless there are many answers at a time (http.c) */
    SERVER_HEADER_BYTES = 32 << 10, /* most bytes of a request's line and headers */
    SERVER_TIMEOUT_S = 60,          /* limit of an idle connection, of headers and of a body's arrival */
    SERVER_ALIVE_S = 5,             /* interval of keep-alive comments in a stream */
    SERVER_RESPONSES = 64 << 20,    /* most bytes of stored responses */
    SERVER_NOTES = 32,              /* different notes on left-out tools that are printed */
};

struct server {
    struct server_options options;
    struct keys keys;
    struct metrics metrics;
    struct reading reading;
    struct connections connections; /* while there is a daemon */
    struct moeflux_pool *pool;      /* while it serves */
    struct api_reader reader;       /* likewise */
    const struct moeflux_tokenizer *tokenizer;
    struct response_store *responses;
    struct moeflux_progress loading;
    int64_t created; /* seconds since the epoch */
    int listener;    /* descriptor; -1: owned by the daemon, or none */
    struct MHD_Daemon *daemon;
    char url[128];
    char expert_format[192], dense_format[128]; /* how the weights are stored (struct moeflux_needs) */
    bool has_metrics, has_reading;
    atomic_bool started;
    atomic_bool is_lost;       /* a device is lost; until server_resume */
    atomic_bool is_failing;    /* the last answer failed, and not because of its request (answers.c) */
    atomic_bool is_opening;    /* the model is being opened again */
    struct moeflux_err loss;   /* why; written before is_lost */
    atomic_uint n_open;        /* open requests */
    _Atomic(uint64_t) told_ns; /* last update of the metrics */
    pthread_mutex_t notes_lock;
    uint64_t notes[SERVER_NOTES]; /* hashes of the notes that were printed; 0: free */
};

#endif
