/* listener.h - the socket that clients connect to. */
#ifndef MOEFLUX_SERVER_LISTENER_H
#define MOEFLUX_SERVER_LISTENER_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Binds host and port and listens. Returns the descriptor. url [cap]: "http://HOST:PORT" with the actual
 * port. ERR_USAGE: no such host. ERR_IO: the port is in use, ... */
int listener_open(const char *host, uint16_t port, char *url, size_t cap, struct moeflux_err *e);

#endif
