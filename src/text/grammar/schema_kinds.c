/* Which kinds of values fit a schema: for tool calls that write strings without quotes. */
#include <jansson.h>

#include "base/json.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/schema_writer.h"

enum { MAX_DEPTH = 16, ALL = JSON_SCHEMA_PLAIN | JSON_SCHEMA_OTHER };

static unsigned kinds_at(const json_t *root, const json_t *schema, unsigned depth);

static unsigned kind_of_value(const json_t *value)
{
    return json_is_string(value)    ? JSON_SCHEMA_TEXT
           : json_is_null(value)    ? JSON_SCHEMA_NULL
           : json_is_integer(value) ? JSON_SCHEMA_INTEGER
           : json_is_real(value)    ? JSON_SCHEMA_FRACTION
           : json_is_boolean(value) ? JSON_SCHEMA_BOOLEAN
           : json_is_object(value)  ? JSON_SCHEMA_OBJECT
                                    : JSON_SCHEMA_LIST;
}

static unsigned kind_of_type(const json_t *type)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } types[] = {{"string", JSON_SCHEMA_TEXT},     {"null", JSON_SCHEMA_NULL},
                 {"integer", JSON_SCHEMA_INTEGER}, {"number", JSON_SCHEMA_INTEGER | JSON_SCHEMA_FRACTION},
                 {"boolean", JSON_SCHEMA_BOOLEAN}, {"object", JSON_SCHEMA_OBJECT},
                 {"array", JSON_SCHEMA_LIST}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_is_text(type, types[i].name))
            return types[i].kinds;
    return JSON_SCHEMA_OTHER;
}

/* Returns the kinds of "type" and "nullable", or ALL if there is no type. */
static unsigned kinds_of_type(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned kinds = json_is_true(json_object_get(schema, "nullable")) ? JSON_SCHEMA_NULL : 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        kinds |= kind_of_type(json_array_get(type, i));
    return json_is_array(type) ? kinds : type ? kinds | kind_of_type(type) : ALL;
}

static unsigned kinds_of_values(const json_t *schema)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    unsigned kinds = 0;
    for (size_t i = 0; !only && i < json_array_size(list); i++)
        kinds |= kind_of_value(json_array_get(list, i));
    return only ? kind_of_value(only) : kinds ? kinds : ALL;
}

/* Returns the kinds of a list of schemas, one of which must fit; all: all must fit. */
static unsigned kinds_of_list(const json_t *root, const json_t *list, bool all, unsigned depth)
{
    unsigned kinds = all ? ALL : 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        unsigned one = kinds_at(root, json_array_get(list, i), depth + 1);
        kinds = all ? kinds & one : kinds | one;
    }
    return json_array_size(list) ? kinds : ALL;
}

/* Returns whether there is a keyword of numbers, arrays or objects. */
static bool says_other(const json_t *schema)
{
    static const char *const keys[] = {"properties",
                                       "required",
                                       "additionalProperties",
                                       "propertyNames",
                                       "patternProperties",
                                       "minProperties",
                                       "maxProperties",
                                       "items",
                                       "prefixItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "multipleOf",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum"};
    size_t i = 0;
    while (i < sizeof keys / sizeof *keys && !json_object_get(schema, keys[i]))
        i++;
    return i < sizeof keys / sizeof *keys;
}

static unsigned kinds_at(const json_t *root, const json_t *schema, unsigned depth)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    unsigned kinds = kinds_of_type(schema) & kinds_of_values(schema);
    if (depth > MAX_DEPTH)
        return ALL;
    if (ref && schema_find(root, ref))
        kinds &= kinds_at(root, schema_find(root, ref), depth + 1);
    for (int i = 0; i < 3; i++)
        kinds &= kinds_of_list(root, json_object_get(schema, lists[i]), i == 2, depth);
    return kinds != ALL ? kinds : says_other(schema) ? JSON_SCHEMA_OTHER : ALL;
}

unsigned json_schema_kinds(const json_t *root, const json_t *schema)
{
    unsigned kinds = kinds_at(root, schema, 0);
    return kinds == ALL ? JSON_SCHEMA_TEXT : kinds;
}
