#include "text/json_fields.h"

#include <string.h>

#include "base/err.h"

const json_t *json_fields_get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

bool json_fields_is(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

struct quote json_fields_quote(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? quote_bytes(json_string_value(v), json_string_length(v)) : quote_bytes("", 0);
}

int json_fields_need_false(const json_t *object, const char *where, const char *key, bool absent,
                           struct moeflux_err *e)
{
    const json_t *v = json_fields_get(object, key);
    if (v && !json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s is not a boolean", where, key);
    if (v ? json_is_true(v) : absent)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is true, only false is supported", where, key);
    return 0;
}

int json_fields_bool(const json_t *object, const char *where, const char *key, bool *value,
                     struct moeflux_err *e)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s is missing or not a boolean", where, key);
    *value = json_is_true(v);
    return 0;
}
