/* Schemas that must both hold, schemas that exclude each other, and references. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

bool schema_is_annotation(const char *key)
{
    static const char *const keys[] = {"title",    "description", "default", "examples", "deprecated",
                                       "readOnly", "writeOnly",   "$schema", "$id",      "$comment",
                                       "$defs",    "definitions", "$anchor"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* ---- merging schemas that must both hold ---- */

/* Adds the members of b to a. A member of both must have the same schema in both. */
static void unite_properties(struct schema_writer *w, json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        const json_t *own = json_object_get(a, key);
        if (own && !json_equal(own, value))
            schema_fail(w, ERR_UNSUPPORTED, "properties",
                        "two schemas that must both hold describe the same member");
        else if (json_object_set(a, key, value) < 0)
            w->rc = w->rc ? w->rc : ERR_MEMORY;
    }
}

static void unite_required(struct schema_writer *w, json_t *a, const json_t *b)
{
    const json_t *name;
    size_t i;
    json_array_foreach(b, i, name)
    {
        size_t k = 0;
        while (k < json_array_size(a) && !json_equal(json_array_get(a, k), name))
            k++;
        if (k == json_array_size(a) && json_array_append(a, (json_t *)(uintptr_t)name) < 0)
            w->rc = w->rc ? w->rc : ERR_MEMORY;
    }
}

static bool is_false(const json_t *schema, const char *key)
{
    return json_is_false(json_object_get(schema, key));
}

/* Fails if b names a member that a forbids (additionalProperties: false). */
static void check_closed(struct schema_writer *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    const json_t *known = json_object_get(a, "properties");
    if (!is_false(a, "additionalProperties"))
        return;
    json_object_foreach(json_object_get(b, "properties"), key, value) if (!json_object_get(known, key))
        schema_fail(w, ERR_UNSUPPORTED, "additionalProperties",
                    "false forbids members of another schema that must hold too");
}

static void unite_key(struct schema_writer *w, json_t *merged, const char *key, json_t *value)
{
    json_t *own = json_object_get(merged, key), *copy = NULL;
    if (!own || schema_is_annotation(key)) {
        if (json_object_set(merged, key, value) < 0)
            w->rc = ERR_MEMORY;
        return;
    }
    if (json_equal(own, value))
        return;
    bool members = strcmp(key, "properties") == 0 && json_is_object(own) && json_is_object(value);
    bool required = strcmp(key, "required") == 0 && json_is_array(own) && json_is_array(value);
    if (!members && !required) {
        schema_fail(w, ERR_UNSUPPORTED, key, "two schemas that must both hold give it different values");
        return;
    }
    if (!(copy = json_copy(own)) || json_object_set_new(merged, key, copy) < 0)
        w->rc = ERR_MEMORY;
    else if (members)
        unite_properties(w, copy, value);
    else
        unite_required(w, copy, value);
}

const json_t *schema_merge(struct schema_writer *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_is_true(a) || json_is_true(b))
        return json_is_true(a) ? b : a;
    if (!json_is_object(a) || !json_is_object(b)) {
        schema_fail(w, ERR_UNSUPPORTED, NULL, "expected schemas that are objects");
        return NULL;
    }
    check_closed(w, a, b);
    check_closed(w, b, a);
    json_t *merged = json_copy((json_t *)(uintptr_t)a);
    json_object_foreach((json_t *)(uintptr_t)b, key, value) if (merged && !w->rc)
        unite_key(w, merged, key, value);
    if (!merged || json_array_append_new(w->merged, merged) < 0)
        w->rc = w->rc ? w->rc : ERR_MEMORY;
    return w->rc ? NULL : merged;
}

/* ---- schemas that exclude each other ---- */

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"null", "boolean", "string", "array", "object", "number"};
    /* An integer is a number. */
    if (name && strcmp(name, "integer") == 0)
        return 1u << 5;
    for (unsigned i = 0; name && i < 6; i++)
        if (strcmp(names[i], name) == 0)
            return 1u << i;
    return 0x3f;
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
    if (one)
        return type_of_value(one);
    if (json_is_array(list)) {
        json_array_foreach(list, i, item) bits |= type_of_value(item);
        return bits;
    }
    if (json_is_array(type)) {
        json_array_foreach(type, i, item) bits |= type_bit(json_string_value(item));
        return bits;
    }
    return type_bit(json_string_value(type));
}

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
            differ = !json_equal(json_array_get(x, i), json_array_get(y, k));
    json_decref(x);
    json_decref(y);
    return differ;
}

static const json_t *follow(struct schema_writer *w, const json_t *schema)
{
    for (int i = 0; i < 16 && json_object_get(schema, "$ref") && !w->rc; i++)
        schema = schema_resolve(w, json_object_get(schema, "$ref"));
    return schema;
}

bool schema_are_disjoint(struct schema_writer *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    a = follow(w, a);
    b = follow(w, b);
    if (w->rc || (types_of(a) & types_of(b)) == 0 || values_differ(a, b))
        return true;
    if (types_of(a) != type_bit("object") || types_of(b) != type_bit("object"))
        return false;
    json_object_foreach(json_object_get(a, "properties"), key, value)
    {
        const json_t *other = json_object_get(json_object_get(b, "properties"), key);
        if (other && schema_requires(a, key) && schema_requires(b, key) && values_differ(value, other))
            return true;
    }
    return false;
}

/* ---- references ---- */

/* Decodes a part of a JSON pointer: ~0 and ~1 are ~ and /, %XX is the URI's escape. */
static bool unescape(const char *from, size_t len, struct str *out)
{
    for (size_t i = 0; i < len; i++) {
        unsigned code;
        if (from[i] == '~' && i + 1 < len && (from[i + 1] == '0' || from[i + 1] == '1')) {
            str_add_text(out, from[++i] == '0' ? "~" : "/");
        } else if (from[i] == '%' && i + 2 < len && sscanf(from + i + 1, "%2x", &code) == 1) {
            str_add(out, (const char[]){(char)code}, 1);
            i += 2;
        } else {
            str_add(out, from + i, 1);
        }
    }
    return str_ok(out);
}

const json_t *schema_find(const json_t *root, const char *text)
{
    const json_t *at = text[0] == '#' && (!text[1] || text[1] == '/') ? root : NULL;
    for (const char *part = text + 1; at && *part;) {
        struct str key = {0};
        size_t len = strcspn(++part, "/");
        bool is_index;
        if (!unescape(part, len, &key))
            at = NULL;
        is_index = key.len && key.len < 6 && strspn(str_text(&key), "0123456789") == key.len;
        if (json_is_array(at) && is_index)
            at = json_array_get(at, (size_t)atoi(str_text(&key)));
        else
            at = json_object_get(at, str_text(&key));
        str_free(&key);
        part += len;
    }
    return at;
}

const json_t *schema_resolve(struct schema_writer *w, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        schema_fail(w, ERR_UNSUPPORTED, "$ref", "expected a place in this schema, as #/$defs/name");
        return NULL;
    }
    const json_t *at = schema_find(w->root, text);
    if (!at)
        schema_fail(w, ERR_FORMAT, "$ref", "nothing is there");
    return at;
}
