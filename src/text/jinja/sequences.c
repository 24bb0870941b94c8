/* Filters of sequences. Those that return iterators in jinja2 return them here too: an iterator has no length
 * and can be read once. */
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"
#include "text/jinja/sort.h"

/* --- members by a path: "function.name", "0" --- */

static struct jinja_value member_by_path(struct jinja_run *r, struct jinja_value v, struct jinja_value path)
{
    if (path.kind != JINJA_TEXT)
        return jinja_item(r, v, path);
    struct jinja_text rest = path.text, dot = jinja_text_of(".");
    for (;;) {
        size_t end = jinja_search(rest, dot, 0);
        struct jinja_text part = jinja_cut(rest, 0, end < rest.len ? end : rest.len);
        int64_t index = 0;
        bool digits = part.len > 0 && part.len < 10;
        for (size_t i = 0; i < part.len && digits; i++) {
            digits = part.bytes[i] >= '0' && part.bytes[i] <= '9';
            index = index * 10 + (part.bytes[i] - '0');
        }
        v = jinja_item(r, v, digits ? jinja_int(index) : jinja_of_text(part));
        if (end >= rest.len)
            return v;
        rest = jinja_cut(rest, end + 1, rest.len);
    }
}

static struct jinja_value without_case(struct jinja_run *r, struct jinja_value v)
{
    return v.kind == JINJA_TEXT ? jinja_of_text(jinja_to_case(&r->s, v.text, JINJA_LOWER)) : v;
}

/* Returns the key by which an item is compared. attribute NULL: the item itself. */
static struct jinja_value key_of(struct jinja_run *r, struct jinja_value item,
                                 const struct jinja_value *attribute, bool with_case)
{
    struct jinja_value key =
        attribute && attribute->kind != JINJA_NONE ? member_by_path(r, item, *attribute) : item;
    return with_case ? key : without_case(r, key);
}

/* --- first, last, order --- */

struct jinja_value jinja_filter_list(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value list = jinja_new_list(&r->s, JINJA_LIST);
    for (size_t i = 0; i < items->n; i++)
        jinja_append(&r->s, list, items->items[i]);
    return list;
}

struct jinja_value jinja_filter_first(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    const struct jinja_list *items = jinja_items(&r->s, v);
    return items->n ? items->items[0]
                    : jinja_undefined(JINJA_UNDEFINED, jinja_text_of("the first of an empty sequence"));
}

struct jinja_value jinja_filter_last(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    if (v.kind == JINJA_ITERATOR)
        jinja_fail(&r->s, ERR_FORMAT, "an iterator cannot be read from its end");
    const struct jinja_list *items = jinja_items(&r->s, v);
    return items->n ? items->items[items->n - 1]
                    : jinja_undefined(JINJA_UNDEFINED, jinja_text_of("the last of an empty sequence"));
}

struct jinja_value jinja_filter_reverse(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value turned = jinja_new_list(&r->s, v.kind == JINJA_ITERATOR ? JINJA_LIST : JINJA_ITERATOR);
    struct jinja_build text = jinja_build(&r->s);
    for (size_t i = items->n; i-- > 0;) {
        if (v.kind == JINJA_TEXT)
            jinja_build_text(&text, items->items[i].text);
        else
            jinja_append(&r->s, turned, items->items[i]);
    }
    return v.kind == JINJA_TEXT ? jinja_of_text(jinja_built(&text)) : turned;
}

struct jinja_value jinja_filter_sort(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    bool reverse = jinja_take_bool(args, "reverse", false);
    bool with_case = jinja_take_bool(args, "case_sensitive", false);
    const struct jinja_value *attribute = jinja_take(args, "attribute");
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value sorted = jinja_new_list(&r->s, JINJA_LIST);
    struct jinja_entry *entries = jinja_alloc(&r->s, items->n, sizeof *entries);
    if (attribute && attribute->kind == JINJA_TEXT && memchr(attribute->text.bytes, ',', attribute->text.len))
        jinja_fail(&r->s, ERR_UNSUPPORTED, "sort: several attributes are not known");
    for (size_t i = 0; i < items->n; i++) {
        entries[i].key = key_of(r, items->items[i], attribute, with_case);
        entries[i].value = items->items[i];
    }
    jinja_sort(&r->s, entries, items->n, reverse);
    for (size_t i = 0; i < items->n; i++)
        jinja_append(&r->s, sorted, entries[i].value);
    return sorted;
}

static struct jinja_list *pairs_of(struct jinja_run *r, const struct jinja_dict *d)
{
    struct jinja_value pairs = jinja_new_list(&r->s, JINJA_LIST);
    for (size_t i = 0; i < d->n; i++)
        jinja_append(&r->s, pairs, jinja_pair(&r->s, d->entries[i].key, d->entries[i].value));
    return pairs.list;
}

struct jinja_value jinja_filter_dictsort(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    bool with_case = jinja_take_bool(args, "case_sensitive", false);
    struct jinja_text by = jinja_take_text(r, args, "by", "key");
    bool reverse = jinja_take_bool(args, "reverse", false);
    if (!jinja_text_is(by, "key") && !jinja_text_is(by, "value"))
        jinja_fail(&r->s, ERR_FORMAT, "dictsort: by: expected key or value");
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    if (v.kind != JINJA_DICT)
        jinja_fail(&r->s, ERR_FORMAT, "dictsort of a %s, expected a dict", jinja_type(v));
    struct jinja_value sorted = jinja_new_list(&r->s, JINJA_LIST);
    const struct jinja_list *pairs = pairs_of(r, v.dict);
    struct jinja_entry *entries = jinja_alloc(&r->s, pairs->n, sizeof *entries);
    for (size_t i = 0; i < pairs->n; i++) {
        struct jinja_value key = pairs->items[i].list->items[jinja_text_is(by, "value")];
        entries[i] = (struct jinja_entry){with_case ? key : without_case(r, key), pairs->items[i]};
    }
    jinja_sort(&r->s, entries, pairs->n, reverse);
    for (size_t i = 0; i < pairs->n; i++)
        jinja_append(&r->s, sorted, entries[i].value);
    return sorted;
}

struct jinja_value jinja_filter_items(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    struct jinja_value pairs = jinja_new_list(&r->s, JINJA_ITERATOR);
    if (v.kind != JINJA_DICT && v.kind != JINJA_UNDEFINED)
        jinja_fail(&r->s, ERR_FORMAT, "items of a %s, expected a dict", jinja_type(v));
    if (v.kind == JINJA_DICT)
        pairs.list = pairs_of(r, v.dict);
    return pairs;
}

/* --- one value from the items --- */

static struct jinja_value extreme(struct jinja_run *r, struct jinja_value v, struct jinja_args *args,
                                  int sign)
{
    bool with_case = jinja_take_bool(args, "case_sensitive", false);
    const struct jinja_value *attribute = jinja_take(args, "attribute");
    const struct jinja_list *items = jinja_items(&r->s, v);
    if (items->n == 0)
        return jinja_undefined(JINJA_UNDEFINED, jinja_text_of("the extreme of an empty sequence"));
    struct jinja_value best = items->items[0], best_key = key_of(r, best, attribute, with_case);
    for (size_t i = 1; i < items->n; i++) {
        struct jinja_value key = key_of(r, items->items[i], attribute, with_case);
        int order = jinja_order(&r->s, key, best_key);
        if (sign > 0 ? order <= 0 : order >= 0)
            continue;
        best = items->items[i];
        best_key = key;
    }
    return best;
}

struct jinja_value jinja_filter_max(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return extreme(r, v, args, 1);
}

struct jinja_value jinja_filter_min(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return extreme(r, v, args, -1);
}

struct jinja_value jinja_filter_sum(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *attribute = jinja_take(args, "attribute"), *start = jinja_take(args, "start");
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value sum = start ? *start : jinja_int(0);
    if (sum.kind == JINJA_TEXT)
        jinja_fail(&r->s, ERR_FORMAT, "sum of texts: use join");
    for (size_t i = 0; i < items->n; i++)
        sum = jinja_binary(r, "+", sum, key_of(r, items->items[i], attribute, true));
    return sum;
}

struct jinja_value jinja_filter_join(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *between = jinja_take(args, "d"), *attribute = jinja_take(args, "attribute");
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_build text = jinja_build(&r->s);
    for (size_t i = 0; i < items->n; i++) {
        if (i && between)
            jinja_build_value(&text, *between);
        jinja_build_value(&text, key_of(r, items->items[i], attribute, true));
    }
    return jinja_of_text(jinja_built(&text));
}

/* --- some of the items --- */

struct jinja_value jinja_filter_unique(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    bool with_case = jinja_take_bool(args, "case_sensitive", false);
    const struct jinja_value *attribute = jinja_take(args, "attribute");
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value chosen = jinja_new_list(&r->s, JINJA_ITERATOR),
                       seen = jinja_new_dict(&r->s, JINJA_DICT);
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value key = key_of(r, items->items[i], attribute, with_case);
        if (jinja_find(&r->s, seen.dict, key))
            continue;
        jinja_put(&r->s, seen, key, jinja_none());
        jinja_append(&r->s, chosen, items->items[i]);
    }
    return chosen;
}

struct jinja_value jinja_filter_batch(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    int64_t size = jinja_take_int(r, args, "linecount", 0);
    const struct jinja_value *fill = jinja_take(args, "fill_with");
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value rows = jinja_new_list(&r->s, JINJA_ITERATOR), row = {0};
    if (size < 1)
        jinja_fail(&r->s, ERR_FORMAT, "batch: linecount: expected at least 1");
    for (size_t i = 0; i < items->n; i++) {
        if (i % (uint64_t)size == 0)
            jinja_append(&r->s, rows, row = jinja_new_list(&r->s, JINJA_LIST));
        jinja_append(&r->s, row, items->items[i]);
    }
    while (fill && fill->kind != JINJA_NONE && items->n && row.list->n < (uint64_t)size)
        jinja_append(&r->s, row, *fill);
    return rows;
}

/* Returns the arguments that were not taken, for a filter or test that is called for each item. */
static struct jinja_args rest_of(struct jinja_args *args)
{
    struct jinja_args rest = {.n = args->n - args->n_taken, .named = args->named, .n_named = args->n_named};
    if (rest.n)
        rest.items = args->items + args->n_taken;
    args->n_taken = args->n;
    return rest;
}

/* Returns the items for map and select: none if the value is false (or none), as in jinja2. */
static const struct jinja_list *items_if_any(struct jinja_run *r, struct jinja_value v)
{
    return jinja_items(&r->s, jinja_truth(v) ? v : jinja_undefined(JINJA_UNDEFINED, jinja_text_of("")));
}

/* Makes the arguments available again, for the next item. */
static void untake(struct jinja_args *args)
{
    args->n_taken = 0;
    for (size_t i = 0; i < args->n_named; i++)
        args->named[i].taken = false;
}

static struct jinja_value map_attribute(struct jinja_run *r, const struct jinja_list *items,
                                        struct jinja_args *args)
{
    struct jinja_value out = jinja_new_list(&r->s, JINJA_ITERATOR);
    const struct jinja_value *attribute = jinja_take(args, "attribute"),
                             *fallback = jinja_take(args, "default");
    if (!attribute)
        jinja_fail(&r->s, ERR_FORMAT, "map needs a filter or attribute=");
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value v = member_by_path(r, items->items[i], *attribute);
        if (v.kind == JINJA_UNDEFINED && fallback && fallback->kind != JINJA_NONE)
            v = *fallback;
        jinja_append(&r->s, out, v);
    }
    return out;
}

struct jinja_value jinja_filter_map(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_list *items = items_if_any(r, v);
    if (args->n == 0)
        return map_attribute(r, items, args);
    struct jinja_value out = jinja_new_list(&r->s, JINJA_ITERATOR);
    struct jinja_text name = jinja_take_text(r, args, "filter", NULL);
    jinja_filter *filter = jinja_filter_find(name);
    struct jinja_args rest = rest_of(args);
    for (size_t i = 0; i < items->n; i++) {
        untake(&rest);
        jinja_append(&r->s, out, jinja_filter_by_name(r, name, filter, items->items[i], &rest));
    }
    for (size_t i = 0; i < rest.n_named; i++)
        rest.named[i].taken = true;
    return out;
}

/* Returns the items whose test (without a test: whose truth) is `wanted`. */
static struct jinja_value choose(struct jinja_run *r, struct jinja_value v, struct jinja_args *args,
                                 bool by_attribute, bool wanted)
{
    const struct jinja_list *items = items_if_any(r, v);
    struct jinja_value out = jinja_new_list(&r->s, JINJA_ITERATOR), attribute = jinja_none();
    struct jinja_text name = {0};
    const struct jinja_test *test = NULL;
    if (by_attribute)
        attribute = jinja_need(r, args, "attribute");
    bool tests = args->n_taken < args->n;
    if (tests) {
        name = jinja_take_text(r, args, "test", NULL);
        test = jinja_test_find(name);
    }
    struct jinja_args rest = rest_of(args);
    for (size_t i = 0; i < items->n; i++) {
        struct jinja_value item = items->items[i],
                           key = by_attribute ? member_by_path(r, item, attribute) : item;
        untake(&rest);
        if ((tests ? jinja_test_by_name(r, name, test, key, &rest) : jinja_truth(key)) == wanted)
            jinja_append(&r->s, out, item);
    }
    for (size_t i = 0; i < rest.n_named; i++)
        rest.named[i].taken = true;
    return out;
}

struct jinja_value jinja_filter_select(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return choose(r, v, args, false, true);
}

struct jinja_value jinja_filter_reject(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return choose(r, v, args, false, false);
}

struct jinja_value jinja_filter_selectattr(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return choose(r, v, args, true, true);
}

struct jinja_value jinja_filter_rejectattr(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return choose(r, v, args, true, false);
}
