/* answers.h - endpoints that read a prompt, in the dialect of their row (http_request.h). */
#ifndef MOEFLUX_SERVER_ANSWERS_H
#define MOEFLUX_SERVER_ANSWERS_H

#include <stdint.h>

struct http_request;
struct server;

/* Compute an answer, or count the prompt's tokens, or return its text as the chat template writes it. Return
 * as the function of struct endpoint. */
int answers_reply(struct http_request *req);
int answers_count(struct http_request *req);
int answers_prompt(struct http_request *req);

/* Sets the metrics of the engine. For threads that may wait for an evaluation. */
void answers_count_engine(struct server *s);

/* Frees what a request has of answers; cancels those that are computed. */
void answers_free(struct http_request *req);
/* Counts the answers that wait and those that are computed. */
void answers_count_jobs(struct server *s, uint32_t *n_waiting, uint32_t *n_running);

#endif
