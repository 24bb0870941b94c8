/* answers.h - the endpoints whose replies the model computes. */
#ifndef MOEFLUX_SERVER_ANSWERS_H
#define MOEFLUX_SERVER_ANSWERS_H

struct http_request;

/* Functions of struct endpoint. */
int answers_chat(struct http_request *req);
int answers_completion(struct http_request *req);

#endif
