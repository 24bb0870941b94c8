/* http.h - the HTTP daemon (libmicrohttpd): reads requests, checks access, calls endpoints. */
#ifndef MOEFLUX_SERVER_HTTP_H
#define MOEFLUX_SERVER_HTTP_H

struct moeflux_err;
struct server;

/* Starts serving on the server's listener, which the daemon then owns. ERR_IO. */
int http_start(struct server *s, struct moeflux_err *e);
/* Stops accepting connections. */
void http_stop_accepting(struct server *s);
/* Closes all connections. No request may wait for a job any more. */
void http_stop(struct server *s);

#endif
