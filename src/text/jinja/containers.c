/* Python's methods of lists, tuples and dicts. Those that change a list or a dict are refused by
 * transformers, but templates for other programs call them. They can, because every value belongs to one
 * rendering. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"
#include "text/jinja/sort.h"

/* --- lists --- */

static struct jinja_value list_count(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_value what = jinja_need(r, args, "value");
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++)
        n += jinja_equal(&r->s, self.list->items[i], what);
    return jinja_int(n);
}

static struct jinja_value list_index(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_value what = jinja_need(r, args, "value");
    for (size_t i = 0; i < self.list->n; i++)
        if (jinja_equal(&r->s, self.list->items[i], what))
            return jinja_int((int64_t)i);
    jinja_fail(&r->s, ERR_FORMAT, "index: the value is not found");
}

static struct jinja_value list_copy(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return jinja_filter_list(r, self, args);
}

static struct jinja_value list_append(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    jinja_append(&r->s, self, jinja_need(r, args, "object"));
    return jinja_none();
}

static struct jinja_value list_extend(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    const struct jinja_list *more = jinja_items(&r->s, jinja_need(r, args, "iterable"));
    /* A list may extend itself. */
    for (size_t i = 0, n = more->n; i < n; i++)
        jinja_append(&r->s, self, more->items[i]);
    return jinja_none();
}

static struct jinja_value list_insert(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    int64_t n = (int64_t)self.list->n, at = jinja_take_int(r, args, "index", 0);
    struct jinja_value item = jinja_need(r, args, "object");
    if (at < 0)
        at = at + n < 0 ? 0 : at + n;
    if (at > n)
        at = n;
    jinja_append(&r->s, self, item);
    jinja_count(&r->s, (uint64_t)(n - at));
    memmove(self.list->items + at + 1, self.list->items + at, (size_t)(n - at) * sizeof item);
    self.list->items[at] = item;
    return jinja_none();
}

/* Takes out the item at `at`. */
static struct jinja_value take_item(struct jinja_run *r, struct jinja_list *list, size_t at)
{
    struct jinja_value item = list->items[at];
    size_t after = --list->n - at;
    jinja_count(&r->s, after);
    memmove(list->items + at, list->items + at + 1, after * sizeof item);
    return item;
}

static struct jinja_value list_pop(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    int64_t n = (int64_t)self.list->n, at = jinja_take_int(r, args, "index", -1);
    if (at < -n || at >= n)
        jinja_fail(&r->s, ERR_FORMAT, "pop of item %" PRId64 " of a list of %" PRId64, at, n);
    return take_item(r, self.list, (size_t)(at < 0 ? at + n : at));
}

static struct jinja_value list_remove(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    take_item(r, self.list, (size_t)list_index(r, self, args).number);
    return jinja_none();
}

static struct jinja_value list_clear(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    self.list->n = 0;
    return jinja_none();
}

static struct jinja_value list_reverse(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    struct jinja_list *l = self.list;
    jinja_count(&r->s, l->n);
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jinja_value item = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = item;
    }
    return jinja_none();
}

static struct jinja_value list_sort(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_entry *entries = jinja_alloc(&r->s, self.list->n, sizeof *entries);
    if (args->n)
        jinja_fail(&r->s, ERR_FORMAT, "sort of a list has no positional arguments");
    bool reverse = jinja_take_bool(args, "reverse", false);
    for (size_t i = 0; i < self.list->n; i++)
        entries[i].key = entries[i].value = self.list->items[i];
    jinja_sort(&r->s, entries, self.list->n, reverse);
    for (size_t i = 0; i < self.list->n; i++)
        self.list->items[i] = entries[i].value;
    return jinja_none();
}

/* --- dicts --- */

static struct jinja_value dict_get(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_value key = jinja_need(r, args, "key");
    const struct jinja_value *fallback = jinja_take(args, "default");
    const struct jinja_value *found = jinja_find(&r->s, self.dict, key);
    return found ? *found : fallback ? *fallback : jinja_none();
}

static struct jinja_value dict_items(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    struct jinja_value list = jinja_new_list(&r->s, JINJA_LIST);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_append(&r->s, list, jinja_pair(&r->s, self.dict->entries[i].key, self.dict->entries[i].value));
    return list;
}

static struct jinja_value dict_keys(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    struct jinja_value list = jinja_new_list(&r->s, JINJA_LIST);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_append(&r->s, list, self.dict->entries[i].key);
    return list;
}

static struct jinja_value dict_values(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    struct jinja_value list = jinja_new_list(&r->s, JINJA_LIST);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_append(&r->s, list, self.dict->entries[i].value);
    return list;
}

static struct jinja_value dict_copy(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    struct jinja_value made = jinja_new_dict(&r->s, JINJA_DICT);
    jinja_put_all(r, made, self);
    return made;
}

static struct jinja_value dict_update(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    if (args->n_taken < args->n)
        jinja_put_all(r, self, args->items[args->n_taken++]);
    jinja_put_named(r, self, args);
    return jinja_none();
}

static struct jinja_value dict_setdefault(struct jinja_run *r, struct jinja_value self,
                                          struct jinja_args *args)
{
    struct jinja_value key = jinja_need(r, args, "key");
    const struct jinja_value *given = jinja_take(args, "default"), *found = jinja_find(&r->s, self.dict, key);
    if (found)
        return *found;
    jinja_put(&r->s, self, key, given ? *given : jinja_none());
    return given ? *given : jinja_none();
}

/* Takes out the entry at `at`. */
static struct jinja_entry take_entry(struct jinja_run *r, struct jinja_dict *dict, size_t at)
{
    struct jinja_entry entry = dict->entries[at];
    size_t after = --dict->n - at;
    jinja_count(&r->s, after);
    memmove(dict->entries + at, dict->entries + at + 1, after * sizeof entry);
    return entry;
}

static struct jinja_value dict_pop(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_value key = jinja_need(r, args, "key");
    const struct jinja_value *fallback = jinja_take(args, "default"),
                             *found = jinja_find(&r->s, self.dict, key);
    if (!found && !fallback)
        jinja_fail(&r->s, ERR_FORMAT, "pop: the dict has no such key");
    if (!found)
        return *fallback;
    for (size_t i = 0;; i++)
        if (&self.dict->entries[i].value == found)
            return take_entry(r, self.dict, i).value;
}

static struct jinja_value dict_popitem(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    if (self.dict->n == 0)
        jinja_fail(&r->s, ERR_FORMAT, "popitem: the dict is empty");
    struct jinja_entry last = take_entry(r, self.dict, self.dict->n - 1);
    return jinja_pair(&r->s, last.key, last.value);
}

static struct jinja_value dict_clear(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    self.dict->n = 0;
    return jinja_none();
}

const struct jinja_method *jinja_container_methods(enum jinja_kind kind)
{
    static const struct jinja_method tuple_methods[] = {
        {"count", list_count}, {"index", list_index}, {NULL, NULL}};
    static const struct jinja_method list_methods[] = {
        {"append", list_append}, {"clear", list_clear},     {"copy", list_copy},     {"count", list_count},
        {"extend", list_extend}, {"index", list_index},     {"insert", list_insert}, {"pop", list_pop},
        {"remove", list_remove}, {"reverse", list_reverse}, {"sort", list_sort},     {NULL, NULL}};
    static const struct jinja_method dict_methods[] = {{"clear", dict_clear},
                                                       {"copy", dict_copy},
                                                       {"get", dict_get},
                                                       {"items", dict_items},
                                                       {"keys", dict_keys},
                                                       {"pop", dict_pop},
                                                       {"popitem", dict_popitem},
                                                       {"setdefault", dict_setdefault},
                                                       {"update", dict_update},
                                                       {"values", dict_values},
                                                       {NULL, NULL}};
    return kind == JINJA_LIST    ? list_methods
           : kind == JINJA_TUPLE ? tuple_methods
           : kind == JINJA_DICT  ? dict_methods
                                 : NULL;
}
