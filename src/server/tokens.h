/* tokens.h - the endpoints that convert between texts and token ids. */
#ifndef MOEFLUX_SERVER_TOKENS_H
#define MOEFLUX_SERVER_TOKENS_H

struct http_request;

/* Replies with the ids of the body's text, sent while they are written. Returns 0, or -1: close the
 * connection. */
int tokens_reply_ids(struct http_request *req);
/* Replies with the text of the body's ids. */
int tokens_reply_text(struct http_request *req);

#endif
