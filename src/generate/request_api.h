/* request_api.h - the request of moeflux.h: its fields, as they were set. */
#ifndef MOEFLUX_GENERATE_REQUEST_API_H
#define MOEFLUX_GENERATE_REQUEST_API_H

#include <stdatomic.h>
#include <stdbool.h>

#include "generate/choice.h"
#include "moeflux_chat.h"

struct json_t;

struct moeflux_request {
    struct json_t *fields; /* an object with the names of request_fields.h */
    struct token_list ids; /* the prompt's tokens; none: the fields have the prompt */
    bool is_alone;
    struct moeflux_alone alone; /* moeflux_request_set_alone */
    atomic_bool is_cancelled;
    /* What moeflux_chat_encode or a job made of it, until a field changes or moeflux_chat_answer takes it;
     * NULL: nothing. */
    struct choice *encoded;
    uint64_t encoded_by; /* moeflux_chat.version: by which chat; 0: it stays, the request has no fields */
};

/* Creates a request without fields, whose `encoded` is zeroed, for the caller to fill. ERR_MEMORY. */
int request_api_new_made(struct moeflux_request **out, struct moeflux_err *e);
/* Discards what was made of the request. */
void request_api_forget(struct moeflux_request *r);

#endif
