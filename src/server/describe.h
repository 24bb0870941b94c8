/* describe.h - endpoints that describe the model and the server. */
#ifndef MOEFLUX_SERVER_DESCRIBE_H
#define MOEFLUX_SERVER_DESCRIBE_H

struct http_request;

/* Reply with the list of models, one of them by name, and the server's properties. Return as the function of
 * struct endpoint. */
int describe_models(struct http_request *req);
int describe_model(struct http_request *req);
int describe_props(struct http_request *req);

#endif
