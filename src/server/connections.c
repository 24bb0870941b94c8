#include "server/connections.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

enum { ADDRESS_BYTES = 16, PREFIX_BYTES = 8 };

struct connection {
    struct connection *next;
    int fd;
    uint8_t address[ADDRESS_BYTES];
    enum connection_phase phase;
    uint64_t since_ns; /* begin of the phase */
    bool is_closing;   /* shut down; does not count any more */
};

/* An IPv4 address is written as IPv6 does. Of other IPv6 addresses the network counts: a host has 2^64. */
static void read_address(uint8_t out[ADDRESS_BYTES], const struct sockaddr *address)
{
    struct in6_addr own = IN6ADDR_ANY_INIT;
    if (address->sa_family == AF_INET) {
        own.s6_addr[10] = own.s6_addr[11] = 0xff;
        memcpy(own.s6_addr + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        own = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (!IN6_IS_ADDR_V4MAPPED(&own))
            memset(own.s6_addr + PREFIX_BYTES, 0, ADDRESS_BYTES - PREFIX_BYTES);
    }
    memcpy(out, own.s6_addr, ADDRESS_BYTES);
}

static void shut(struct connection *x)
{
    shutdown(x->fd, SHUT_RDWR);
    x->is_closing = true;
}

static bool has_arrived(const struct connection *x)
{
    return x->phase == CONNECTION_ANSWERED;
}

/* ---- time ---- */

/* Closes connections whose time is over. Returns when the next one's is; 0: none waits. */
static uint64_t expire(struct connections *c)
{
    uint64_t now = clock_ns(), next = 0;
    for (struct connection *x = c->first; x; x = x->next) {
        uint64_t end = x->since_ns + c->limits.arrival_ns;
        if (x->is_closing || has_arrived(x))
            continue;
        if (end <= now)
            shut(x);
        else if (!next || end < next)
            next = end;
    }
    return next;
}

static void *watch(void *ctx)
{
    struct connections *c = ctx;
    pthread_mutex_lock(&c->lock);
    while (!c->ended) {
        uint64_t at = expire(c);
        struct timespec until = clock_timespec(at);
        if (at)
            pthread_cond_timedwait(&c->changed, &c->lock, &until);
        else
            pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int connections_init(struct connections *c, const struct connections_limits *limits, struct moeflux_err *e)
{
    *c = (struct connections){.limits = *limits};
    if (pthread_mutex_init(&c->lock, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    if (clock_init_cond(&c->changed) != 0) {
        pthread_mutex_destroy(&c->lock);
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    }
    if (pthread_create(&c->watch, NULL, watch, c) == 0)
        return 0;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    return err_set(e, ERR_MEMORY, "no thread could be started for the connections");
}

void connections_free(struct connections *c)
{
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->watch, NULL);
    while (c->first)
        connections_remove(c, c->first);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
}

/* ---- number ---- */

/* Makes `fresh` one of at most `most` open connections: all, or those of its address. */
static void make_room(struct connections *c, struct connection *fresh, uint32_t most, bool of_address)
{
    struct connection *oldest = fresh;
    uint32_t n = 0;
    for (struct connection *x = c->first; x; x = x->next) {
        if (x->is_closing || (of_address && memcmp(x->address, fresh->address, ADDRESS_BYTES) != 0))
            continue;
        n++;
        if (!has_arrived(x) && x->since_ns < oldest->since_ns)
            oldest = x;
    }
    if (n > most)
        shut(oldest);
}

struct connection *connections_add(struct connections *c, int fd, const struct sockaddr *address)
{
    struct connection *x = mem_new(1, sizeof *x, NULL);
    if (!x) {
        shutdown(fd, SHUT_RDWR);
        return NULL;
    }
    *x = (struct connection){.fd = fd, .since_ns = clock_ns()};
    read_address(x->address, address);
    pthread_mutex_lock(&c->lock);
    x->next = c->first;
    c->first = x;
    if (c->limits.most_of_address)
        make_room(c, x, c->limits.most_of_address, true);
    if (!x->is_closing)
        make_room(c, x, c->limits.most, false);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return x;
}

void connections_set_phase(struct connections *c, struct connection *x, enum connection_phase phase)
{
    if (!x)
        return;
    pthread_mutex_lock(&c->lock);
    x->phase = phase;
    x->since_ns = clock_ns();
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void connections_remove(struct connections *c, struct connection *x)
{
    if (!x)
        return;
    pthread_mutex_lock(&c->lock);
    struct connection **at = &c->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    pthread_mutex_unlock(&c->lock);
    free(x);
}
