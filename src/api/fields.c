#include "api/fields.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "base/json.h"
#include "base/json_sent.h"

/* JSON values of a body; a list of token ids is the largest part. */
enum { MAX_VALUES = 1 << 19 };

struct json_t *fields_parse(const char *body, size_t len, struct refusal *refusal)
{
    json_error_t why;
    if (json_count_values(body, len) > MAX_VALUES) {
        refusal_set(refusal, 400, NULL, NULL, "the body has more than %d values", MAX_VALUES);
        return NULL;
    }
    json_t *root = json_sent_read(body, len, &why);
    if (!root) {
        refusal_set(refusal, 400, NULL, NULL, "the body is not JSON: byte %d: %s", why.position, why.text);
    } else if (!json_is_object(root)) {
        refusal_set(refusal, 400, NULL, NULL, "the body is %s, expected a JSON object", fields_kind(root));
        json_decref(root);
        root = NULL;
    }
    return root;
}

const char *fields_kind(const struct json_t *value)
{
    static const char *const kinds[] = {"an object", "an array", "a text", "a number",
                                        "a number",  "true",     "false",  "null"};
    if (json_sent_number(value))
        return "a number of more than 64 bits";
    return value ? kinds[json_typeof(value)] : "nothing";
}

const struct json_t *fields_get(const struct json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static void wrong(struct refusal *refusal, const char *name, const char *expected, const json_t *found)
{
    refusal_field(refusal, name, "%s: expected %s, found %s", name, expected, fields_kind(found));
}

bool fields_bool(const struct json_t *object, const char *name, bool fallback, struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (value && !json_is_boolean(value))
        wrong(refusal, name, "true or false", value);
    return value ? json_is_true(value) : fallback;
}

int64_t fields_int(const struct json_t *object, const char *name, int64_t fallback, int64_t lo, int64_t hi,
                   struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (!value)
        return fallback;
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value))
        wrong(refusal, name, "a whole number", value);
    else if (n < lo || n > hi)
        refusal_field(refusal, name,
                      "%s: expected a whole number from %" PRId64 " to %" PRId64 ", found %" PRId64, name, lo,
                      hi, n);
    else
        return n;
    return fallback;
}

double fields_real(const struct json_t *object, const char *name, double fallback, double lo, double hi,
                   struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (!value)
        return fallback;
    double x = json_number_value(value);
    if (!json_is_number(value))
        wrong(refusal, name, "a number", value);
    else if (!(x >= lo && x <= hi))
        refusal_field(refusal, name, "%s: expected a number from %g to %g, found %g", name, lo, hi, x);
    else
        return x;
    return fallback;
}

const char *fields_text(const struct json_t *object, const char *name, struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (value && !json_is_string(value))
        wrong(refusal, name, "a text", value);
    return json_string_value(value);
}

const struct json_t *fields_array(const struct json_t *object, const char *name, struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (value && !json_is_array(value))
        wrong(refusal, name, "an array", value);
    return json_is_array(value) ? value : NULL;
}

const struct json_t *fields_object(const struct json_t *object, const char *name, struct refusal *refusal)
{
    const json_t *value = fields_get(object, name);
    if (value && !json_is_object(value))
        wrong(refusal, name, "an object", value);
    return json_is_object(value) ? value : NULL;
}
