#include "text/grammar/schema_objects.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/grammar/schema_writer.h"

enum { MAX_UNIQUE = 32 };

/* ---- objects ---- */

struct member {
    const char *name;
    bool required;
    struct str text; /* expression of name, colon and value */
};

struct members {
    struct member *items;
    size_t n;
    struct str others;    /* expression of a member that the schema does not name; empty: none is allowed */
    uint32_t least, most; /* members; most UINT32_MAX: no limit */
};

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *names = json_object_get(schema, "required");
    bool found = false;
    for (size_t i = 0; i < json_array_size(names) && !found; i++)
        found = json_is_text(json_array_get(names, i), name);
    return found;
}

static void add_member(struct schema_writer *w, struct members *m, const char *name, const json_t *value,
                       bool required)
{
    struct member *item = &m->items[m->n++];
    *item = (struct member){.name = name, .required = required};
    schema_add_name(w, name, &item->text);
    str_add_text(&item->text, " \":\" sp ");
    schema_add(w, value, &item->text);
}

/* Returns the schema of the names, NULL if any name fits: canonical, with the type string. */
static const json_t *names_of(struct schema_writer *w, const json_t *schema)
{
    const json_t *names = json_object_get(schema, "propertyNames");
    size_t before = schema_path_add(w, "propertyNames");
    const json_t *flat = names && !w->rc ? schema_canonical(w, names) : NULL;
    if (flat)
        flat = schema_flatten(w, schema_merge_new(w, flat, json_pack("{s:[s]}", "type", "string")));
    schema_path_back(w, before);
    return flat;
}

/* Returns whether a member may have this name. */
static bool fits_names(struct schema_writer *w, const json_t *names, const char *name)
{
    json_t *text = names ? json_string(name) : NULL;
    if (names && (json_object_get(names, "anyOf") || json_object_get(names, "oneOf")))
        schema_fail(w, ERR_UNSUPPORTED, "propertyNames", "anyOf or oneOf together with names of members");
    bool fits = !names || schema_fits(w, names, text);
    json_decref(text);
    return fits;
}

/* Returns the members that the schema names, {name: schema}, with false for names that may not be there:
 * those of "properties" in order, then those of "required", then those that propertyNames lists. The caller
 * releases it. */
static json_t *list_members(struct schema_writer *w, const json_t *schema, const json_t *names)
{
    const json_t *others = json_object_get(schema, "additionalProperties"), *value;
    const json_t *lists[] = {json_object_get(schema, "required"), json_object_get(names, "enum")};
    json_t *all = json_object();
    const char *key;
    size_t i;
    json_object_foreach(json_object_get(schema, "properties"), key, value)
    {
        json_object_set(all, key, fits_names(w, names, key) ? (json_t *)(uintptr_t)value : json_false());
    }
    for (int k = 0; k < 2; k++)
        json_array_foreach(lists[k], i, value)
        {
            const char *name = json_string_value(value);
            /* Without additionalProperties, members are those of "properties". */
            if (k == 1 && (!json_is_string(value) || (!others && json_object_get(schema, "properties"))))
                continue;
            if (!name || strlen(name) != json_string_length(value))
                schema_fail(w, ERR_UNSUPPORTED, k ? "propertyNames" : "required", "a name with a NUL");
            else if (!json_object_get(all, name))
                json_object_set(all, name,
                                !fits_names(w, names, name) ? json_false()
                                : others                    ? (json_t *)(uintptr_t)others
                                                            : json_true());
        }
    return all;
}

/* Fills the named members. */
static void find_members(struct schema_writer *w, const json_t *schema, const json_t *members,
                         struct members *m)
{
    const char *key;
    json_t *value;
    m->items = mem_new(json_object_size(members) + 1, sizeof *m->items, w->e);
    if (!m->items) {
        w->rc = ERR_MEMORY;
        return;
    }
    size_t before = schema_path_add(w, "properties");
    json_object_foreach((json_t *)(uintptr_t)members, key, value)
    {
        size_t inner = schema_path_add(w, key);
        if (!w->rc)
            add_member(w, m, key, value, is_required(schema, key));
        schema_path_back(w, inner);
    }
    schema_path_back(w, before);
}

/* Fills m->others. Members that the schema does not name follow those that it names. */
static void find_others(struct schema_writer *w, const json_t *schema, const json_t *names_schema,
                        struct members *m)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (json_is_false(others) || json_is_false(names_schema) || json_object_get(names_schema, "enum") ||
        ((!others || w->quote) && m->n > 0) || w->rc)
        return;
    if (names_schema && (m->n > 0 || w->quote)) {
        schema_fail(w, ERR_UNSUPPORTED, "propertyNames",
                    "together with properties and additionalProperties, unless it lists the names");
        return;
    }
    const char **names = mem_new(m->n, sizeof *names, w->e);
    if (!names) {
        w->rc = ERR_MEMORY;
        return;
    }
    for (size_t i = 0; i < m->n; i++)
        names[i] = m->items[i].name;
    size_t before = schema_path_add(w, "additionalProperties");
    if (names_schema)
        schema_add(w, names_schema, &m->others);
    else
        schema_add_other_name(w, names, m->n, &m->others);
    str_add_text(&m->others, " \":\" sp ");
    if (others)
        schema_add(w, others, &m->others);
    else
        str_add_text(&m->others, "value");
    schema_path_back(w, before);
    free(names);
}

/* Writes two rules for each place between members, from the last place backwards: `next` for the rest if a
 * member came before, `first` if none did. *first: the rule of the whole list. */
static void write_places(struct schema_writer *w, const struct members *m, unsigned *first)
{
    struct str body = {0};
    unsigned next = schema_new_rule(w);
    *first = schema_new_rule(w);
    if (m->others.len) {
        str_addf(&body, "(\",\" ws %s){0,", str_text(&m->others));
        if (m->most != UINT32_MAX)
            str_addf(&body, "%u", m->most - 1);
        str_add_text(&body, "} ws");
        schema_write_rule(w, next, &body);
        str_clear(&body);
        str_addf(&body, "(%s r%u)%s", str_text(&m->others), next, m->n == 0 && m->least == 1 ? "" : "?");
    } else {
        str_add_text(&body, "ws");
        schema_write_rule(w, next, &body);
        str_clear(&body);
        str_add_text(&body, "\"\"");
    }
    schema_write_rule(w, *first, &body);
    for (size_t i = m->n; i-- > 0 && !w->rc;) {
        const struct member *item = &m->items[i];
        unsigned own_next = schema_new_rule(w), own_first = schema_new_rule(w);
        str_clear(&body);
        str_addf(&body, "\",\" ws %s r%u", str_text(&item->text), next);
        if (!item->required)
            str_addf(&body, " | r%u", next);
        schema_write_rule(w, own_next, &body);
        str_clear(&body);
        str_addf(&body, "%s r%u", str_text(&item->text), next);
        if (!item->required)
            str_addf(&body, " | r%u", *first);
        schema_write_rule(w, own_first, &body);
        next = own_next;
        *first = own_first;
    }
    str_free(&body);
}

/* Checks the number of possible members against minProperties and maxProperties. A name may be written twice,
 * so members without names in the schema count as one. */
static void limit_members(struct schema_writer *w, const json_t *schema, struct members *m)
{
    uint32_t n_required = 0;
    m->least = schema_count(w, schema, "minProperties", 0);
    m->most = schema_count(w, schema, "maxProperties", UINT32_MAX);
    for (size_t i = 0; i < m->n; i++)
        n_required += m->items[i].required;
    if (m->most == 0 && m->n == 0)
        str_clear(&m->others);
    if (m->least > n_required && !(m->least == 1 && m->n == 0 && m->others.len > 0))
        schema_fail(w, ERR_UNSUPPORTED, "minProperties", "expected as many names under required");
    else if (m->most < m->n || (m->most != UINT32_MAX && m->n > 0 && m->others.len > 0))
        schema_fail(w, ERR_UNSUPPORTED, "maxProperties", "less than the names under properties");
}

void schema_add_object(struct schema_writer *w, const json_t *schema, struct str *body)
{
    struct members m = {0};
    unsigned first = 0;
    const json_t *names = names_of(w, schema);
    json_t *members = list_members(w, schema, names);
    if (!members && !w->rc)
        w->rc = err_set(w->e, ERR_MEMORY, "out of memory for the schema");
    if (!w->rc)
        find_members(w, schema, members, &m);
    find_others(w, schema, names, &m);
    limit_members(w, schema, &m);
    if (!w->rc)
        write_places(w, &m, &first);
    str_addf(body, "(\"{\" ws r%u \"}\")", first);
    for (size_t i = 0; i < m.n; i++) {
        if (!str_ok(&m.items[i].text))
            body->failed = true;
        str_free(&m.items[i].text);
    }
    str_free(&m.others);
    free(m.items);
    json_decref(members);
}

/* ---- arrays ---- */

struct elements {
    const json_t *prefix; /* an array, or NULL */
    struct str item;      /* expression of an element after the prefix; empty: there are none */
    uint32_t least, most; /* elements; most UINT32_MAX: no limit */
};

static void get_items(struct schema_writer *w, const json_t *schema, struct elements *a)
{
    const json_t *items = json_object_get(schema, "items");
    size_t n = json_array_size(a->prefix);
    /* A schema that lists the first elements allows only those. */
    if (json_is_false(items) || (!items && n > 0 && a->least <= n))
        return;
    size_t before = schema_path_add(w, "items");
    if (items)
        schema_add(w, items, &a->item);
    else
        str_add_text(&a->item, "value");
    schema_path_back(w, before);
}

/* Adds ("," ws item){...} with the limits that are left after n elements. */
static void add_more(const struct elements *a, uint32_t n, struct str *body)
{
    uint32_t least = a->least > n ? a->least - n : 0;
    if (!a->item.len || a->most <= n)
        return;
    str_addf(body, " (\",\" ws %s){%u,", str_text(&a->item), least);
    if (a->most != UINT32_MAX)
        str_addf(body, "%u", a->most - n);
    str_add_text(body, "}");
}

/* Writes a rule for what follows the first i elements of the prefix, from the last i backwards. Returns the
 * rule of i = 0. */
static unsigned write_prefix(struct schema_writer *w, const struct elements *a)
{
    uint32_t n = (uint32_t)json_array_size(a->prefix);
    struct str body = {0};
    n = n < a->most ? n : a->most;
    str_add_text(&body, "\"\"");
    add_more(a, n, &body);
    unsigned rule = schema_new_rule(w);
    schema_write_rule(w, rule, &body);
    for (uint32_t i = n; i-- > 0 && !w->rc;) {
        char number[16];
        unsigned next = rule;
        snprintf(number, sizeof number, "%u", i);
        size_t outer = schema_path_add(w, "prefixItems"), inner = schema_path_add(w, number);
        str_clear(&body);
        str_add_text(&body, i ? "\",\" ws " : "");
        schema_add(w, json_array_get(a->prefix, i), &body);
        str_addf(&body, " r%u%s", next, i >= a->least ? " | \"\"" : "");
        rule = schema_new_rule(w);
        schema_write_rule(w, rule, &body);
        schema_path_back(w, inner);
        schema_path_back(w, outer);
    }
    str_free(&body);
    return rule;
}

/* Returns the listed values that the elements may have; NULL: there is no list. Released by the caller. */
static json_t *values_of_items(struct schema_writer *w, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *value;
    size_t i;
    const json_t *flat = items && !json_object_get(schema, "prefixItems") ? schema_canonical(w, items) : NULL;
    flat = flat ? schema_flatten(w, flat) : NULL;
    const json_t *list = json_object_get(flat, "enum"), *types = json_object_get(flat, "type");
    if (!list && json_array_size(types) == 1 && json_is_text(json_array_get(types, 0), "boolean"))
        return json_pack("[b,b]", 0, 1);
    if (!list || json_object_get(flat, "anyOf") || json_object_get(flat, "oneOf"))
        return NULL;
    json_t *values = json_array();
    json_array_foreach(list, i, value)
    {
        bool is_new = true;
        for (size_t k = 0; k < json_array_size(values); k++)
            is_new = is_new && !schema_values_equal(value, json_array_get(values, k));
        if (is_new && schema_fits(w, flat, value) &&
            json_array_append(values, (json_t *)(uintptr_t)value) < 0)
            w->rc = ERR_MEMORY;
    }
    return values;
}

/* Writes the rules for elements that are all different, in the order of the list: one rule for each value
 * that may be next and each number of elements before it. Returns the rule of the whole list. */
static unsigned write_unique(struct schema_writer *w, const json_t *values, uint32_t least, uint32_t most)
{
    size_t n = json_array_size(values);
    unsigned rules[2][MAX_UNIQUE + 2] = {{0}};
    struct str body = {0};
    most = most < n ? most : (uint32_t)n;
    for (size_t i = n + 1; i-- > 0 && !w->rc;)
        for (uint32_t k = 0; k <= (i < most ? i : most); k++) {
            str_clear(&body);
            str_add_text(&body, k >= least ? "\"\"" : SCHEMA_NEVER);
            if (i < n) {
                str_clear(&body);
                str_addf(&body, "r%u", rules[(i + 1) % 2][k]);
            }
            if (i < n && k < most) {
                str_add_text(&body, k ? " | \",\" ws " : " | ");
                schema_add_value(w, json_array_get(values, i), &body);
                str_addf(&body, " r%u", rules[(i + 1) % 2][k + 1]);
            }
            rules[i % 2][k] = schema_new_rule(w);
            schema_write_rule(w, rules[i % 2][k], &body);
        }
    str_free(&body);
    return rules[0][0];
}

static void add_unique(struct schema_writer *w, const json_t *schema, const struct elements *a,
                       struct str *body)
{
    json_t *values = values_of_items(w, schema);
    if (!w->rc && (!values || json_array_size(values) > MAX_UNIQUE))
        schema_fail(w, ERR_UNSUPPORTED, "uniqueItems",
                    "true, unless the schema of the elements lists at most 32 values");
    if (!w->rc)
        str_addf(body, "(\"[\" ws r%u ws \"]\")", write_unique(w, values, a->least, a->most));
    json_decref(values);
}

void schema_add_array(struct schema_writer *w, const json_t *schema, struct str *body)
{
    struct elements a = {.prefix = json_object_get(schema, "prefixItems"),
                         .least = schema_count(w, schema, "minItems", 0),
                         .most = schema_count(w, schema, "maxItems", UINT32_MAX)};
    bool is_unique = json_is_true(json_object_get(schema, "uniqueItems")) && a.most > 1;
    if (!w->rc && !is_unique)
        get_items(w, schema, &a);
    if (w->rc) {
        str_free(&a.item);
        return;
    }
    size_t n = json_array_size(a.prefix);
    if (a.least > a.most || (!is_unique && !a.item.len && a.least > n)) {
        str_add_text(body, SCHEMA_NEVER);
    } else if (is_unique) {
        add_unique(w, schema, &a, body);
    } else if (a.most == 0 || (n == 0 && !a.item.len)) {
        str_add_text(body, "(\"[\" ws \"]\")");
    } else if (n > 0) {
        str_addf(body, "(\"[\" ws r%u ws \"]\")", write_prefix(w, &a));
    } else {
        str_addf(body, "(\"[\" ws (%s", str_text(&a.item));
        add_more(&a, 1, body);
        str_addf(body, " ws)%s \"]\")", a.least == 0 ? "?" : "");
    }
    if (!str_ok(&a.item))
        body->failed = true;
    str_free(&a.item);
}
