/* chat_api.h - the chat of moeflux.h, for other files that answer in it. */
#ifndef MOEFLUX_GENERATE_CHAT_API_H
#define MOEFLUX_GENERATE_CHAT_API_H

#include <pthread.h>
#include <stdbool.h>

#include "engine/text_api.h"
#include "generate/generator.h"
#include "generate/request.h"
#include "sample/sampler_fields.h"

struct batcher;
struct moeflux_request;
struct worker;

struct moeflux_chat {
    struct generator generator; /* what the workers share */
    struct moeflux_tokenizer tokenizer;
    struct batcher *batchers[MOEFLUX_MAX_DEVICES]; /* one for the model and each copy */
    struct request_options defaults; /* defaults of requests, with the sampling of the model's file */
    /* Why a value in that file cannot be used: a request must have another one. NULL: it can. */
    char *bad_sampling[MOEFLUX_N_SAMPLER_FIELDS];
    pthread_mutex_t lock; /* protects the idle workers */
    bool has_lock;
    struct worker *idle;
    /* clock_ns() when it was opened or its template changed: no other chat has had the same */
    uint64_t version;
};

/* Returns the number of the model's copy that a session belongs to, 0: the model; above the last: to none. */
uint32_t chat_api_find_copy(const struct moeflux_chat *c, const struct moeflux_session *s);
/* Makes a generator for answers in sessions of a copy of the chat's model, with logits, for
 * generator_unshare. ERR_MEMORY. */
int chat_api_share(const struct moeflux_chat *c, uint32_t copy, struct generator *g, struct moeflux_err *e);
/* Gives such a generator the session of the next answer; NULL: none, to make the tokens of a prompt. */
void chat_api_use(const struct moeflux_chat *c, struct generator *g, struct moeflux_session *s);
/* Checks that the session is one of the chat's model. ERR_USAGE. */
int chat_api_check_session(const struct moeflux_chat *c, const struct moeflux_session *s,
                           struct moeflux_err *e);

/* Reads the fields, over the chat's defaults, of a request whose prompt comes from elsewhere: what it says of
 * prompt and messages is left out. `out` is zeroed and freed with request_free. ERR_FORMAT, ERR_USAGE,
 * ERR_UNSUPPORTED, ERR_MEMORY. */
int chat_api_read_how(const struct moeflux_chat *c, const struct moeflux_request *from, struct request *out,
                      struct moeflux_err *e);

/* Where a prompt is cut for other prompts: nowhere, where the next request of a conversation will differ, or
 * where others may have the same beginning. */
enum chat_api_places { CHAT_API_NOWHERE, CHAT_API_TURNS, CHAT_API_CUTS };
/* Makes r->encoded for an answer in a sequence of max_context tokens: the prompt, where it is cut, and the
 * seed. Errors: those of moeflux_chat_answer that concern the request. */
int chat_api_prepare(struct moeflux_chat *c, struct moeflux_request *r, uint32_t max_context,
                     enum chat_api_places places, struct moeflux_err *e);

/* Returns whether the request's answer should go on: a cancel and the model's progress callback end it. ctx:
 * a struct chat_api_watch. A function for moeflux_progress. */
struct chat_api_watch {
    const struct moeflux_request *request;
    const struct moeflux_model *model;
};
bool chat_api_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);

#endif
