/* Schemas that exclude each other: no value fits both. */
#include <jansson.h>
#include <string.h>

#include "text/grammar/schema_writer.h"

enum { MAX_REFERENCES = 16 };

static bool members_equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !schema_values_equal(value, other))
            return false;
    }
    return json_object_size(a) == json_object_size(b);
}

bool schema_values_equal(const json_t *a, const json_t *b)
{
    size_t i = 0, n = json_array_size(a);
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_is_object(a) && json_is_object(b))
        return members_equal(a, b);
    if (!json_is_array(a) || !json_is_array(b))
        return json_equal(a, b);
    while (i < n && n == json_array_size(b) &&
           schema_values_equal(json_array_get(a, i), json_array_get(b, i)))
        i++;
    return i == n && n == json_array_size(b);
}

/* ---- types ---- */

enum { TYPE_ALL = 0x3f };

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"null", "boolean", "string", "array", "object", "number"};
    /* An integer is a number. */
    if (name && strcmp(name, "integer") == 0)
        return 1u << 5;
    for (unsigned i = 0; name && i < 6; i++)
        if (strcmp(names[i], name) == 0)
            return 1u << i;
    return TYPE_ALL;
}

static unsigned type_of_value(const json_t *v)
{
    return type_bit(json_is_null(v)      ? "null"
                    : json_is_boolean(v) ? "boolean"
                    : json_is_string(v)  ? "string"
                    : json_is_array(v)   ? "array"
                    : json_is_object(v)  ? "object"
                                         : "number");
}

/* Returns the types that a value of the schema may have, as bits. */
static unsigned types_of(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one = json_object_get(schema, "const"),
                 *list = json_object_get(schema, "enum"), *item;
    unsigned bits = 0;
    size_t i;
    if (json_is_false(schema))
        return 0;
    if (one)
        return type_of_value(one);
    if (json_is_array(list)) {
        json_array_foreach(list, i, item) bits |= type_of_value(item);
        return bits;
    }
    bits = json_is_array(type) ? 0 : type_bit(json_string_value(type));
    json_array_foreach(type, i, item) bits |= type_bit(json_string_value(item));
    return bits | (json_is_true(json_object_get(schema, "nullable")) ? type_bit("null") : 0);
}

/* ---- values ---- */

/* Returns the values of const or enum as an array, which the caller releases; NULL: there is neither. */
static json_t *values_of(const json_t *schema)
{
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return one ? json_pack("[O]", one) : json_is_array(list) ? json_incref(list) : NULL;
}

static bool values_differ(const json_t *a, const json_t *b)
{
    json_t *x = values_of(a), *y = values_of(b);
    bool differ = x && y;
    for (size_t i = 0; differ && i < json_array_size(x); i++)
        for (size_t k = 0; differ && k < json_array_size(y); k++)
            differ = !schema_values_equal(json_array_get(x, i), json_array_get(y, k));
    json_decref(x);
    json_decref(y);
    return differ;
}

/* Returns the schema that a $ref names, if there is one. What stands next to it restricts values further. */
static const json_t *follow(struct schema_writer *w, const json_t *schema)
{
    for (int i = 0; i < MAX_REFERENCES && json_object_get(schema, "$ref") && !w->rc; i++)
        schema = schema_resolve(w, json_object_get(schema, "$ref"));
    return schema;
}

/* Returns whether no value of the member fits both schemas. */
static bool members_differ(struct schema_writer *w, const json_t *a, const json_t *b)
{
    a = follow(w, a);
    b = follow(w, b);
    return !w->rc && ((types_of(a) & types_of(b)) == 0 || values_differ(a, b));
}

bool schema_are_disjoint(struct schema_writer *w, const json_t *a, const json_t *b, const char **member)
{
    const char *key;
    json_t *value;
    *member = NULL;
    a = follow(w, a);
    b = follow(w, b);
    if (w->rc || (types_of(a) & types_of(b)) == 0 || values_differ(a, b))
        return true;
    if (types_of(a) != type_bit("object"))
        return false;
    json_object_foreach(json_object_get(a, "properties"), key, value)
    {
        const json_t *other = json_object_get(json_object_get(b, "properties"), key);
        if (!other || !members_differ(w, value, other))
            continue;
        *member = key;
        return true;
    }
    return false;
}
