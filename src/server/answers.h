/* answers.h - the endpoints whose replies the model computes. */
#ifndef MOEFLUX_SERVER_ANSWERS_H
#define MOEFLUX_SERVER_ANSWERS_H

struct exchange;

/* Functions of struct endpoint. */
int answers_chat(struct exchange *x);
int answers_completion(struct exchange *x);

#endif
