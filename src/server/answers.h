/* answers.h - the endpoints whose replies a model computes. */
#ifndef MOEFLUX_SERVER_ANSWERS_H
#define MOEFLUX_SERVER_ANSWERS_H

struct exchange;

int answers_chat(struct exchange *x);
int answers_completion(struct exchange *x);

#endif
