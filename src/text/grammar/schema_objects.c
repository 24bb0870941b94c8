#include "text/grammar/schema_objects.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/grammar/schema_writer.h"

/* ---- objects ---- */

struct member {
    const char *name;
    bool required;
    struct str text; /* expression of name, colon and value */
};

struct members {
    struct member *items;
    size_t n;
    struct str others; /* expression of a member that the schema does not name; empty: none is allowed */
};

bool schema_requires(const struct json_t *schema, const char *name)
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

/* Fills the named members: those of "properties" in order, then those that only "required" names. */
static void find_members(struct schema_writer *w, const json_t *schema, struct members *m)
{
    json_t *properties = json_object_get(schema, "properties"),
           *required = json_object_get(schema, "required");
    const json_t *others = json_object_get(schema, "additionalProperties"), *item;
    const char *key;
    json_t *value;
    size_t i, before;
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required))) {
        schema_fail(w, ERR_FORMAT, NULL, "expected an object under properties and a list under required");
        return;
    }
    m->items = mem_new(json_object_size(properties) + json_array_size(required), sizeof *m->items, w->e);
    if (!m->items) {
        w->rc = ERR_MEMORY;
        return;
    }
    before = schema_path_add(w, "properties");
    json_object_foreach(properties, key, value)
    {
        size_t inner = schema_path_add(w, key);
        add_member(w, m, key, value, schema_requires(schema, key));
        schema_path_back(w, inner);
    }
    schema_path_back(w, before);
    json_array_foreach(required, i, item)
    {
        size_t k = 0;
        if (!json_is_string(item) || json_string_length(item) != strlen(json_string_value(item)))
            schema_fail(w, ERR_FORMAT, "required", "expected names");
        while (!w->rc && k < m->n && strcmp(m->items[k].name, json_string_value(item)) != 0)
            k++;
        if (w->rc || k < m->n)
            continue;
        if (json_is_false(others))
            schema_fail(w, ERR_FORMAT, "required", "names a member that additionalProperties forbids");
        add_member(w, m, json_string_value(item), others ? others : json_true(), true);
    }
}

/* Fills m->others. Members that the schema does not name follow those that it names. */
static void find_others(struct schema_writer *w, const json_t *schema, struct members *m)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (json_is_false(others) || ((!others || w->quote) && m->n > 0) || w->rc)
        return;
    const char **names = mem_new(m->n, sizeof *names, w->e);
    if (!names) {
        w->rc = ERR_MEMORY;
        return;
    }
    for (size_t i = 0; i < m->n; i++)
        names[i] = m->items[i].name;
    size_t before = schema_path_add(w, "additionalProperties");
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
        str_addf(&body, "(\",\" ws %s)* ws", str_text(&m->others));
        schema_write_rule(w, next, &body);
        str_clear(&body);
        str_addf(&body, "(%s r%u)?", str_text(&m->others), next);
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

void schema_add_object(struct schema_writer *w, const json_t *schema, struct str *body)
{
    struct members m = {0};
    unsigned first = 0;
    find_members(w, schema, &m);
    find_others(w, schema, &m);
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
}

/* ---- arrays ---- */

struct elements {
    const json_t *prefix; /* an array, or NULL */
    struct str item;      /* expression of an element after the prefix; empty: there are none */
    uint32_t least, most; /* elements; most UINT32_MAX: no limit */
};

static void get_limits(struct schema_writer *w, const json_t *schema, struct elements *a)
{
    static const char *const keys[] = {"minItems", "maxItems"};
    uint32_t *const limits[] = {&a->least, &a->most};
    a->most = UINT32_MAX;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(schema, keys[i]);
        json_int_t n = json_integer_value(value);
        if (value && (!json_is_integer(value) || n < 0))
            schema_fail(w, ERR_FORMAT, keys[i], "expected a whole number of 0 or more");
        else if (n > 1 << 20)
            schema_fail(w, ERR_UNSUPPORTED, keys[i], "expected at most 1048576");
        else if (value)
            *limits[i] = (uint32_t)n;
    }
    if (a->most < a->least)
        schema_fail(w, ERR_FORMAT, "maxItems", "less than minItems");
}

static void get_items(struct schema_writer *w, const json_t *schema, struct elements *a)
{
    const json_t *items = json_object_get(schema, "items");
    size_t n = json_array_size(a->prefix);
    if (json_is_array(items))
        schema_fail(w, ERR_UNSUPPORTED, "items",
                    "expected a schema; a list of schemas stands in prefixItems");
    /* A schema that lists the first elements allows only those. */
    if (json_is_false(items) || (!items && n > 0 && a->least <= n)) {
        if (a->least > n)
            schema_fail(w, ERR_FORMAT, "minItems", "more than there may be");
        return;
    }
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

void schema_add_array(struct schema_writer *w, const json_t *schema, struct str *body)
{
    struct elements a = {.prefix = json_object_get(schema, "prefixItems")};
    if (a.prefix && !json_is_array(a.prefix))
        schema_fail(w, ERR_FORMAT, "prefixItems", "expected a list of schemas");
    get_limits(w, schema, &a);
    if (!w->rc)
        get_items(w, schema, &a);
    if (w->rc) {
        str_free(&a.item);
        return;
    }
    if (a.most == 0 || (json_array_size(a.prefix) == 0 && !a.item.len)) {
        str_add_text(body, "(\"[\" ws \"]\")");
    } else if (json_array_size(a.prefix) > 0) {
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
