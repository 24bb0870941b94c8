/* Schemas in canonical form, and schemas that must both hold. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/schema_writer.h"

enum { MAX_MEETS = 4096, MAX_MERGED = 1 << 16 };

static json_t *mutable(const json_t *value)
{
    return (json_t *)(uintptr_t)value;
}

static json_t *no_memory(struct schema_writer *w)
{
    if (!w->rc)
        w->rc = err_set(w->e, ERR_MEMORY, "out of memory for the schema");
    return NULL;
}

/* Gives the schema to w->merged. Returns it, or NULL with rc set. */
static json_t *own(struct schema_writer *w, json_t *schema)
{
    if (json_array_size(w->merged) == MAX_MERGED)
        schema_fail(w, ERR_UNSUPPORTED, NULL, "more than 65536 combinations of schemas");
    if (w->rc) {
        json_decref(schema);
        return NULL;
    }
    return schema && json_array_append_new(w->merged, schema) == 0 ? schema : no_memory(w);
}

static void set(struct schema_writer *w, json_t *schema, const char *key, const json_t *value)
{
    if (json_object_set(schema, key, mutable(value)) < 0)
        no_memory(w);
}

static void set_new(struct schema_writer *w, json_t *schema, const char *key, json_t *value)
{
    if (!value || json_object_set_new(schema, key, value) < 0)
        no_memory(w);
}

/* Moves the value of a keyword to another. */
static void rename_key(struct schema_writer *w, json_t *schema, const char *from, const char *to)
{
    set(w, schema, to, json_object_get(schema, from));
    json_object_del(schema, from);
}

/* ---- canonical form ---- */

bool json_schema_is_annotation(const char *key)
{
    static const char *const keys[] = {"title",
                                       "description",
                                       "default",
                                       "example",
                                       "examples",
                                       "deprecated",
                                       "readOnly",
                                       "writeOnly",
                                       "$schema",
                                       "$id",
                                       "id",
                                       "$comment",
                                       "$defs",
                                       "definitions",
                                       "$anchor",
                                       "$vocabulary",
                                       "discriminator",
                                       "contentMediaType",
                                       "contentSchema",
                                       "externalDocs",
                                       "xml",
                                       "enumNames",
                                       "enumDescriptions",
                                       "markdownDescription",
                                       "propertyOrdering",
                                       "errorMessage"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return key[0] == 'x' && key[1] == '-';
}

/* A list of schemas under "items", and "additionalItems" after it, are the older names. */
static void name_items(struct schema_writer *w, json_t *schema)
{
    bool is_list = json_is_array(json_object_get(schema, "items"));
    if (is_list && json_object_get(schema, "prefixItems"))
        schema_fail(w, ERR_FORMAT, "items", "expected a schema next to prefixItems");
    else if (is_list)
        rename_key(w, schema, "items", "prefixItems");
    if (is_list && json_object_get(schema, "additionalItems"))
        rename_key(w, schema, "additionalItems", "items");
    json_object_del(schema, "additionalItems");
}

/* Writes "type" as a list, with null if the schema is nullable. */
static void list_types(struct schema_writer *w, json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    bool is_nullable = json_is_true(json_object_get(schema, "nullable"));
    json_t *list = json_is_array(type) ? json_copy(mutable(type)) : json_pack("[O]", type);
    json_object_del(schema, "nullable");
    if (list && type && is_nullable && json_array_append_new(list, json_string("null")) < 0)
        no_memory(w);
    if (type)
        set_new(w, schema, "type", list);
    else
        json_decref(list);
}

/* Older schemas have exclusiveMinimum: true next to a minimum. */
static void name_bound(struct schema_writer *w, json_t *schema, const char *exclusive, const char *inclusive)
{
    const json_t *value = json_object_get(schema, exclusive);
    if (!json_is_boolean(value))
        return;
    bool is_exclusive = json_is_true(value);
    json_object_del(schema, exclusive);
    if (is_exclusive && json_object_get(schema, inclusive))
        rename_key(w, schema, inclusive, exclusive);
}

static json_t *unite_values(struct schema_writer *w, const json_t *a, const json_t *b);

/* Writes "const" as an "enum" of one value. */
static void list_value(struct schema_writer *w, json_t *schema)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    if (!only)
        return;
    json_t *one = json_pack("[O]", only), *both = list && one ? unite_values(w, list, one) : json_incref(one);
    set_new(w, schema, "enum", both);
    json_object_del(schema, "const");
    json_decref(one);
}

/* Writes one pattern of names as propertyNames and additionalProperties. Names that do not match it, which
 * the schema allows too, are left out. */
static void name_pattern(struct schema_writer *w, json_t *schema)
{
    const json_t *patterns = json_object_get(schema, "patternProperties");
    const char *key;
    json_t *value;
    if (!patterns)
        return;
    if (json_object_size(patterns) > 1 || json_object_get(schema, "properties") ||
        json_object_get(schema, "propertyNames"))
        schema_fail(w, ERR_UNSUPPORTED, "patternProperties",
                    "expected one pattern, without properties and propertyNames");
    json_object_foreach(mutable(patterns), key, value)
    {
        set_new(w, schema, "propertyNames", json_pack("{s:s}", "pattern", key));
        set(w, schema, "additionalProperties", value);
    }
    json_object_del(schema, "patternProperties");
}

/* Writes an encoding that can be seen in a text as its format. */
static void name_encoding(struct schema_writer *w, json_t *schema)
{
    const json_t *value = json_object_get(schema, "contentEncoding");
    bool is_known = value && strncmp(json_string_value(value), "base64", 6) == 0;
    if (is_known && !json_object_get(schema, "format") && !json_object_get(schema, "pattern"))
        rename_key(w, schema, "contentEncoding", "format");
    json_object_del(schema, "contentEncoding");
}

const json_t *schema_canonical(struct schema_writer *w, const json_t *schema)
{
    const char *key;
    json_t *value;
    if (json_is_false(schema))
        return schema;
    if (!json_is_true(schema) && !json_is_object(schema)) {
        schema_fail(w, ERR_FORMAT, NULL, "expected a schema: an object, true or false");
        return NULL;
    }
    json_t *copy = own(w, json_object());
    json_object_foreach(mutable(schema), key, value)
    {
        schema_check_keyword(w, key, value);
        if (!w->rc && !json_schema_is_annotation(key))
            set(w, copy, key, value);
    }
    if (w->rc)
        return NULL;
    name_items(w, copy);
    list_types(w, copy);
    name_bound(w, copy, "exclusiveMinimum", "minimum");
    name_bound(w, copy, "exclusiveMaximum", "maximum");
    list_value(w, copy);
    name_encoding(w, copy);
    name_pattern(w, copy);
    if (json_is_false(json_object_get(copy, "uniqueItems")))
        json_object_del(copy, "uniqueItems");
    return w->rc ? NULL : copy;
}

/* ---- schemas of members and elements ---- */

/* Returns the schemas that the meet stands for: a list, or NULL if it is no meet. */
static const json_t *parts_of(const struct schema_writer *w, const json_t *schema)
{
    size_t i = 0;
    while (i < json_array_size(w->meets) && json_array_get(w->meets, i) != schema)
        i++;
    return i < json_array_size(w->meets) ? json_object_get(schema, "allOf") : NULL;
}

static bool contains(const json_t *list, const json_t *schema)
{
    size_t i = 0;
    while (i < json_array_size(list) && json_array_get(list, i) != schema)
        i++;
    return i < json_array_size(list);
}

static void add_parts(struct schema_writer *w, json_t *list, const json_t *schema)
{
    const json_t *parts = parts_of(w, schema);
    size_t n = parts ? json_array_size(parts) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *part = parts ? json_array_get(parts, i) : schema;
        if (!contains(list, part) && json_array_append(list, mutable(part)) < 0)
            no_memory(w);
    }
}

/* Returns the meet that has these schemas, in any order; NULL: there is none. */
static const json_t *find_meet(const struct schema_writer *w, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(w->meets); i++) {
        const json_t *meet = json_array_get(w->meets, i), *parts = json_object_get(meet, "allOf");
        size_t k = 0, n = json_array_size(list);
        while (k < n && json_array_size(parts) == n && contains(parts, json_array_get(list, k)))
            k++;
        if (k == n)
            return meet;
    }
    return NULL;
}

const json_t *schema_meet(struct schema_writer *w, const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (!a || json_is_true(a) || a == b)
        return b ? b : json_true();
    if (!b || json_is_true(b))
        return a;
    json_t *list = json_array(), *meet = NULL;
    add_parts(w, list, a);
    add_parts(w, list, b);
    const json_t *known = json_array_size(list) == 1 ? json_array_get(list, 0) : find_meet(w, list);
    if (!known && json_array_size(w->meets) == MAX_MEETS)
        schema_fail(w, ERR_UNSUPPORTED, NULL, "more than 4096 combinations of schemas");
    if (!known && !w->rc &&
        !((meet = json_pack("{s:O}", "allOf", list)) && json_array_append_new(w->meets, meet) == 0))
        no_memory(w);
    json_decref(list);
    return w->rc ? NULL : known ? known : meet;
}

/* Returns what the schema says of a member; NULL: nothing. */
static const json_t *member_of(const json_t *schema, const char *key)
{
    const json_t *named = json_object_get(json_object_get(schema, "properties"), key);
    return named ? named : json_object_get(schema, "additionalProperties");
}

static const json_t *element_of(const json_t *schema, size_t i)
{
    const json_t *one = json_array_get(json_object_get(schema, "prefixItems"), i);
    return one ? one : json_object_get(schema, "items");
}

/* additionalProperties concerns the members that "properties" of the same schema does not name, so each
 * member is looked up in both schemas. */
static void merge_members(struct schema_writer *w, json_t *merged, const json_t *a, const json_t *b)
{
    const json_t *lists[] = {json_object_get(a, "properties"), json_object_get(b, "properties")};
    const json_t *rest[] = {json_object_get(a, "additionalProperties"),
                            json_object_get(b, "additionalProperties")};
    const char *key;
    json_t *value;
    if (lists[0] || lists[1]) {
        json_t *members = json_object();
        for (int i = 0; i < 2 && members; i++)
            json_object_foreach(mutable(lists[i]), key, value)
            {
                const json_t *both = schema_meet(w, member_of(a, key), member_of(b, key));
                if (both)
                    set(w, members, key, both);
            }
        set_new(w, merged, "properties", members);
    }
    const json_t *others = rest[0] || rest[1] ? schema_meet(w, rest[0], rest[1]) : NULL;
    if (others)
        set(w, merged, "additionalProperties", others);
}

static void merge_elements(struct schema_writer *w, json_t *merged, const json_t *a, const json_t *b)
{
    size_t n_a = json_array_size(json_object_get(a, "prefixItems")),
           n_b = json_array_size(json_object_get(b, "prefixItems")), n = n_a > n_b ? n_a : n_b;
    const json_t *items[] = {json_object_get(a, "items"), json_object_get(b, "items")};
    if (n > 0) {
        json_t *list = json_array();
        for (size_t i = 0; i < n && list; i++) {
            const json_t *both = schema_meet(w, element_of(a, i), element_of(b, i));
            if (both && json_array_append(list, mutable(both)) < 0)
                no_memory(w);
        }
        set_new(w, merged, "prefixItems", list);
    }
    const json_t *others = items[0] || items[1] ? schema_meet(w, items[0], items[1]) : NULL;
    if (others)
        set(w, merged, "items", others);
}

/* ---- other keywords of schemas that must both hold ---- */

/* Returns a new list of the values of `a` for which the test holds. */
static json_t *filter(struct schema_writer *w, const json_t *a, const json_t *b,
                      bool (*test)(const json_t *one, const json_t *list))
{
    json_t *list = json_array();
    const json_t *one;
    size_t i;
    json_array_foreach(a, i, one) if (test(one, b) && json_array_append(list, mutable(one)) < 0) no_memory(w);
    return list;
}

static bool has_equal(const json_t *one, const json_t *list)
{
    size_t i = 0;
    while (i < json_array_size(list) && !schema_values_equal(one, json_array_get(list, i)))
        i++;
    return i < json_array_size(list);
}

static json_t *unite_values(struct schema_writer *w, const json_t *a, const json_t *b)
{
    return filter(w, a, b, has_equal);
}

static bool lists_type(const json_t *list, const char *name)
{
    size_t i = 0;
    while (i < json_array_size(list) && strcmp(json_string_value(json_array_get(list, i)), name) != 0)
        i++;
    return i < json_array_size(list);
}

/* An integer is a number. */
static bool fits_types(const json_t *one, const json_t *list)
{
    const char *name = json_string_value(one);
    return lists_type(list, name) || (strcmp(name, "integer") == 0 && lists_type(list, "number"));
}

static json_t *unite_types(struct schema_writer *w, const json_t *a, const json_t *b)
{
    json_t *list = filter(w, a, b, fits_types);
    if (!lists_type(list, "number") && !lists_type(list, "integer") &&
        ((lists_type(a, "number") && lists_type(b, "integer"))) &&
        json_array_append_new(list, json_string("integer")) < 0)
        no_memory(w);
    return list;
}

static json_t *unite_lists(struct schema_writer *w, const json_t *a, const json_t *b)
{
    json_t *list = json_copy(mutable(a));
    if (!list || json_array_extend(list, mutable(b)) < 0)
        no_memory(w);
    return list;
}

/* Returns the larger one. Where doubles do not tell them apart, the one that is a double: bounds that large
 * are refused. */
static json_t *unite_least(struct schema_writer *w, const json_t *a, const json_t *b)
{
    (void)w;
    bool first = json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) >= json_integer_value(b)
                 : json_number_value(a) != json_number_value(b) ? json_number_value(a) > json_number_value(b)
                                                                : json_is_real(a);
    return json_incref(mutable(first ? a : b));
}

static json_t *unite_most(struct schema_writer *w, const json_t *a, const json_t *b)
{
    (void)w;
    bool first = json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) <= json_integer_value(b)
                 : json_number_value(a) != json_number_value(b) ? json_number_value(a) < json_number_value(b)
                                                                : json_is_real(a);
    return json_incref(mutable(first ? a : b));
}

static json_t *unite_steps(struct schema_writer *w, const json_t *a, const json_t *b)
{
    json_int_t x = json_integer_value(a), y = json_integer_value(b), n = x, m = y;
    while (m) {
        json_int_t rest = n % m;
        n = m;
        m = rest;
    }
    if (x > 0 && y > 0 && x / n <= INT64_MAX / y)
        return json_integer(x / n * y);
    schema_fail(w, ERR_UNSUPPORTED, "multipleOf",
                "two schemas that must both hold give it different values that are not whole");
    return NULL;
}

static json_t *unite_schemas(struct schema_writer *w, const json_t *a, const json_t *b)
{
    return json_incref(mutable(schema_meet(w, a, b)));
}

static const struct union_of {
    const char *key;
    /* Returns the value that stands for both, a new reference. */
    json_t *(*unite)(struct schema_writer *w, const json_t *a, const json_t *b);
} unions[] = {
    {"type", unite_types},
    {"enum", unite_values},
    {"required", unite_lists},
    {"allOf", unite_lists},
    {"minLength", unite_least},
    {"minItems", unite_least},
    {"minProperties", unite_least},
    {"minimum", unite_least},
    {"exclusiveMinimum", unite_least},
    {"maxLength", unite_most},
    {"maxItems", unite_most},
    {"maxProperties", unite_most},
    {"maximum", unite_most},
    {"exclusiveMaximum", unite_most},
    {"multipleOf", unite_steps},
    {"propertyNames", unite_schemas},
};

/* Adds {key: value} to the schemas under "allOf", which are merged after the others. */
static void defer(struct schema_writer *w, json_t *merged, const char *key, const json_t *value)
{
    json_t *all = json_object_get(merged, "allOf");
    all = all ? json_copy(all) : json_array();
    if (!all || json_array_append_new(all, json_pack("{s:O}", key, value)) < 0)
        no_memory(w);
    set_new(w, merged, "allOf", all);
}

static void merge_key(struct schema_writer *w, json_t *merged, const char *key, const json_t *value)
{
    static const char *const in_groups[] = {"properties", "additionalProperties", "prefixItems", "items"};
    const json_t *known = json_object_get(merged, key);
    size_t i = 0;
    for (size_t k = 0; k < sizeof in_groups / sizeof *in_groups; k++)
        if (strcmp(key, in_groups[k]) == 0)
            return;
    while (i < sizeof unions / sizeof *unions && strcmp(unions[i].key, key) != 0)
        i++;
    if (!known)
        set(w, merged, key, value);
    else if (known == value || json_equal(known, value))
        return;
    else if (i < sizeof unions / sizeof *unions)
        set_new(w, merged, key, unions[i].unite(w, known, value));
    else if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 || strcmp(key, "$ref") == 0)
        defer(w, merged, key, value);
    else
        schema_fail(w, ERR_UNSUPPORTED, key, "two schemas that must both hold give it different values");
}

const json_t *schema_merge(struct schema_writer *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (w->rc || !a || !b)
        return NULL;
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    json_t *merged = own(w, json_copy(mutable(a)));
    if (!merged)
        return NULL;
    merge_members(w, merged, a, b);
    merge_elements(w, merged, a, b);
    json_object_foreach(mutable(b), key, value) if (!w->rc) merge_key(w, merged, key, value);
    return w->rc ? NULL : merged;
}

const json_t *schema_merge_new(struct schema_writer *w, const json_t *a, json_t *b)
{
    b = own(w, b);
    return b ? schema_merge(w, a, b) : NULL;
}

const json_t *schema_without(struct schema_writer *w, const json_t *schema, const char *key)
{
    json_t *rest = own(w, json_copy(mutable(schema)));
    if (rest)
        json_object_del(rest, key);
    return rest;
}

/* ---- schemas without $ref and allOf ---- */

/* Returns the schema with the first one of its allOf merged into it. */
static const json_t *merge_first(struct schema_writer *w, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "allOf"), *rest = schema_without(w, schema, "allOf");
    size_t before = schema_path_add(w, "allOf");
    const json_t *first = rest ? schema_canonical(w, json_array_get(list, 0)) : NULL;
    schema_path_back(w, before);
    json_t *others = json_copy(mutable(list));
    if (!others || json_array_remove(others, 0) < 0)
        no_memory(w);
    /* The others follow what the first one defers. */
    if (!w->rc && json_array_size(others) > 0)
        set(w, mutable(rest), "allOf", others);
    json_decref(others);
    return w->rc ? NULL : schema_merge(w, rest, first);
}

const json_t *schema_flatten(struct schema_writer *w, const json_t *schema)
{
    for (int i = 0; !w->rc && json_is_object(schema); i++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (ref) {
            if (i >= SCHEMA_MAX_DEPTH)
                schema_fail(w, ERR_FORMAT, "$ref", "refers to itself");
            const json_t *named = schema_resolve(w, ref),
                         *rest = named ? schema_without(w, schema, "$ref") : NULL;
            schema = rest ? schema_merge(w, rest, schema_canonical(w, named)) : NULL;
        } else if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf") ||
                   !json_object_get(schema, "allOf")) {
            return schema;
        } else {
            schema = merge_first(w, schema);
        }
    }
    return w->rc ? NULL : schema;
}
