#include "text/grammar/json_schema.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/grammar/schema_objects.h"
#include "text/grammar/schema_writer.h"

enum { MAX_DEPTH = 64, MAX_LENGTH = 1 << 20 };

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
                             "value ::= object | array | string | number | boolean | \"null\"\n";

/* Keywords that restrict values, and the type whose values they restrict. */
static const struct keyword {
    const char *key;
    enum type { TYPE_STRING = 1, TYPE_NUMBER = 2, TYPE_OBJECT = 4, TYPE_ARRAY = 8 } type; /* 0: all types */
} keywords[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"allOf", 0},
    {"$ref", 0},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"pattern", TYPE_STRING},
    {"format", TYPE_STRING},
    {"minimum", TYPE_NUMBER},
    {"maximum", TYPE_NUMBER},
    {"exclusiveMinimum", TYPE_NUMBER},
    {"exclusiveMaximum", TYPE_NUMBER},
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
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
    return w->n_rules++;
}

void schema_write_rule(struct schema_writer *w, unsigned rule, const struct str *body)
{
    if (!w->rc && (!str_ok(body) || !str_ok(w->out)))
        w->rc = err_set(w->e, ERR_MEMORY, "out of memory for the grammar of %s", w->name);
    if (!w->rc)
        str_addf(w->out, "r%u ::= %s\n", rule, str_text(body));
}

/* ---- texts and numbers ---- */

/* Reads a count. Returns false if the schema does not have the keyword. */
static bool get_count(struct schema_writer *w, const json_t *schema, const char *key, uint32_t *out)
{
    const json_t *value = json_object_get(schema, key);
    json_int_t n = json_integer_value(value);
    if (!value)
        return false;
    if (!json_is_integer(value) || n < 0)
        schema_fail(w, ERR_FORMAT, key, "expected a whole number of 0 or more");
    else if (n > MAX_LENGTH)
        schema_fail(w, ERR_UNSUPPORTED, key, "expected at most 1048576");
    *out = (uint32_t)n;
    return true;
}

static void add_string(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    const char *quote = schema_quote(w);
    uint32_t least = 0, most = 0;
    bool has_least = get_count(w, schema, "minLength", &least),
         has_most = get_count(w, schema, "maxLength", &most);
    if ((pattern != NULL) + (format != NULL) + (has_least || has_most) > 1)
        schema_fail(w, ERR_UNSUPPORTED, NULL, "pattern, format and minLength or maxLength together");
    if (has_most && most < least)
        schema_fail(w, ERR_FORMAT, "maxLength", "less than minLength");
    if (pattern && !json_is_string(pattern)) {
        schema_fail(w, ERR_FORMAT, "pattern", "expected a text");
    } else if (pattern) {
        schema_add_pattern(w, json_string_value(pattern), json_string_length(pattern), body);
    } else if (format) {
        const char *text = json_is_string(format) ? schema_format(json_string_value(format)) : NULL;
        if (!text)
            schema_fail(w, ERR_UNSUPPORTED, "format", "expected date, time, date-time or uuid");
        str_addf(body, "(%s %s %s)", quote, text ? text : "", quote);
    } else if (has_least || has_most) {
        str_addf(body, "(%s %s{%u,", quote, schema_one_char(w), least);
        if (has_most)
            str_addf(body, "%u", most);
        str_addf(body, "} %s)", quote);
    } else {
        str_add_text(body, w->plain ? "plain" : "string");
    }
}

static void get_bound(struct schema_writer *w, const json_t *schema, const char *key, bool *has, int64_t *out)
{
    const json_t *value = json_object_get(schema, key);
    double real = json_number_value(value);
    if (!value)
        return;
    if (!json_is_number(value))
        schema_fail(w, ERR_FORMAT, key, "expected a number");
    else if (!(real >= -1e16 && real <= 1e16) || real != (double)(int64_t)real)
        schema_fail(w, ERR_UNSUPPORTED, key, "expected a whole number of at most 16 digits");
    else {
        *has = true;
        *out = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    }
}

static void add_number(struct schema_writer *w, const json_t *schema, bool fractions, struct str *body)
{
    struct schema_range r = {0};
    get_bound(w, schema, "minimum", &r.has_lo, &r.lo);
    get_bound(w, schema, "maximum", &r.has_hi, &r.hi);
    if ((json_object_get(schema, "exclusiveMinimum") && r.has_lo) ||
        (json_object_get(schema, "exclusiveMaximum") && r.has_hi))
        schema_fail(w, ERR_UNSUPPORTED, NULL, "a bound and an exclusive bound at the same end");
    get_bound(w, schema, "exclusiveMinimum", &r.has_lo, &r.lo);
    get_bound(w, schema, "exclusiveMaximum", &r.has_hi, &r.hi);
    r.without_lo = json_object_get(schema, "exclusiveMinimum") != NULL;
    r.without_hi = json_object_get(schema, "exclusiveMaximum") != NULL;
    if (w->rc)
        return;
    if (r.has_lo || r.has_hi)
        schema_add_range(w, &r, fractions, body);
    else
        str_add_text(body, fractions ? "number" : "integer");
}

/* ---- types ---- */

static void add_type(struct schema_writer *w, const json_t *schema, const char *type, struct str *body)
{
    if (strcmp(type, "string") == 0)
        add_string(w, schema, body);
    else if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        add_number(w, schema, type[0] == 'n', body);
    else if (strcmp(type, "object") == 0)
        schema_add_object(w, schema, body);
    else if (strcmp(type, "array") == 0)
        schema_add_array(w, schema, body);
    else if (strcmp(type, "boolean") == 0)
        str_add_text(body, "boolean");
    else if (strcmp(type, "null") == 0)
        str_add_text(body, "\"null\"");
    else
        schema_fail(w, ERR_FORMAT, "type",
                    "expected string, number, integer, boolean, object, array or null");
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
    const json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    if (!type) {
        add_implied(w, schema, body);
    } else if (json_is_string(type)) {
        add_type(w, schema, json_string_value(type), body);
    } else if (!json_is_array(type) || json_array_size(type) == 0) {
        schema_fail(w, ERR_FORMAT, "type", "expected a text or a list of texts");
    } else {
        const char *between = "(";
        json_array_foreach(type, i, one)
        {
            if (w->plain && !json_is_text(one, "string") && !json_is_text(one, "null"))
                continue;
            str_add_text(body, between);
            add_type(w, schema, json_is_string(one) ? json_string_value(one) : "", body);
            between = " | ";
        }
        str_add_text(body, ")");
    }
}

/* ---- lists of values ---- */

static bool has_type(const json_t *value, const json_t *type)
{
    const char *name = json_string_value(type);
    const json_t *one;
    size_t i;
    if (!type)
        return true;
    json_array_foreach(type, i, one) if (has_type(value, one)) return true;
    return name && strcmp(name, json_is_null(value)                                      ? "null"
                                : json_is_boolean(value)                                 ? "boolean"
                                : json_is_string(value)                                  ? "string"
                                : json_is_array(value)                                   ? "array"
                                : json_is_object(value)                                  ? "object"
                                : json_is_integer(value) && strcmp(name, "integer") == 0 ? "integer"
                                                                                         : "number") == 0;
}

/* Returns whether the value can be written without quotes. */
static bool is_plain(const json_t *value)
{
    const char *text = json_string_value(value);
    return json_is_null(value) || (text && !memchr(text, '<', json_string_length(value)) &&
                                   !memchr(text, '\0', json_string_length(value)));
}

static void add_values(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *value;
    const char *key = only ? "const" : "enum", *between = "(";
    size_t n = only ? 1 : json_array_size(list);
    if (implied_types(schema) || (only && list)) {
        schema_fail(w, ERR_UNSUPPORTED, key, "together with keywords other than type");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        value = only ? only : json_array_get(list, i);
        if (!has_type(value, json_object_get(schema, "type")) || (w->plain && !is_plain(value)))
            continue;
        str_add_text(body, between);
        if (w->plain && json_is_string(value))
            schema_add_literal(json_string_value(value), json_string_length(value), body);
        else
            schema_add_value(w, value, body);
        between = " | ";
    }
    if (*between == '(')
        schema_fail(w, w->plain ? ERR_UNSUPPORTED : ERR_FORMAT, key,
                    w->plain ? "expected a text without <"
                             : "expected values of the type that the schema has");
    str_add_text(body, ")");
}

/* ---- schemas of schemas ---- */

/* Returns a copy of the schema without a keyword, which w->merged owns; NULL with rc set. */
static const json_t *without(struct schema_writer *w, const json_t *schema, const char *key)
{
    json_t *rest = json_copy((json_t *)(uintptr_t)schema);
    if (!rest || json_array_append_new(w->merged, rest) < 0) {
        w->rc = w->rc ? w->rc : err_set(w->e, ERR_MEMORY, "out of memory for the schema");
        return NULL;
    }
    json_object_del(rest, key);
    return rest;
}

static bool says_something(const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) if (!schema_is_annotation(key)) return true;
    return false;
}

/* Adds one alternative for each schema under `key`, merged with the other keywords of the schema. */
static void add_branches(struct schema_writer *w, const json_t *schema, const char *key, struct str *body)
{
    const json_t *list = json_object_get(schema, key), *one, *rest = without(w, schema, key);
    size_t i, before = schema_path_add(w, key);
    if (json_array_size(list) == 0)
        schema_fail(w, ERR_FORMAT, NULL, "expected a list of schemas");
    const char *between = "(";
    json_array_foreach(list, i, one)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        if (w->plain && !(json_schema_kinds(w->root, one) & JSON_SCHEMA_PLAIN))
            continue;
        size_t inner = schema_path_add(w, number);
        for (size_t k = 0; strcmp(key, "oneOf") == 0 && k < i && !w->rc; k++)
            if (!schema_are_disjoint(w, one, json_array_get(list, k)))
                schema_fail(w, ERR_UNSUPPORTED, NULL,
                            "a value may fit this schema and one before it (anyOf allows that)");
        str_add_text(body, between);
        between = " | ";
        const json_t *both = w->rc ? NULL : says_something(rest) ? schema_merge(w, rest, one) : one;
        if (both)
            schema_add(w, both, body);
        schema_path_back(w, inner);
        if (w->rc)
            break;
    }
    str_add_text(body, ")");
    schema_path_back(w, before);
}

static void add_all(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *list = json_object_get(schema, "allOf"), *one, *all = without(w, schema, "allOf");
    size_t i, before = schema_path_add(w, "allOf");
    if (json_array_size(list) == 0)
        schema_fail(w, ERR_FORMAT, NULL, "expected a list of schemas");
    json_array_foreach(list, i, one)
    {
        for (int k = 0; k < MAX_DEPTH && !w->rc && json_object_get(one, "$ref"); k++) {
            const json_t *others = without(w, one, "$ref"),
                         *named = schema_resolve(w, json_object_get(one, "$ref"));
            one = others && named ? says_something(others) ? schema_merge(w, others, named) : named : NULL;
        }
        all = all && one && !w->rc ? schema_merge(w, all, one) : NULL;
        if (!all)
            break;
    }
    schema_path_back(w, before);
    if (all)
        schema_add(w, all, body);
}

static void add_ref(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *rest = without(w, schema, "$ref"),
                 *named = schema_resolve(w, json_object_get(schema, "$ref")), *end = named;
    for (int i = 0; !w->rc && json_object_get(end, "$ref"); i++) {
        if (i == MAX_DEPTH)
            schema_fail(w, ERR_FORMAT, "$ref", "refers to itself");
        else
            end = schema_resolve(w, json_object_get(end, "$ref"));
    }
    if (w->rc)
        return;
    named = says_something(rest) ? schema_merge(w, rest, named) : named;
    if (named)
        schema_add(w, named, body);
}

/* ---- a schema ---- */

static void check_keywords(struct schema_writer *w, const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        size_t i = 0;
        while (i < sizeof keywords / sizeof *keywords && strcmp(keywords[i].key, key) != 0)
            i++;
        if (i == sizeof keywords / sizeof *keywords && !schema_is_annotation(key))
            schema_fail(w, ERR_UNSUPPORTED, quote_bytes(key, strlen(key)).text,
                        "this keyword is not supported");
    }
}

static void add_object_schema(struct schema_writer *w, const json_t *schema, struct str *body)
{
    check_keywords(w, schema);
    if (w->rc)
        return;
    if (json_object_get(schema, "$ref"))
        add_ref(w, schema, body);
    else if (json_object_get(schema, "allOf"))
        add_all(w, schema, body);
    else if (json_object_get(schema, "anyOf"))
        add_branches(w, schema, "anyOf", body);
    else if (json_object_get(schema, "oneOf"))
        add_branches(w, schema, "oneOf", body);
    else if (json_object_get(schema, "const") || json_object_get(schema, "enum"))
        add_values(w, schema, body);
    else
        add_types(w, schema, body);
}

/* Every schema has its own rule, so it may be recursive. */
void schema_add(struct schema_writer *w, const json_t *schema, struct str *body)
{
    if (w->rc)
        return;
    for (size_t i = 0; i < w->n_met; i++)
        if (w->met[i].schema == schema) {
            str_addf(body, "r%u", w->met[i].rule);
            return;
        }
    if (json_is_true(schema)) {
        str_add_text(body, w->plain ? "plain" : "value");
        return;
    }
    if (!json_is_object(schema)) {
        schema_fail(w, ERR_FORMAT, NULL,
                    json_is_false(schema) ? "false: no value fits" : "expected a schema: an object or true");
        return;
    }
    if (w->depth == MAX_DEPTH || w->n_met == JSON_SCHEMA_MAX_VALUES / 4) {
        schema_fail(w, ERR_UNSUPPORTED, NULL,
                    w->depth == MAX_DEPTH ? "schemas nested deeper than 64" : "more than 8192 schemas");
        return;
    }
    if (mem_grow((void **)&w->met, &w->cap_met, w->n_met + 1, sizeof *w->met, w->e)) {
        w->rc = ERR_MEMORY;
        return;
    }
    struct str own = {0};
    unsigned rule = schema_new_rule(w);
    w->met[w->n_met++] = (struct schema_rule){schema, rule};
    w->depth++;
    add_object_schema(w, schema, &own);
    w->depth--;
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
                              .e = e};
    str_add_text(&w.path, p->path ? p->path : "");
    if (!w.merged || !str_ok(&w.path))
        w.rc = err_set(e, ERR_MEMORY, "out of memory for the schema");
    schema_add(&w, schema, expression);
    if (!w.rc && (!str_ok(expression) || !str_ok(p->out)))
        w.rc = err_set(e, ERR_MEMORY, "out of memory for the grammar of %s", p->name);
    p->n_rules = w.n_rules;
    free(w.met);
    json_decref(w.merged);
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
