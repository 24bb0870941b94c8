/* fields.h - typed reads of a request's JSON object. The first error fills the refusal; later errors leave it
 * as it is. A field that is null counts as absent. */
#ifndef MOEFLUX_API_FIELDS_H
#define MOEFLUX_API_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/refusal.h"

struct json_t;

/* Parses a body, a JSON object that the caller owns. NULL with the refusal filled. */
struct json_t *fields_parse(const char *body, size_t len, struct refusal *refusal);

/* Returns a field of any type, borrowed; NULL: absent. */
const struct json_t *fields_get(const struct json_t *object, const char *name);
/* Return a field from lo to hi; `fallback`: it is absent or wrong. */
bool fields_bool(const struct json_t *object, const char *name, bool fallback, struct refusal *refusal);
int64_t fields_int(const struct json_t *object, const char *name, int64_t fallback, int64_t lo, int64_t hi,
                   struct refusal *refusal);
double fields_real(const struct json_t *object, const char *name, double fallback, double lo, double hi,
                   struct refusal *refusal);
/* Return a field, borrowed; NULL: it is absent or wrong. */
const char *fields_text(const struct json_t *object, const char *name, struct refusal *refusal);
const struct json_t *fields_array(const struct json_t *object, const char *name, struct refusal *refusal);
const struct json_t *fields_object(const struct json_t *object, const char *name, struct refusal *refusal);

/* Returns the kind of a value for a message: "a text", "an array", ... */
const char *fields_kind(const struct json_t *value);

#endif
