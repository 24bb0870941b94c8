/* The global functions of transformers' template environment. */
#include "base/err.h"
#include "text/jinja/run.h"

enum { MAX_RANGE = 100000 }; /* numbers; the limit of jinja2's sandbox */

static struct jinja_value call_raise(struct jinja_run *r, struct jinja_args *args)
{
    struct jinja_text text = jinja_str(&r->s, jinja_need(r, args, "message"));
    jinja_fail(&r->s, ERR_USAGE, "the template refuses the messages: %.*s",
               text.len < 300 ? (int)text.len : 300, text.bytes);
}

static struct jinja_value call_range(struct jinja_run *r, struct jinja_args *args)
{
    struct jinja_value list = jinja_new_list(&r->s, JINJA_LIST);
    int64_t from = 0, to = jinja_take_int(r, args, "stop", 0), step = 1;
    if (args->n > 1) {
        from = to;
        to = jinja_take_int(r, args, "stop", 0);
    }
    step = jinja_take_int(r, args, "step", 1);
    if (step == 0)
        jinja_fail(&r->s, ERR_FORMAT, "range has step 0");
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        jinja_append(&r->s, list, jinja_int(i));
        if (list.list->n > MAX_RANGE)
            jinja_fail(&r->s, ERR_UNSUPPORTED, "a range has more than %d numbers", MAX_RANGE);
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return list;
}

void jinja_put_all(struct jinja_run *r, struct jinja_value dict, struct jinja_value from)
{
    bool is_dict = from.kind == JINJA_DICT;
    const struct jinja_list *items = is_dict ? NULL : jinja_items(&r->s, from);
    for (size_t i = 0; i < (is_dict ? from.dict->n : items->n); i++) {
        struct jinja_value pair = is_dict ? jinja_none() : items->items[i];
        if (!is_dict && (!jinja_is_sequence(pair) || pair.list->n != 2))
            jinja_fail(&r->s, ERR_FORMAT, "a dict is made of pairs");
        jinja_put(&r->s, dict, is_dict ? from.dict->entries[i].key : pair.list->items[0],
                  is_dict ? from.dict->entries[i].value : pair.list->items[1]);
    }
}

void jinja_put_named(struct jinja_run *r, struct jinja_value dict, struct jinja_args *args)
{
    for (size_t i = 0; i < args->n_named; i++) {
        jinja_put(&r->s, dict, jinja_of_text(args->named[i].name), args->named[i].value);
        args->named[i].taken = true;
    }
}

/* Makes a dict or namespace from its arguments. */
static struct jinja_value take_members(struct jinja_run *r, struct jinja_args *args, enum jinja_kind kind)
{
    struct jinja_value made = jinja_new_dict(&r->s, kind);
    while (args->n_taken < args->n)
        jinja_put_all(r, made, args->items[args->n_taken++]);
    jinja_put_named(r, made, args);
    return made;
}

static struct jinja_value call_dict(struct jinja_run *r, struct jinja_args *args)
{
    return take_members(r, args, JINJA_DICT);
}

static struct jinja_value call_namespace(struct jinja_run *r, struct jinja_args *args)
{
    struct jinja_value made = take_members(r, args, JINJA_NAMESPACE);
    for (size_t i = 0; i < made.dict->n; i++)
        if (made.dict->entries[i].key.kind == JINJA_TEXT &&
            jinja_starts(made.dict->entries[i].key.text, jinja_text_of("_")))
            jinja_fail(&r->s, ERR_FORMAT, "a namespace has no members that begin with _");
    return made;
}

static struct jinja_value call_time(struct jinja_run *r, struct jinja_args *args)
{
    return jinja_of_text(jinja_time(&r->s, r->now, jinja_take_text(r, args, "format", NULL)));
}

const struct jinja_function *jinja_function_find(struct jinja_text name)
{
    static const struct jinja_function functions[] = {
        {"dict", call_dict},   {"namespace", call_namespace}, {"raise_exception", call_raise},
        {"range", call_range}, {"strftime_now", call_time},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (jinja_text_is(name, functions[i].name))
            return &functions[i];
    return NULL;
}
