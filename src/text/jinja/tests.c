/* The tests that follow `is`, and the table of all tests. */
#include "base/err.h"
#include "text/jinja/run.h"

#define KIND(k) (1u << JINJA_##k)

static bool is_equal(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_equal(&r->s, v, jinja_need(r, args, "b"));
}

static bool is_unequal(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return !jinja_equal(&r->s, v, jinja_need(r, args, "b"));
}

static bool is_less(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_order(&r->s, v, jinja_need(r, args, "b")) < 0;
}

static bool is_less_or_equal(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_order(&r->s, v, jinja_need(r, args, "b")) <= 0;
}

static bool is_greater(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_order(&r->s, v, jinja_need(r, args, "b")) > 0;
}

static bool is_greater_or_equal(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_order(&r->s, v, jinja_need(r, args, "b")) >= 0;
}

static bool is_in(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return jinja_contains(&r->s, jinja_need(r, args, "seq"), v);
}

static bool is_true(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return v.kind == JINJA_BOOL && v.truth;
}

static bool is_false(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return v.kind == JINJA_BOOL && !v.truth;
}

/* Compares like Python's `is`, for the cases on which a template can rely. */
static bool is_same(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    struct jinja_value other = jinja_need(r, args, "other");
    if (v.kind != other.kind || v.kind == JINJA_UNDEFINED)
        return false;
    if (jinja_is_sequence(v))
        return v.list == other.list;
    return v.kind == JINJA_DICT ? v.dict == other.dict : jinja_equal(&r->s, v, other);
}

static int64_t remainder_of(struct jinja_run *r, struct jinja_value v, struct jinja_value by)
{
    struct jinja_value rest = jinja_binary(r, "%", v, by);
    return rest.kind == JINJA_FLOAT ? rest.real != 0 : rest.number;
}

static bool is_odd(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return jinja_equal(&r->s, jinja_binary(r, "%", v, jinja_int(2)), jinja_int(1));
}

static bool is_even(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return remainder_of(r, v, jinja_int(2)) == 0;
}

static bool is_divisible(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    return remainder_of(r, v, jinja_need(r, args, "num")) == 0;
}

/* Returns whether the text has letters and all of them are in the case `how`. */
static bool has_case(struct jinja_run *r, struct jinja_value v, enum jinja_case how)
{
    struct jinja_text text = jinja_str(&r->s, v);
    enum jinja_case other = how == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER;
    return jinja_text_equal(text, jinja_to_case(&r->s, text, how)) &&
           !jinja_text_equal(text, jinja_to_case(&r->s, text, other));
}

static bool is_lower(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return has_case(r, v, JINJA_LOWER);
}

static bool is_upper(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return has_case(r, v, JINJA_UPPER);
}

static bool is_filter(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return v.kind == JINJA_TEXT && jinja_filter_find(v.text);
}

static bool is_test(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return v.kind == JINJA_TEXT && jinja_test_find(v.text);
}

const struct jinja_test *jinja_test_find(struct jinja_text name)
{
    static const struct jinja_test tests[] = {
        {"defined", ~KIND(UNDEFINED), NULL},
        {"undefined", KIND(UNDEFINED), NULL},
        {"none", KIND(NONE), NULL},
        {"boolean", KIND(BOOL), NULL},
        {"true", 0, is_true},
        {"false", 0, is_false},
        {"integer", KIND(INT), NULL},
        {"float", KIND(FLOAT), NULL},
        {"number", KIND(INT) | KIND(FLOAT) | KIND(BOOL), NULL},
        {"string", KIND(TEXT), NULL},
        {"mapping", KIND(DICT), NULL},
        {"sequence", KIND(TEXT) | KIND(LIST) | KIND(TUPLE) | KIND(DICT), NULL},
        {"iterable",
         KIND(TEXT) | KIND(LIST) | KIND(TUPLE) | KIND(DICT) | KIND(ITERATOR) | KIND(UNDEFINED) | KIND(LOOP),
         NULL},
        {"callable", KIND(MACRO) | KIND(FUNCTION) | KIND(METHOD) | KIND(UNDEFINED), NULL},
        {"sameas", 0, is_same},
        {"in", 0, is_in},
        {"odd", 0, is_odd},
        {"even", 0, is_even},
        {"divisibleby", 0, is_divisible},
        {"lower", 0, is_lower},
        {"upper", 0, is_upper},
        {"filter", 0, is_filter},
        {"test", 0, is_test},
        {"eq", 0, is_equal},
        {"equalto", 0, is_equal},
        {"==", 0, is_equal},
        {"ne", 0, is_unequal},
        {"!=", 0, is_unequal},
        {"lt", 0, is_less},
        {"lessthan", 0, is_less},
        {"<", 0, is_less},
        {"le", 0, is_less_or_equal},
        {"<=", 0, is_less_or_equal},
        {"gt", 0, is_greater},
        {"greaterthan", 0, is_greater},
        {">", 0, is_greater},
        {"ge", 0, is_greater_or_equal},
        {">=", 0, is_greater_or_equal},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (jinja_text_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
