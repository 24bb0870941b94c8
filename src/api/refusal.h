/* refusal.h - why a request is not answered, in the form of OpenAI's API. */
#ifndef MOEFLUX_API_REFUSAL_H
#define MOEFLUX_API_REFUSAL_H

struct json_t;
struct moeflux_err;

struct refusal {     /* zeroed: none */
    unsigned status; /* of HTTP */
    char param[64];  /* the field at fault; "": none */
    char code[48];   /* "context_length_exceeded"; "": none */
    char text[512];
};

/* Fills it and returns -1. param, code: NULL for none. A refusal that is there already stays. */
int refusal_set(struct refusal *r, unsigned status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* A wrong field: status 400. */
int refusal_field(struct refusal *r, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* What a failure of the program means for the client. */
int refusal_of(struct refusal *r, int rc, const struct moeflux_err *e);

/* {"error": {message, type, param, code}}; NULL without memory. */
struct json_t *refusal_json(const struct refusal *r);

#endif
