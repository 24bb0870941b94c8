/* request_api.h - the request of moeflux.h: its fields, as they were set. */
#ifndef MOEFLUX_GENERATE_REQUEST_API_H
#define MOEFLUX_GENERATE_REQUEST_API_H

#include <stdatomic.h>
#include <stdbool.h>

#include "generate/request.h"
#include "moeflux_chat.h"

struct json_t;

struct moeflux_request {
    struct json_t *fields; /* an object with the names of request_fields.h */
    struct token_list ids; /* the prompt's tokens; none: the fields have the prompt */
    bool is_alone;
    struct moeflux_alone alone; /* moeflux_request_set_alone */
    atomic_bool is_cancelled;
    /* What moeflux_chat_encode made of it, until a field changes or it is answered; NULL: nothing. */
    struct request *encoded;
    uint64_t encoded_by; /* moeflux_chat.version: by which chat */
};

/* Discards what was made of the request. */
void request_api_forget(struct moeflux_request *r);

#endif
