#include "text/grammar/json_schema.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/grammar/grammar.h"
#include "text/grammar/schema_objects.h"
#include "text/grammar/schema_writer.h"

/* The rules that every grammar begins with. Numbers stay in a range that JSON readers represent almost
 * exactly. */
static const char common[] = "ws ::= \"\" | \" \" | \"\\n\" [ \\t]{0,20}\n"
                             "sp ::= \"\" | \" \"\n"
                             "string ::= %s %s %s\n"
                             "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})\n"
                             "number ::= integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?\n"
                             "boolean ::= \"true\" | \"false\"\n"
                             "object ::= \"{\" ws (member (\",\" ws member)* ws)? \"}\"\n"
                             "member ::= %s \":\" sp value\n"
                             "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n"
                             "never ::= \" \" never\n"
                             "value ::= object | array | string | number | boolean | \"null\"\n";

/* Keywords that restrict values. */
static const struct keyword {
    const char *key;
    enum shape {
        SHAPE_ANY,
        SHAPE_SCHEMA,
        SHAPE_SCHEMAS, /* a list, not empty */
        SHAPE_ITEMS,   /* a schema or a list of them */
        SHAPE_MEMBERS, /* an object of schemas */
        SHAPE_COUNT,
        SHAPE_NUMBER,
        SHAPE_BOUND, /* a number; true and false in older schemas */
        SHAPE_STEP,  /* a number over 0 */
        SHAPE_TEXT,
        SHAPE_FLAG,
        SHAPE_NAMES,
        SHAPE_TYPES,
        SHAPE_VALUES,
    } shape;
    /* the type whose values it restricts; 0: all types */
    enum type { TYPE_STRING = 1, TYPE_NUMBER = 2, TYPE_OBJECT = 4, TYPE_ARRAY = 8 } type;
} keywords[] = {
    {"type", SHAPE_TYPES, 0},
    {"nullable", SHAPE_FLAG, 0},
    {"enum", SHAPE_VALUES, 0},
    {"const", SHAPE_ANY, 0},
    {"anyOf", SHAPE_SCHEMAS, 0},
    {"oneOf", SHAPE_SCHEMAS, 0},
    {"allOf", SHAPE_SCHEMAS, 0},
    {"$ref", SHAPE_TEXT, 0},
    {"minLength", SHAPE_COUNT, TYPE_STRING},
    {"maxLength", SHAPE_COUNT, TYPE_STRING},
    {"pattern", SHAPE_TEXT, TYPE_STRING},
    {"format", SHAPE_TEXT, TYPE_STRING},
    {"contentEncoding", SHAPE_TEXT, TYPE_STRING},
    {"minimum", SHAPE_NUMBER, TYPE_NUMBER},
    {"maximum", SHAPE_NUMBER, TYPE_NUMBER},
    {"exclusiveMinimum", SHAPE_BOUND, TYPE_NUMBER},
    {"exclusiveMaximum", SHAPE_BOUND, TYPE_NUMBER},
    {"multipleOf", SHAPE_STEP, TYPE_NUMBER},
    {"properties", SHAPE_MEMBERS, TYPE_OBJECT},
    {"required", SHAPE_NAMES, TYPE_OBJECT},
    {"additionalProperties", SHAPE_SCHEMA, TYPE_OBJECT},
    {"propertyNames", SHAPE_SCHEMA, TYPE_OBJECT},
    {"patternProperties", SHAPE_MEMBERS, TYPE_OBJECT},
    {"minProperties", SHAPE_COUNT, TYPE_OBJECT},
    {"maxProperties", SHAPE_COUNT, TYPE_OBJECT},
    {"items", SHAPE_ITEMS, TYPE_ARRAY},
    {"additionalItems", SHAPE_SCHEMA, TYPE_ARRAY},
    {"prefixItems", SHAPE_SCHEMAS, TYPE_ARRAY},
    {"minItems", SHAPE_COUNT, TYPE_ARRAY},
    {"maxItems", SHAPE_COUNT, TYPE_ARRAY},
    {"uniqueItems", SHAPE_FLAG, TYPE_ARRAY},
};

/* ---- the writer ---- */

int schema_fail(struct schema_writer *w, int code, const char *key, const char *what)
{
    if (!w->rc)
        w->rc = err_set(w->e, code, "%s: #%.300s%s%s: %s", w->name, str_text(&w->path), key ? "/" : "",
                        key ? key : "", what);
    return w->rc;
}

size_t schema_path_add(struct schema_writer *w, const char *key)
{
    size_t before = w->path.len;
    str_addf(&w->path, "/%.60s", key);
    return before;
}

void schema_path_back(struct schema_writer *w, size_t len)
{
    if (str_ok(&w->path))
        w->path.data[w->path.len = len] = '\0';
}

unsigned schema_new_rule(struct schema_writer *w)
{
    if (w->n_rules >= GRAMMAR_MAX_RULES)
        schema_fail(w, ERR_UNSUPPORTED, NULL, "more rules than 8192");
    return w->n_rules++;
}

void schema_write_rule(struct schema_writer *w, unsigned rule, const struct str *body)
{
    if (!w->rc && (!str_ok(body) || !str_ok(w->out)))
        w->rc = err_set(w->e, ERR_MEMORY, "out of memory for the grammar of %s", w->name);
    if (!w->rc)
        str_addf(w->out, "r%u ::= %s\n", rule, str_text(body));
}

/* ---- types ---- */

static void add_type(struct schema_writer *w, const json_t *schema, const char *type, struct str *body)
{
    if (strcmp(type, "string") == 0)
        schema_add_string(w, schema, body);
    else if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        schema_add_number(w, schema, type[0] == 'n', body);
    else if (strcmp(type, "object") == 0)
        schema_add_object(w, schema, body);
    else if (strcmp(type, "array") == 0)
        schema_add_array(w, schema, body);
    else if (strcmp(type, "boolean") == 0)
        str_add_text(body, "boolean");
    else
        str_add_text(body, "\"null\"");
}

/* Returns the types whose keywords the schema has. */
static unsigned implied_types(const json_t *schema)
{
    unsigned types = 0;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (json_object_get(schema, keywords[i].key))
            types |= keywords[i].type;
    return types;
}

/* Adds a schema without "type": its keywords imply the types. */
static void add_implied(struct schema_writer *w, const json_t *schema, struct str *body)
{
    static const char *const names[] = {"string", "number", "object", "array"};
    unsigned types = w->plain ? TYPE_STRING : implied_types(schema);
    if (types == 0) {
        str_add_text(body, "value");
        return;
    }
    str_add_text(body, "(");
    for (unsigned i = 0, n = 0; i < 4; i++)
        if (types >> i & 1) {
            str_add_text(body, n++ ? " | " : "");
            add_type(w, schema, names[i], body);
        }
    str_add_text(body, ")");
}

static void add_types(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *types = json_object_get(schema, "type"), *one;
    const char *between = "(";
    size_t i;
    if (!types) {
        add_implied(w, schema, body);
        return;
    }
    json_array_foreach(types, i, one)
    {
        if (w->plain && !json_is_text(one, "string") && !json_is_text(one, "null"))
            continue;
        str_add_text(body, between);
        add_type(w, schema, json_string_value(one), body);
        between = " | ";
    }
    str_add_text(body, *between == '(' ? SCHEMA_NEVER : ")");
}

/* ---- lists of values ---- */

/* Returns whether the value can be written without quotes. */
static bool is_plain(const json_t *value)
{
    const char *text = json_string_value(value);
    return json_is_null(value) || (text && !memchr(text, '<', json_string_length(value)) &&
                                   !memchr(text, '\0', json_string_length(value)));
}

static void add_values(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *value;
    const char *between = "(";
    bool not_plain = false;
    size_t i;
    json_array_foreach(json_object_get(schema, "enum"), i, value)
    {
        if (!schema_fits(w, schema, value))
            continue;
        if (w->plain && !is_plain(value)) {
            not_plain = true;
            continue;
        }
        str_add_text(body, between);
        if (w->plain && json_is_string(value))
            schema_add_literal(json_string_value(value), json_string_length(value), body);
        else
            schema_add_value(w, value, body);
        between = " | ";
    }
    if (*between == '(' && not_plain)
        schema_fail(w, ERR_UNSUPPORTED, "enum", "expected a text without <");
    str_add_text(body, *between == '(' ? SCHEMA_NEVER : ")");
}

/* ---- schemas of schemas ---- */

static void add_flat(struct schema_writer *w, const json_t *schema, struct str *body);

static void add_rule(struct schema_writer *w, const json_t *schema, struct str *body)
{
    struct str own = {0};
    unsigned rule = schema_new_rule(w);
    add_flat(w, schema, &own);
    schema_write_rule(w, rule, &own);
    str_addf(body, "r%u", rule);
    str_free(&own);
}

/* Returns schema i of a oneOf, narrowed to values that fit none of the others; NULL with rc set. */
static const json_t *only_one(struct schema_writer *w, const json_t *list, size_t i)
{
    const json_t *flat = schema_canonical(w, json_array_get(list, i));
    for (size_t k = 0; k < json_array_size(list) && !w->rc; k++) {
        const char *member;
        if (k == i)
            continue;
        if (!schema_are_disjoint(w, json_array_get(list, i), json_array_get(list, k), &member) && !w->rc)
            schema_fail(w, ERR_UNSUPPORTED, NULL,
                        "a value may fit this schema and another (anyOf allows that)");
        /* Values that have the member fit only one of the two. */
        if (member && !w->rc)
            flat = schema_merge_new(w, flat, json_pack("{s:[s]}", "required", member));
    }
    return w->rc ? NULL : flat;
}

/* Adds one alternative for each schema under `key`, merged with the other keywords of the schema. */
static void add_branches(struct schema_writer *w, const json_t *schema, const char *key, struct str *body)
{
    const json_t *list = json_object_get(schema, key), *one, *rest = schema_without(w, schema, key);
    size_t i, before = schema_path_add(w, key);
    const char *between = "(";
    json_array_foreach(list, i, one)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        if (w->rc || (w->plain && !(json_schema_kinds(w->root, one) & JSON_SCHEMA_PLAIN)))
            continue;
        size_t inner = schema_path_add(w, number);
        const json_t *flat = key[0] == 'o' ? only_one(w, list, i) : schema_canonical(w, one);
        str_add_text(body, between);
        between = " | ";
        /* A schema that stands alone is written once. */
        if (key[0] == 'a' && json_object_size(rest) == 0)
            schema_add(w, one, body);
        else if ((flat = schema_merge(w, rest, flat)))
            add_rule(w, flat, body);
        schema_path_back(w, inner);
    }
    str_add_text(body, *between == '(' ? SCHEMA_NEVER : ")");
    schema_path_back(w, before);
}

/* Returns the schema that a $ref without other keywords names, after references to references; the schema
 * itself if there is none; NULL with rc set. */
static const json_t *follow(struct schema_writer *w, const json_t *schema)
{
    for (int i = 0; schema && json_object_get(schema, "$ref"); i++) {
        const json_t *flat = schema_canonical(w, schema);
        if (!flat || json_object_size(flat) > 1)
            return flat ? schema : NULL;
        if (i == SCHEMA_MAX_DEPTH)
            schema_fail(w, ERR_FORMAT, "$ref", "refers to itself");
        schema = w->rc ? NULL : schema_resolve(w, json_object_get(schema, "$ref"));
    }
    return schema;
}

/* ---- a schema ---- */

static bool has_shape(enum shape shape, const json_t *value);

static bool all_have(enum shape shape, const json_t *list)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) if (!has_shape(shape, one)) return false;
    return json_is_array(list);
}

static bool is_type(const json_t *value)
{
    static const char *const names[] = {"string", "number", "integer", "boolean", "object", "array", "null"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !json_is_text(value, names[i]))
        i++;
    return i < sizeof names / sizeof *names;
}

static bool has_shape(enum shape shape, const json_t *value)
{
    switch (shape) {
    case SHAPE_ANY:
        return true;
    case SHAPE_SCHEMA:
        return json_is_object(value) || json_is_boolean(value);
    case SHAPE_SCHEMAS:
        return all_have(SHAPE_SCHEMA, value) && json_array_size(value) > 0;
    case SHAPE_ITEMS:
        return has_shape(SHAPE_SCHEMA, value) || all_have(SHAPE_SCHEMA, value);
    case SHAPE_MEMBERS:
        return json_is_object(value);
    case SHAPE_COUNT:
        return json_is_number(value) && json_number_value(value) >= 0 &&
               (json_is_integer(value) || floor(json_real_value(value)) == json_real_value(value));
    case SHAPE_NUMBER:
        return json_is_number(value);
    case SHAPE_BOUND:
        return json_is_number(value) || json_is_boolean(value);
    case SHAPE_STEP:
        return json_is_number(value) && json_number_value(value) > 0;
    case SHAPE_TEXT:
        return json_is_string(value);
    case SHAPE_FLAG:
        return json_is_boolean(value);
    case SHAPE_NAMES:
        return all_have(SHAPE_TEXT, value);
    case SHAPE_VALUES:
        return json_is_array(value);
    case SHAPE_TYPES:
        break;
    }
    return is_type(value) || (all_have(SHAPE_TYPES, value) && json_array_size(value) > 0);
}

void schema_check_keyword(struct schema_writer *w, const char *key, const json_t *value)
{
    static const char *const expected[] = {
        [SHAPE_ANY] = "a value",
        [SHAPE_SCHEMA] = "a schema: an object, true or false",
        [SHAPE_SCHEMAS] = "a list of schemas",
        [SHAPE_ITEMS] = "a schema or a list of schemas",
        [SHAPE_MEMBERS] = "an object of schemas",
        [SHAPE_COUNT] = "a whole number of 0 or more",
        [SHAPE_NUMBER] = "a number",
        [SHAPE_BOUND] = "a number",
        [SHAPE_STEP] = "a number over 0",
        [SHAPE_TEXT] = "a text",
        [SHAPE_FLAG] = "true or false",
        [SHAPE_NAMES] = "a list of names",
        [SHAPE_TYPES] = "string, number, integer, boolean, object, array or null, or a list of them",
        [SHAPE_VALUES] = "a list of values",
    };
    size_t i = 0;
    while (i < sizeof keywords / sizeof *keywords && strcmp(keywords[i].key, key) != 0)
        i++;
    if (i == sizeof keywords / sizeof *keywords) {
        if (!json_schema_is_annotation(key))
            schema_fail(w, ERR_UNSUPPORTED, quote_bytes(key, strlen(key)).text,
                        "this keyword is not supported");
        return;
    }
    if (!has_shape(keywords[i].shape, value)) {
        char text[120];
        snprintf(text, sizeof text, "expected %s", expected[keywords[i].shape]);
        schema_fail(w, ERR_FORMAT, key, text);
    }
}

uint32_t schema_count(struct schema_writer *w, const json_t *schema, const char *key, uint32_t otherwise)
{
    const json_t *value = json_object_get(schema, key);
    double n = json_number_value(value);
    if (!value)
        return otherwise;
    if (n > SCHEMA_MAX_COUNT && key[1] == 'i')
        schema_fail(w, ERR_UNSUPPORTED, key, "expected at most 1048576");
    /* No answer is so long: a larger maximum is not one. */
    return n > SCHEMA_MAX_COUNT ? otherwise : (uint32_t)n;
}

/* Adds a schema in canonical form. */
static void add_flat(struct schema_writer *w, const json_t *schema, struct str *body)
{
    schema = w->rc ? NULL : schema_flatten(w, schema);
    if (!schema)
        return;
    if (w->depth == SCHEMA_MAX_DEPTH) {
        schema_fail(w, ERR_UNSUPPORTED, NULL, "schemas nested deeper than 64");
        return;
    }
    w->depth++;
    if (json_is_false(schema))
        str_add_text(body, SCHEMA_NEVER);
    else if (json_object_get(schema, "anyOf"))
        add_branches(w, schema, "anyOf", body);
    else if (json_object_get(schema, "oneOf"))
        add_branches(w, schema, "oneOf", body);
    else if (json_object_get(schema, "enum"))
        add_values(w, schema, body);
    else
        add_types(w, schema, body);
    w->depth--;
}

/* Every schema has its own rule, so it may be recursive. */
void schema_add(struct schema_writer *w, const json_t *schema, struct str *body)
{
    schema = w->rc ? NULL : follow(w, schema);
    if (!schema)
        return;
    for (size_t i = 0; i < w->n_met; i++)
        if (w->met[i].schema == schema) {
            str_addf(body, "r%u", w->met[i].rule);
            return;
        }
    if (json_is_boolean(schema)) {
        str_add_text(body, json_is_false(schema) ? SCHEMA_NEVER : w->plain ? "plain" : "value");
        return;
    }
    if (w->n_met == JSON_SCHEMA_MAX_VALUES / 4) {
        schema_fail(w, ERR_UNSUPPORTED, NULL, "more than 8192 schemas");
        return;
    }
    const json_t *flat = schema_canonical(w, schema);
    if (!flat)
        return;
    if (mem_grow((void **)&w->met, &w->cap_met, w->n_met + 1, sizeof *w->met, w->e)) {
        w->rc = ERR_MEMORY;
        return;
    }
    struct str own = {0};
    unsigned rule = schema_new_rule(w);
    w->met[w->n_met++] = (struct schema_rule){schema, rule};
    add_flat(w, flat, &own);
    schema_write_rule(w, rule, &own);
    str_addf(body, "r%u", rule);
    str_free(&own);
}

void json_schema_add_json(const char *quote, struct str *out)
{
    static const char json_quote[] = "\"\\\"\"";
    struct str text = {0};
    str_addf(&text, "%s*", schema_char);
    str_addf(out, common, quote ? quote : json_quote, quote ? "plain" : str_text(&text),
             quote ? quote : json_quote, quote ? "name" : "string");
    if (quote)
        str_add_text(out, "name ::= [^:{}\\[\\],\"<> \\t\\r\\n\\x00]{1,64}\n");
    out->failed |= !str_ok(&text);
    str_free(&text);
}

int json_schema_add(struct json_schema_part *p, const json_t *schema, bool plain, struct str *expression,
                    struct moeflux_err *e)
{
    struct schema_writer w = {.root = p->root,
                              .name = p->name,
                              .out = p->out,
                              .n_rules = p->n_rules,
                              .plain = plain,
                              .quote = p->quote,
                              .merged = json_array(),
                              .meets = json_array(),
                              .e = e};
    str_add_text(&w.path, p->path ? p->path : "");
    if (!w.merged || !w.meets || !str_ok(&w.path))
        w.rc = err_set(e, ERR_MEMORY, "out of memory for the schema");
    schema_add(&w, schema, expression);
    if (!w.rc && (!str_ok(expression) || !str_ok(p->out)))
        w.rc = err_set(e, ERR_MEMORY, "out of memory for the grammar of %s", p->name);
    p->n_rules = w.n_rules;
    free(w.met);
    json_decref(w.merged);
    json_decref(w.meets);
    str_free(&w.path);
    return w.rc;
}

int json_schema_to_grammar(const json_t *schema, const char *name, struct str *out, struct moeflux_err *e)
{
    struct json_schema_part p = {.root = schema, .name = name, .out = out};
    struct str root = {0};
    json_schema_add_json(NULL, out);
    int rc = json_schema_add(&p, schema, false, &root, e);
    str_addf(out, "root ::= %s\n", str_text(&root));
    str_free(&root);
    return rc;
}

int json_schema_text_to_grammar(const char *text, size_t len, const char *name, struct str *out,
                                struct moeflux_err *e)
{
    json_t *schema;
    if (len > JSON_SCHEMA_MAX_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "%s: a schema of %zu bytes, expected at most %d", name, len,
                       JSON_SCHEMA_MAX_BYTES);
    int rc = json_read(text, len, name, JSON_SCHEMA_MAX_VALUES, &schema, e);
    if (rc)
        return rc;
    rc = json_schema_to_grammar(schema, name, out, e);
    json_decref(schema);
    return rc;
}
