/* request_api.h - the request of moeflux.h: its fields, as they were set. */
#ifndef MOEFLUX_GENERATE_REQUEST_API_H
#define MOEFLUX_GENERATE_REQUEST_API_H

#include <stdatomic.h>

struct json_t;

struct moeflux_request {
    struct json_t *fields; /* an object with the names of request_fields.h */
    atomic_bool is_cancelled;
};

#endif
