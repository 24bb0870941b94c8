/* http.h - requests and replies: libmicrohttpd's side. */
#ifndef MOEFLUX_SERVER_HTTP_H
#define MOEFLUX_SERVER_HTTP_H

struct moeflux_err;
struct server;

/* Serves on the server's listener, which is the daemon's from then on. ERR_IO. */
int http_start(struct server *s, struct moeflux_err *e);
/* No more connections are accepted. */
void http_close_door(struct server *s);
/* Closes those that are open. Nothing may wait for a job any more. */
void http_stop(struct server *s);

#endif
