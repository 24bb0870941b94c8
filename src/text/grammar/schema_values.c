/* Which listed values fit the other keywords of a schema. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

static bool has_type(const json_t *value, const char *name)
{
    bool is_whole = json_is_integer(value) ||
                    (json_is_real(value) && floor(json_real_value(value)) == json_real_value(value));
    if (is_whole && strcmp(name, "integer") == 0)
        return true;
    return strcmp(name, json_is_null(value)      ? "null"
                        : json_is_boolean(value) ? "boolean"
                        : json_is_string(value)  ? "string"
                        : json_is_array(value)   ? "array"
                        : json_is_object(value)  ? "object"
                                                 : "number") == 0;
}

static bool fits_types(const json_t *schema, const json_t *value)
{
    const json_t *types = json_object_get(schema, "type");
    size_t i = 0, n = json_array_size(types);
    while (i < n && !has_type(value, json_string_value(json_array_get(types, i))))
        i++;
    return !types || i < n;
}

static bool is_listed(const json_t *schema, const json_t *value)
{
    const json_t *list = json_object_get(schema, "enum");
    size_t i = 0, n = json_array_size(list);
    while (i < n && !schema_values_equal(value, json_array_get(list, i)))
        i++;
    return !list || i < n;
}

/* Returns -1, 0 or 1: the order of two numbers. */
static int compare(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b))
        return (json_integer_value(a) > json_integer_value(b)) -
               (json_integer_value(a) < json_integer_value(b));
    return (json_number_value(a) > json_number_value(b)) - (json_number_value(a) < json_number_value(b));
}

/* Returns the order of the value and a keyword's number; `none` if the schema does not have it. */
static int against(const json_t *schema, const char *key, const json_t *value, int none)
{
    const json_t *bound = json_object_get(schema, key);
    return bound ? compare(value, bound) : none;
}

static bool fits_number(struct schema_writer *w, const json_t *schema, const json_t *value)
{
    const json_t *step = json_object_get(schema, "multipleOf");
    if (step && !(json_is_integer(step) && json_is_integer(value)))
        schema_fail(w, ERR_UNSUPPORTED, "multipleOf", "of fractions, together with enum or const");
    return !w->rc && against(schema, "minimum", value, 1) >= 0 &&
           against(schema, "exclusiveMinimum", value, 1) > 0 && against(schema, "maximum", value, -1) <= 0 &&
           against(schema, "exclusiveMaximum", value, -1) < 0 &&
           (!step || json_integer_value(value) % json_integer_value(step) == 0);
}

static bool fits_string(struct schema_writer *w, const json_t *schema, const json_t *value)
{
    const char *text = json_string_value(value);
    uint32_t n = 0;
    for (size_t i = 0; i < json_string_length(value); i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    if (json_object_get(schema, "pattern"))
        schema_fail(w, ERR_UNSUPPORTED, "pattern", "together with listed texts or names");
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (format && !(schema_format(format) && !*schema_format(format)))
        schema_fail(w, ERR_UNSUPPORTED, "format", "together with listed texts or names");
    return n >= schema_count(w, schema, "minLength", 0) &&
           n <= schema_count(w, schema, "maxLength", UINT32_MAX) && !w->rc;
}

/* Lists and objects fit if nothing is said of their parts. */
static bool fits_whole(struct schema_writer *w, const json_t *schema, const char *const *keys)
{
    for (; *keys; keys++)
        if (json_object_get(schema, *keys))
            schema_fail(w, ERR_UNSUPPORTED, *keys, "together with a listed value that is an array or object");
    return !w->rc;
}

bool schema_fits(struct schema_writer *w, const json_t *schema, const json_t *value)
{
    static const char *const
        of_objects[] = {"properties",    "required", "additionalProperties", "propertyNames", "minProperties",
                        "maxProperties", NULL},
        *const of_arrays[] = {"prefixItems", "items", "minItems", "maxItems", "uniqueItems", NULL};
    if (json_is_false(schema) || !fits_types(schema, value) || !is_listed(schema, value))
        return false;
    return json_is_string(value)   ? fits_string(w, schema, value)
           : json_is_number(value) ? fits_number(w, schema, value)
           : json_is_object(value) ? fits_whole(w, schema, of_objects)
           : json_is_array(value)  ? fits_whole(w, schema, of_arrays)
                                   : true;
}
