/* reading.h - limits of what requests cost before the model computes anything: the bytes of bodies in
 * memory, and how many large bodies are parsed, rendered and tokenised at the same time.
 *
 *   reading_take for each part of the body -> reading_begin -> parse -> reading_end -> reading_give
 *
 * Locked: any thread may call. */
#ifndef MOEFLUX_SERVER_READING_H
#define MOEFLUX_SERVER_READING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct http_request;
struct moeflux_err;

struct reading {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    pthread_key_t request; /* the request that the calling thread reads */
    uint64_t body_bytes;
    uint32_t n_busy;
    bool closed;
};

/* ERR_MEMORY; nothing is to be freed then. */
int reading_init(struct reading *r, struct moeflux_err *e);
void reading_free(struct reading *r);

/* Reserves memory for n more bytes of the request's body. False: too many bytes wait already. */
bool reading_take(struct http_request *req, uint64_t n);
/* Frees the body with its reservation. */
void reading_give(struct http_request *req);

/* Waits until the body may be parsed. A small one never waits. Returns 0, or -1 with the refusal filled: the
 * client has disconnected, or the server ends. */
int reading_begin(struct http_request *req);
/* Ends what reading_begin began. */
void reading_end(struct http_request *req);

/* Returns whether the calling thread should continue: false if it reads for a client that has
 * disconnected, or the server ends. A function for moeflux_progress; ctx: the struct reading. */
bool reading_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);

/* Refuses bodies from now on, and those that are being read. */
void reading_close(struct reading *r);

#endif
