/* refusal.h - why a request is not answered, in the form of OpenAI's API. */
#ifndef MOEFLUX_API_REFUSAL_H
#define MOEFLUX_API_REFUSAL_H

#include <stdint.h>

struct json_t;
struct moeflux_err;

struct refusal {     /* zeroed: none */
    unsigned status; /* HTTP status */
    char param[64];  /* the field at fault; "": none */
    char code[48];   /* "context_length_exceeded"; "": none */
    char text[512];
    /* tokens, if the prompt is longer than the context; 0: it is something else */
    uint32_t n_prompt_tokens, n_ctx;
};

/* Fills an empty refusal; an earlier one stays. param, code: NULL: none. Returns -1. */
int refusal_set(struct refusal *r, unsigned status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Does the same for a wrong field, with status 400. */
int refusal_field(struct refusal *r, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Does the same for a failure of the program, with the status that suits its code. */
int refusal_of(struct refusal *r, int rc, const struct moeflux_err *e);

/* Returns {"error": {message, type, param, code}}; the caller owns it. NULL: no memory. */
struct json_t *refusal_json(const struct refusal *r);

#endif
