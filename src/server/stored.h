/* stored.h - endpoints of responses that the server keeps (api/response_store.h). */
#ifndef MOEFLUX_SERVER_STORED_H
#define MOEFLUX_SERVER_STORED_H

struct http_request;

/* Reply with a response, or with its input items (ID/input_items); forget a response. Return as the function
 * of struct endpoint. */
int stored_get(struct http_request *req);
int stored_delete(struct http_request *req);

#endif
