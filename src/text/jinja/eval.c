/* Evaluates expressions: arguments, names, members, calls, filters, tests. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/quote.h"
#include "text/jinja/run.h"

/* --- arguments --- */

const struct jinja_value *jinja_take(struct jinja_args *a, const char *name)
{
    if (a->n_taken < a->n)
        return &a->items[a->n_taken++];
    for (size_t i = 0; i < a->n_named; i++) {
        if (!a->named[i].taken && jinja_text_is(a->named[i].name, name)) {
            a->named[i].taken = true;
            return &a->named[i].value;
        }
    }
    return NULL;
}

struct jinja_value jinja_need(struct jinja_run *r, struct jinja_args *a, const char *name)
{
    const struct jinja_value *v = jinja_take(a, name);
    if (!v)
        jinja_fail(&r->s, ERR_FORMAT, "the argument %s is missing", name);
    return *v;
}

bool jinja_take_bool(struct jinja_args *a, const char *name, bool fallback)
{
    const struct jinja_value *v = jinja_take(a, name);
    return v ? jinja_truth(*v) : fallback;
}

int64_t jinja_take_int(struct jinja_run *r, struct jinja_args *a, const char *name, int64_t fallback)
{
    const struct jinja_value *v = jinja_take(a, name);
    if (!v)
        return fallback;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_fail(&r->s, ERR_FORMAT, "the argument %s is a %s, expected a whole number", name,
                   jinja_type(*v));
    return jinja_whole(*v);
}

struct jinja_text jinja_take_text(struct jinja_run *r, struct jinja_args *a, const char *name,
                                  const char *fallback)
{
    const struct jinja_value *v = jinja_take(a, name);
    if (!v && fallback)
        return jinja_text_of(fallback);
    if (!v || v->kind != JINJA_TEXT)
        jinja_fail(&r->s, ERR_FORMAT, "the argument %s is %s, expected a text", name,
                   v ? jinja_type(*v) : "missing");
    return v->text;
}

void jinja_args_end(struct jinja_run *r, const struct jinja_args *a, struct jinja_text what)
{
    if (a->n_taken < a->n)
        jinja_fail(&r->s, ERR_FORMAT, "%s has too many arguments", quote_bytes(what.bytes, what.len).text);
    for (size_t i = 0; i < a->n_named; i++)
        if (!a->named[i].taken)
            jinja_fail(&r->s, ERR_FORMAT, "%s has no argument %s", quote_bytes(what.bytes, what.len).text,
                       quote_bytes(a->named[i].name.bytes, a->named[i].name.len).text);
}

static void add_arg(struct jinja_run *r, struct jinja_args *a, size_t *cap, struct jinja_value v)
{
    if (a->n == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        struct jinja_value *more = jinja_alloc(&r->s, *cap, sizeof *more);
        if (a->n)
            memcpy(more, a->items, a->n * sizeof *more);
        a->items = more;
    }
    a->items[a->n++] = v;
}

static void add_named(struct jinja_run *r, struct jinja_args *a, size_t *cap, struct jinja_text name,
                      struct jinja_value v)
{
    if (a->n_named == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        struct jinja_named *more = jinja_alloc(&r->s, *cap, sizeof *more);
        if (a->n_named)
            memcpy(more, a->named, a->n_named * sizeof *more);
        a->named = more;
    }
    for (size_t i = 0; i < a->n_named; i++)
        if (jinja_text_equal(a->named[i].name, name))
            jinja_fail(&r->s, ERR_FORMAT, "the argument %s is given twice",
                       quote_bytes(name.bytes, name.len).text);
    a->named[a->n_named++] = (struct jinja_named){name, v, false};
}

static void add_spread(struct jinja_run *r, struct jinja_args *a, size_t *cap, struct jinja_value v)
{
    const struct jinja_list *items = jinja_items(&r->s, v);
    for (size_t i = 0; i < items->n; i++)
        add_arg(r, a, cap, items->items[i]);
}

static void add_spread_keys(struct jinja_run *r, struct jinja_args *a, size_t *cap, struct jinja_value v)
{
    if (v.kind != JINJA_DICT)
        jinja_fail(&r->s, ERR_FORMAT, "** before a %s, expected a dict", jinja_type(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        if (v.dict->entries[i].key.kind != JINJA_TEXT)
            jinja_fail(&r->s, ERR_FORMAT, "** before a dict whose keys are not all texts");
        add_named(r, a, cap, v.dict->entries[i].key.text, v.dict->entries[i].value);
    }
}

static struct jinja_args *eval_args(struct jinja_run *r, const struct jinja_node *list)
{
    struct jinja_args *a = jinja_alloc(&r->s, 1, sizeof *a);
    size_t cap = 0, cap_named = 0;
    for (const struct jinja_node *n = list; n; n = n->next) {
        bool wrapped =
            n->kind == JINJA_N_KEYWORD || n->kind == JINJA_N_SPREAD || n->kind == JINJA_N_SPREAD_KEYS;
        struct jinja_value v = jinja_eval(r, wrapped ? n->a : n);
        r->s.at = n->at;
        if (n->kind == JINJA_N_KEYWORD)
            add_named(r, a, &cap_named, n->text, v);
        else if (n->kind == JINJA_N_SPREAD)
            add_spread(r, a, &cap, v);
        else if (n->kind == JINJA_N_SPREAD_KEYS)
            add_spread_keys(r, a, &cap_named, v);
        else
            add_arg(r, a, &cap, v);
    }
    return a;
}

/* --- names, members, items --- */

static bool ends_with_token(struct jinja_text name)
{
    return jinja_ends(name, jinja_text_of("_token"));
}

static struct jinja_value eval_name(struct jinja_run *r, const struct jinja_symbol *symbol)
{
    const struct jinja_value *set = jinja_lookup(r, symbol);
    if (set)
        return *set;
    struct jinja_scope *outermost = r->scope;
    while (outermost->outer)
        outermost = outermost->outer;
    struct jinja_value v = jinja_undefined(JINJA_UNDEFINED, symbol->name);
    const json_t *json = json_object_getn(r->context, symbol->name.bytes, symbol->name.len);
    if (json) {
        bool trusted = json_is_string(json) && ends_with_token(symbol->name);
        v = jinja_of_json(&r->s, json, trusted ? NULL : jinja_context_authors);
    } else {
        const struct jinja_function *function = jinja_function_find(symbol->name);
        if (!function)
            return v;
        v = (struct jinja_value){.kind = JINJA_FUNCTION, .function = function};
    }
    jinja_set(r, outermost, symbol, v);
    return v;
}

static struct jinja_value loop_member(const struct jinja_loop *l, struct jinja_text name)
{
    size_t n = l->items->n, i = l->index;
    const struct {
        const char *name;
        struct jinja_value value;
    } members[] = {
        {"index", jinja_int((int64_t)i + 1)},
        {"index0", jinja_int((int64_t)i)},
        {"revindex", jinja_int((int64_t)(n - i))},
        {"revindex0", jinja_int((int64_t)(n - i - 1))},
        {"first", jinja_bool(i == 0)},
        {"last", jinja_bool(i + 1 == n)},
        {"length", jinja_int((int64_t)n)},
        /* Recursive loops are not supported, so the depth is constant. */
        {"depth", jinja_int(1)},
        {"depth0", jinja_int(0)},
    };
    struct jinja_value none = jinja_undefined(JINJA_LOOP, name);
    if (jinja_text_is(name, "previtem"))
        return i > 0 ? l->items->items[i - 1] : none;
    if (jinja_text_is(name, "nextitem"))
        return i + 1 < n ? l->items->items[i + 1] : none;
    for (size_t k = 0; k < sizeof members / sizeof *members; k++)
        if (jinja_text_is(name, members[k].name))
            return members[k].value;
    return none;
}

static const struct jinja_value *own_member(struct jinja_run *r, struct jinja_value v, struct jinja_text name)
{
    return v.kind == JINJA_DICT || v.kind == JINJA_NAMESPACE ? jinja_find_text(&r->s, v.dict, name) : NULL;
}

static bool find_method(struct jinja_run *r, struct jinja_value v, struct jinja_text name,
                        struct jinja_value *out)
{
    const struct jinja_method *method = jinja_method_find(v.kind, name);
    if (!method)
        return false;
    struct jinja_bound *bound = jinja_alloc(&r->s, 1, sizeof *bound);
    *bound = (struct jinja_bound){method, v};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .bound = bound};
    return true;
}

struct jinja_value jinja_member(struct jinja_run *r, struct jinja_value v, struct jinja_text name)
{
    struct jinja_value found;
    const struct jinja_value *own;
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    if (v.kind == JINJA_LOOP)
        return loop_member(v.loop, name);
    /* A dict's methods come before its keys, as in Python: message.items is the method. */
    if (find_method(r, v, name, &found))
        return found;
    own = own_member(r, v, name);
    return own ? *own : jinja_undefined(v.kind, name);
}

static const struct jinja_value *at_index(struct jinja_value v, struct jinja_value key)
{
    if (!jinja_is_sequence(v) || (key.kind != JINJA_INT && key.kind != JINJA_BOOL))
        return NULL;
    int64_t i = jinja_whole(key), n = (int64_t)v.list->n;
    if (i < 0)
        i += n;
    return i >= 0 && i < n ? &v.list->items[i] : NULL;
}

static bool character_at(struct jinja_run *r, struct jinja_value v, struct jinja_value key,
                         struct jinja_value *out)
{
    if (v.kind != JINJA_TEXT || (key.kind != JINJA_INT && key.kind != JINJA_BOOL))
        return false;
    int64_t i = jinja_whole(key), n = (int64_t)jinja_length(&r->s, v);
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return false;
    size_t start = jinja_offset(v.text, (size_t)i);
    *out = jinja_of_text(jinja_cut(v.text, start, start + jinja_width(v.text, start)));
    return true;
}

struct jinja_value jinja_item(struct jinja_run *r, struct jinja_value v, struct jinja_value key)
{
    struct jinja_value found;
    const struct jinja_value *item = NULL;
    bool hashable = key.kind != JINJA_LIST && key.kind != JINJA_DICT;
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    if (v.kind == JINJA_DICT && hashable)
        item = key.kind == JINJA_TEXT ? jinja_find_text(&r->s, v.dict, key.text)
                                      : jinja_find(&r->s, v.dict, key);
    else
        item = at_index(v, key);
    if (item)
        return *item;
    if (character_at(r, v, key, &found))
        return found;
    if (key.kind == JINJA_TEXT)
        return jinja_member(r, v, key.text);
    bool named = hashable && key.kind < JINJA_TEXT;
    return jinja_undefined(v.kind, named ? jinja_str(&r->s, key) : jinja_text_of("[...]"));
}

/* --- calls --- */

struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value what, struct jinja_args *args)
{
    struct jinja_value result;
    switch (what.kind) {
    case JINJA_MACRO:
        return jinja_call_macro(r, what.macro, args);
    case JINJA_FUNCTION:
        result = what.function->call(r, args);
        jinja_args_end(r, args, jinja_text_of(what.function->name));
        return result;
    case JINJA_METHOD:
        result = what.bound->method->call(r, what.bound->self, args);
        if (result.kind == JINJA_TEXT && what.bound->self.kind == JINJA_TEXT)
            result.safe = what.bound->self.safe;
        jinja_args_end(r, args, jinja_text_of(what.bound->method->name));
        return result;
    case JINJA_UNDEFINED:
        jinja_fail_undefined(&r->s, what);
    default:
        jinja_fail(&r->s, ERR_FORMAT, "a %s cannot be called", jinja_type(what));
    }
}

struct jinja_value jinja_filter_by_name(struct jinja_run *r, struct jinja_text name, jinja_filter *filter,
                                        struct jinja_value v, struct jinja_args *args)
{
    if (!filter)
        jinja_fail(&r->s, ERR_UNSUPPORTED, "the filter %s is not known",
                   quote_bytes(name.bytes, name.len).text);
    struct jinja_value result = filter(r, v, args);
    jinja_args_end(r, args, name);
    return result;
}

bool jinja_test_by_name(struct jinja_run *r, struct jinja_text name, const struct jinja_test *test,
                        struct jinja_value v, struct jinja_args *args)
{
    if (!test)
        jinja_fail(&r->s, ERR_UNSUPPORTED, "the test %s is not known",
                   quote_bytes(name.bytes, name.len).text);
    bool result = test->holds ? test->holds(r, v, args) : (test->kinds >> v.kind) & 1;
    jinja_args_end(r, args, name);
    return result;
}

/* --- expressions --- */

static struct jinja_value eval_slice(struct jinja_run *r, const struct jinja_node *n)
{
    const struct jinja_node *parts[] = {n->b, n->c, n->d};
    struct jinja_value v = jinja_eval(r, n->a), bounds[3];
    for (int i = 0; i < 3; i++)
        if (parts[i])
            bounds[i] = jinja_eval(r, parts[i]);
    r->s.at = n->at;
    return jinja_slice(r, v, n->b ? &bounds[0] : NULL, n->c ? &bounds[1] : NULL, n->d ? &bounds[2] : NULL);
}

static struct jinja_value eval_call(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value what = jinja_eval(r, n->a);
    struct jinja_args *args = eval_args(r, n->b);
    r->s.at = n->at;
    return jinja_call(r, what, args);
}

static struct jinja_value eval_filter(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->a);
    struct jinja_args *args = eval_args(r, n->b);
    r->s.at = n->at;
    if (n->kind == JINJA_N_TEST)
        return jinja_bool(jinja_test_by_name(r, n->text, n->test, v, args));
    return jinja_filter_by_name(r, n->text, n->filter, v, args);
}

static struct jinja_value eval_concat(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value a = jinja_eval(r, n->a), b = jinja_eval(r, n->b);
    struct jinja_build text = jinja_build(&r->s);
    r->s.at = n->at;
    jinja_build_value(&text, a);
    jinja_build_value(&text, b);
    return jinja_of_text(jinja_built(&text));
}

static struct jinja_value eval_compare(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value left = jinja_eval(r, n->a);
    for (const struct jinja_node *o = n->b; o; o = o->next) {
        struct jinja_value right = jinja_eval(r, o->a);
        r->s.at = o->at;
        if (!jinja_compare(r, o->sign, left, right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_list(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value list = jinja_new_list(&r->s, n->kind == JINJA_N_LIST ? JINJA_LIST : JINJA_TUPLE);
    for (const struct jinja_node *i = n->a; i; i = i->next)
        jinja_append(&r->s, list, jinja_eval(r, i));
    return list;
}

static struct jinja_value eval_dict(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value dict = jinja_new_dict(&r->s, JINJA_DICT);
    for (const struct jinja_node *i = n->a; i; i = i->next) {
        struct jinja_value key = jinja_eval(r, i->a), value = jinja_eval(r, i->b);
        r->s.at = i->at;
        jinja_put(&r->s, dict, key, value);
    }
    return dict;
}

static struct jinja_value eval_choice(struct jinja_run *r, const struct jinja_node *n)
{
    if (jinja_truth(jinja_eval(r, n->a)))
        return jinja_eval(r, n->b);
    if (n->c)
        return jinja_eval(r, n->c);
    return jinja_undefined(JINJA_UNDEFINED, jinja_text_of("the value of an if without else"));
}

static struct jinja_value eval_logic(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value v = jinja_eval(r, n->a);
    if (n->kind == JINJA_N_NOT)
        return jinja_bool(!jinja_truth(v));
    return jinja_truth(v) == (n->kind == JINJA_N_AND) ? jinja_eval(r, n->b) : v;
}

static struct jinja_value eval_operator(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value a = jinja_eval(r, n->a), b = {0};
    if (n->b)
        b = jinja_eval(r, n->b);
    r->s.at = n->at;
    switch (n->kind) {
    case JINJA_N_SIGNED:
        return jinja_signed(r, n->sign[0], a);
    case JINJA_N_BINARY:
        return jinja_binary(r, n->sign, a, b);
    case JINJA_N_ITEM:
        return jinja_item(r, a, b);
    default:
        return jinja_member(r, a, n->text);
    }
}

static struct jinja_value eval(struct jinja_run *r, const struct jinja_node *n)
{
    switch (n->kind) {
    case JINJA_N_CONST:
        return n->value;
    case JINJA_N_NAME:
        return eval_name(r, n->symbol);
    case JINJA_N_SLICE:
        return eval_slice(r, n);
    case JINJA_N_CALL:
        return eval_call(r, n);
    case JINJA_N_FILTER:
    case JINJA_N_TEST:
        return eval_filter(r, n);
    case JINJA_N_CAPTURED:
        return r->captured;
    case JINJA_N_CONCAT:
        return eval_concat(r, n);
    case JINJA_N_COMPARE:
        return eval_compare(r, n);
    case JINJA_N_NOT:
    case JINJA_N_AND:
    case JINJA_N_OR:
        return eval_logic(r, n);
    case JINJA_N_CHOICE:
        return eval_choice(r, n);
    case JINJA_N_LIST:
    case JINJA_N_TUPLE:
        return eval_list(r, n);
    case JINJA_N_DICT:
        return eval_dict(r, n);
    default:
        return eval_operator(r, n);
    }
}

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n)
{
    jinja_enter(&r->s);
    jinja_count(&r->s, 1);
    r->s.at = n->at;
    struct jinja_value v = eval(r, n);
    jinja_leave(&r->s);
    return v;
}
