#include "text/jinja/value.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json_sent.h"
#include "text/jinja/text.h"

enum { MAX_TEXT = 1 << 26 }; /* 64 MiB, the limit of the output */

/* --- making --- */

struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}

struct jinja_value jinja_bool(bool truth)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .truth = truth};
}

struct jinja_value jinja_int(int64_t number)
{
    return (struct jinja_value){.kind = JINJA_INT, .number = number};
}

struct jinja_value jinja_float(double real)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .real = real};
}

struct jinja_value jinja_of_text(struct jinja_text text)
{
    return (struct jinja_value){.kind = JINJA_TEXT, .text = text};
}

struct jinja_value jinja_literal(const char *text)
{
    return jinja_of_text(jinja_text_of(text));
}

struct jinja_value jinja_new_list(struct jinja_state *s, enum jinja_kind kind)
{
    return (struct jinja_value){.kind = kind, .list = jinja_alloc(s, 1, sizeof(struct jinja_list))};
}

struct jinja_value jinja_new_dict(struct jinja_state *s, enum jinja_kind kind)
{
    return (struct jinja_value){.kind = kind, .dict = jinja_alloc(s, 1, sizeof(struct jinja_dict))};
}

struct jinja_value jinja_undefined(enum jinja_kind owner, struct jinja_text name)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .owner = owner, .text = name};
}

/* Makes room for one more in an array of n items. */
static void *grow(struct jinja_state *s, void *items, size_t n, size_t *cap, size_t size)
{
    jinja_count(s, 1);
    if (n < *cap)
        return items;
    *cap = *cap ? *cap * 2 : 4;
    void *more = jinja_alloc(s, *cap, size);
    if (n)
        memcpy(more, items, n * size);
    return more;
}

void jinja_append(struct jinja_state *s, struct jinja_value list, struct jinja_value item)
{
    struct jinja_list *l = list.list;
    l->items = grow(s, l->items, l->n, &l->cap, sizeof *l->items);
    l->items[l->n++] = item;
}

struct jinja_value jinja_pair(struct jinja_state *s, struct jinja_value a, struct jinja_value b)
{
    struct jinja_value pair = jinja_new_list(s, JINJA_TUPLE);
    jinja_append(s, pair, a);
    jinja_append(s, pair, b);
    return pair;
}

static void add_entry(struct jinja_state *s, struct jinja_dict *d, struct jinja_value key,
                      struct jinja_value value)
{
    d->entries = grow(s, d->entries, d->n, &d->cap, sizeof *d->entries);
    d->entries[d->n++] = (struct jinja_entry){key, value};
}

static void check_key(struct jinja_state *s, struct jinja_value key)
{
    if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
        jinja_fail(s, ERR_FORMAT, "a %s cannot be a key", jinja_type(key));
    for (size_t i = 0; key.kind == JINJA_TUPLE && i < key.list->n; i++)
        check_key(s, key.list->items[i]);
}

void jinja_put(struct jinja_state *s, struct jinja_value dict, struct jinja_value key,
               struct jinja_value value)
{
    check_key(s, key);
    for (size_t i = 0; i < dict.dict->n; i++) {
        if (jinja_equal(s, dict.dict->entries[i].key, key)) {
            dict.dict->entries[i].value = value;
            return;
        }
    }
    add_entry(s, dict.dict, key, value);
}

const struct jinja_value *jinja_find(struct jinja_state *s, const struct jinja_dict *d,
                                     struct jinja_value key)
{
    check_key(s, key);
    for (size_t i = 0; i < d->n; i++)
        if (jinja_equal(s, d->entries[i].key, key))
            return &d->entries[i].value;
    return NULL;
}

const struct jinja_value *jinja_find_text(struct jinja_state *s, const struct jinja_dict *d,
                                          struct jinja_text key)
{
    jinja_count(s, d->n / 8);
    for (size_t i = 0; i < d->n; i++)
        if (d->entries[i].key.kind == JINJA_TEXT && jinja_text_equal(d->entries[i].key.text, key))
            return &d->entries[i].value;
    return NULL;
}

static struct jinja_value list_of_json(struct jinja_state *s, const json_t *json, const char *authors)
{
    struct jinja_value list = jinja_new_list(s, JINJA_LIST);
    for (size_t i = 0; i < json_array_size(json); i++)
        jinja_append(s, list, jinja_of_json(s, json_array_get(json, i), authors));
    return list;
}

static struct jinja_value dict_of_json(struct jinja_state *s, const json_t *json, const char *authors)
{
    struct jinja_value dict = jinja_new_dict(s, JINJA_DICT);
    const char *key;
    size_t len;
    json_t *member;
    json_object_keylen_foreach((json_t *)(uintptr_t)json, key, len, member)
    {
        struct jinja_text name = {key, authors, len};
        add_entry(s, dict.dict, jinja_of_text(name), jinja_of_json(s, member, authors));
    }
    return dict;
}

static struct jinja_value text_of_json(struct jinja_state *s, const json_t *json, const char *authors)
{
    const char *number = json_sent_number(json);
    size_t len = json_string_length(json);
    /* Longer messages give the template more memory. */
    s->memory += 16 * (len < MAX_TEXT ? len : MAX_TEXT);
    if (!number)
        return jinja_of_text((struct jinja_text){json_string_value(json), authors, len});
    struct jinja_value v = jinja_of_text((struct jinja_text){number, authors, strlen(number)});
    v.is_number = true;
    return v;
}

struct jinja_value jinja_of_json(struct jinja_state *s, const json_t *json, const char *authors)
{
    struct jinja_value v = jinja_none();
    jinja_enter(s);
    jinja_count(s, 1);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = dict_of_json(s, json, authors);
        break;
    case JSON_ARRAY:
        v = list_of_json(s, json, authors);
        break;
    case JSON_STRING:
        v = text_of_json(s, json, authors);
        break;
    case JSON_INTEGER:
        v = jinja_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = jinja_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = jinja_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    jinja_leave(s);
    return v;
}

/* --- properties, comparing --- */

int64_t jinja_whole(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.truth : v.number;
}

double jinja_real(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.real : (double)jinja_whole(v);
}

const char *jinja_type(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "Undefined", [JINJA_NONE] = "None",
        [JINJA_BOOL] = "bool",           [JINJA_INT] = "int",
        [JINJA_FLOAT] = "float",         [JINJA_TEXT] = "str",
        [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",
        [JINJA_ITERATOR] = "iterator",   [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "namespace", [JINJA_LOOP] = "loop",
        [JINJA_MACRO] = "macro",         [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method",
    };
    return names[v.kind];
}

bool jinja_truth(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.truth;
    case JINJA_INT:
        return v.number != 0;
    case JINJA_FLOAT:
        return v.real != 0;
    case JINJA_TEXT:
        return v.text.len > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.list->n > 0;
    case JINJA_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

static bool lists_equal(struct jinja_state *s, const struct jinja_list *a, const struct jinja_list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jinja_equal(s, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool dicts_equal(struct jinja_state *s, const struct jinja_dict *a, const struct jinja_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jinja_value *other = jinja_find(s, b, a->entries[i].key);
        if (!other || !jinja_equal(s, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool same_kind_equal(struct jinja_state *s, struct jinja_value a, struct jinja_value b)
{
    switch (a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_TEXT:
        jinja_count(s, a.text.len / 64);
        return jinja_text_equal(a.text, b.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return lists_equal(s, a.list, b.list);
    case JINJA_DICT:
        return dicts_equal(s, a.dict, b.dict);
    case JINJA_ITERATOR:
        return a.list == b.list;
    case JINJA_NAMESPACE:
        return a.dict == b.dict;
    default:
        return a.bound == b.bound;
    }
}

/* Compares two numbers. A NaN is not comparable. */
static int order_numbers(struct jinja_value a, struct jinja_value b, bool *comparable)
{
    *comparable = true;
    if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT) {
        int64_t x = jinja_whole(a), y = jinja_whole(b);
        return (x > y) - (x < y);
    }
    double x = jinja_real(a), y = jinja_real(b);
    *comparable = !isnan(x) && !isnan(y);
    return (x > y) - (x < y);
}

bool jinja_equal(struct jinja_state *s, struct jinja_value a, struct jinja_value b)
{
    bool equal = false;
    jinja_count(s, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        bool comparable;
        return order_numbers(a, b, &comparable) == 0 && comparable;
    }
    jinja_enter(s);
    if (a.kind == b.kind)
        equal = same_kind_equal(s, a, b);
    jinja_leave(s);
    return equal;
}

static int order_texts(struct jinja_state *s, struct jinja_text a, struct jinja_text b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    jinja_count(s, n / 64);
    int order = memcmp(a.bytes, b.bytes, n);
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

int jinja_order(struct jinja_state *s, struct jinja_value a, struct jinja_value b)
{
    jinja_count(s, 1);
    if (a.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(s, a);
    if (b.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(s, b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        bool comparable;
        int order = order_numbers(a, b, &comparable);
        if (!comparable)
            jinja_fail(s, ERR_UNSUPPORTED, "NaN has no order");
        return order;
    }
    if (a.kind == JINJA_TEXT && b.kind == JINJA_TEXT)
        return order_texts(s, a.text, b.text);
    if (a.kind != b.kind || !jinja_is_sequence(a))
        jinja_fail(s, ERR_FORMAT, "a %s and a %s have no order", jinja_type(a), jinja_type(b));
    for (size_t i = 0; i < a.list->n && i < b.list->n; i++) {
        if (jinja_equal(s, a.list->items[i], b.list->items[i]))
            continue;
        jinja_enter(s);
        int order = jinja_order(s, a.list->items[i], b.list->items[i]);
        jinja_leave(s);
        return order;
    }
    return (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

bool jinja_contains(struct jinja_state *s, struct jinja_value where, struct jinja_value what)
{
    if (where.kind == JINJA_TEXT) {
        if (what.kind != JINJA_TEXT)
            jinja_fail(s, ERR_FORMAT, "a %s cannot be in a str", jinja_type(what));
        jinja_count(s, where.text.len / 64);
        return jinja_search(where.text, what.text, 0) <= where.text.len;
    }
    if (where.kind == JINJA_DICT)
        return jinja_find(s, where.dict, what);
    const struct jinja_list *items = jinja_items(s, where);
    for (size_t i = 0; i < items->n; i++)
        if (jinja_equal(s, items->items[i], what))
            return true;
    return false;
}

size_t jinja_length(struct jinja_state *s, struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
        return 0;
    case JINJA_TEXT:
        jinja_count(s, v.text.len / 64);
        return jinja_characters(v.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.list->n;
    case JINJA_DICT:
        return v.dict->n;
    default:
        jinja_fail(s, ERR_FORMAT, "a %s has no length", jinja_type(v));
    }
}

struct jinja_list *jinja_items(struct jinja_state *s, struct jinja_value v)
{
    struct jinja_value items = jinja_new_list(s, JINJA_LIST);
    switch (v.kind) {
    case JINJA_UNDEFINED:
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v.list;
    case JINJA_ITERATOR:
        *items.list = *v.list;
        v.list->n = 0;
        break;
    case JINJA_DICT:
        for (size_t i = 0; i < v.dict->n; i++)
            jinja_append(s, items, v.dict->entries[i].key);
        break;
    case JINJA_TEXT:
        for (size_t i = 0, n; i < v.text.len; i += n) {
            n = jinja_width(v.text, i);
            jinja_append(s, items, jinja_of_text(jinja_cut(v.text, i, i + n)));
        }
        break;
    default:
        jinja_fail(s, ERR_FORMAT, "a %s is not iterable", jinja_type(v));
    }
    return items.list;
}

void jinja_fail_undefined(struct jinja_state *s, struct jinja_value v)
{
    int len = v.text.len < 100 ? (int)v.text.len : 100;
    if (v.owner == JINJA_UNDEFINED)
        jinja_fail(s, ERR_FORMAT, "'%.*s' is undefined", len, v.text.bytes);
    jinja_fail(s, ERR_FORMAT, "a %s has no member '%.*s'", jinja_type((struct jinja_value){.kind = v.owner}),
               len, v.text.bytes);
}
