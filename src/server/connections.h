/* connections.h - open connections: how many there may be, and how long a request may take to arrive.
 *
 *   connections_add -> [connections_set_phase]... -> connections_remove
 *
 * A connection whose request has not arrived whole may be closed: after a time, whether or not bytes come,
 * or when another connection needs its place. So clients that send nothing, or a byte now and then, keep
 * nobody out.
 *
 * Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_CONNECTIONS_H
#define MOEFLUX_SERVER_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct connection;
struct moeflux_err;
struct sockaddr;

struct connections_limits {
    uint32_t most;            /* connections; >= 1 */
    uint32_t most_of_address; /* connections of one address; 0: `most` */
    uint64_t arrival_ns;      /* time for a request's headers, and again for its body */
};

struct connections {
    struct connections_limits limits;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t watch;          /* closes connections whose time is over */
    struct connection *first; /* list */
    bool ended;
};

enum connection_phase {
    CONNECTION_HEADERS,  /* no request, or its headers are arriving */
    CONNECTION_BODY,     /* its body is arriving */
    CONNECTION_ANSWERED, /* it has arrived */
};

/* Starts the thread. ERR_MEMORY; nothing is to be freed then. */
int connections_init(struct connections *c, const struct connections_limits *limits, struct moeflux_err *e);
/* Ends the thread. All connections were removed. */
void connections_free(struct connections *c);

/* Adds a connection in the phase of headers. fd: its socket, which stays open until connections_remove. If
 * there are too many, closes (shutdown) the one that has waited longest for a request; the new one, if
 * none waits. NULL: no memory, and the new one is closed. */
struct connection *connections_add(struct connections *c, int fd, const struct sockaddr *address);
/* Begins a phase. x: NULL: does nothing. */
void connections_set_phase(struct connections *c, struct connection *x, enum connection_phase phase);
/* Forgets and frees a connection; NULL is legal. */
void connections_remove(struct connections *c, struct connection *x);

#endif
