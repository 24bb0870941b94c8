/* fields.h - typed reads of a request's JSON object. The first fault fills the refusal; later reads do
 * nothing. A field that is null counts as absent. */
#ifndef MOEFLUX_API_FIELDS_H
#define MOEFLUX_API_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/refusal.h"

struct json_t;

/* Parses a body. NULL with the refusal filled; else the caller's. */
struct json_t *fields_parse(const char *body, size_t len, struct refusal *no);

/* NULL: absent. Borrowed. */
const struct json_t *fields_get(const struct json_t *object, const char *name);
bool fields_bool(const struct json_t *object, const char *name, bool fallback, struct refusal *no);
int64_t fields_int(const struct json_t *object, const char *name, int64_t fallback, int64_t lo, int64_t hi,
                   struct refusal *no);
double fields_real(const struct json_t *object, const char *name, double fallback, double lo, double hi,
                   struct refusal *no);
/* Borrowed; NULL: absent. */
const char *fields_text(const struct json_t *object, const char *name, struct refusal *no);
const struct json_t *fields_array(const struct json_t *object, const char *name, struct refusal *no);
const struct json_t *fields_object(const struct json_t *object, const char *name, struct refusal *no);

/* "a text", "an array", ...: for what a message says was found. */
const char *fields_kind(const struct json_t *value);

#endif
