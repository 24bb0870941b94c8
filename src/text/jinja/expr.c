/* Parses expressions: one function for each of jinja2's levels of precedence. */
#include <string.h>

#include "base/err.h"
#include "text/jinja/node.h"
#include "text/jinja/text.h"

static struct jinja_node *read_unary(struct jinja_parser *p, bool with_filters);
static struct jinja_node *read_choice(struct jinja_parser *p);
static struct jinja_node *read_or(struct jinja_parser *p);

/* --- lists of nodes --- */

struct tail {
    struct jinja_node *first, **end;
};

static void tail_add(struct tail *t, struct jinja_node *n)
{
    *(t->end ? t->end : &t->first) = n;
    t->end = &n->next;
}

static struct jinja_node *join(struct jinja_parser *p, enum jinja_node_kind kind, const char *sign,
                               struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *n = jinja_node_new(p, kind);
    n->at = a->at;
    memcpy(n->sign, sign, strnlen(sign, sizeof n->sign));
    n->a = a;
    n->b = b;
    return n;
}

/* --- primaries --- */

static struct jinja_node *constant(struct jinja_parser *p, struct jinja_value v)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_CONST);
    n->value = v;
    p->token++;
    return n;
}

static struct jinja_node *read_name(struct jinja_parser *p)
{
    struct jinja_text name = p->token->text;
    if (jinja_text_is(name, "true") || jinja_text_is(name, "True"))
        return constant(p, jinja_bool(true));
    if (jinja_text_is(name, "false") || jinja_text_is(name, "False"))
        return constant(p, jinja_bool(false));
    if (jinja_text_is(name, "none") || jinja_text_is(name, "None"))
        return constant(p, jinja_none());
    struct jinja_node *n = jinja_node_new(p, JINJA_N_NAME);
    n->symbol = jinja_intern(p, name);
    if (p->macro) {
        p->macro->uses_caller |= jinja_text_is(name, "caller");
        p->macro->uses_varargs |= jinja_text_is(name, "varargs");
        p->macro->uses_kwargs |= jinja_text_is(name, "kwargs");
    }
    p->token++;
    return n;
}

/* Reads a string. Adjacent strings are concatenated. */
static struct jinja_node *read_string(struct jinja_parser *p)
{
    struct jinja_node *n = constant(p, p->token->value);
    if (p->token->kind != JINJA_T_STRING)
        return n;
    struct jinja_build b = jinja_build(p->s);
    jinja_build_value(&b, n->value);
    for (; p->token->kind == JINJA_T_STRING; p->token++)
        jinja_build_value(&b, p->token->value);
    n->value = jinja_of_text(jinja_built(&b));
    return n;
}

static struct jinja_node *read_list(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_LIST);
    struct tail items = {0};
    jinja_expect_sign(p, "[");
    while (!jinja_at_sign(p, "]")) {
        if (items.first)
            jinja_expect_sign(p, ",");
        if (jinja_at_sign(p, "]"))
            break;
        tail_add(&items, jinja_expression(p));
    }
    jinja_expect_sign(p, "]");
    n->a = items.first;
    return n;
}

static struct jinja_node *read_dict(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_DICT);
    struct tail items = {0};
    jinja_expect_sign(p, "{");
    while (!jinja_at_sign(p, "}")) {
        if (items.first)
            jinja_expect_sign(p, ",");
        if (jinja_at_sign(p, "}"))
            break;
        struct jinja_node *entry = jinja_node_new(p, JINJA_N_ENTRY);
        entry->a = jinja_expression(p);
        jinja_expect_sign(p, ":");
        entry->b = jinja_expression(p);
        tail_add(&items, entry);
    }
    jinja_expect_sign(p, "}");
    n->a = items.first;
    return n;
}

static struct jinja_node *read_primary(struct jinja_parser *p)
{
    switch (p->token->kind) {
    case JINJA_T_NAME:
        return read_name(p);
    case JINJA_T_STRING:
        return read_string(p);
    case JINJA_T_NUMBER:
        return constant(p, p->token->value);
    default:
        break;
    }
    if (jinja_at_sign(p, "["))
        return read_list(p);
    if (jinja_at_sign(p, "{"))
        return read_dict(p);
    if (!jinja_at_sign(p, "("))
        jinja_unexpected(p, "an expression");
    struct jinja_node *empty = jinja_node_new(p, JINJA_N_TUPLE);
    p->token++;
    struct jinja_node *n = jinja_at_sign(p, ")") ? empty : jinja_expressions(p, true, NULL);
    jinja_expect_sign(p, ")");
    return n;
}

/* --- what follows a primary --- */

static struct jinja_node *read_argument(struct jinja_parser *p)
{
    const struct jinja_token *next = p->token + 1;
    struct jinja_node *n;
    if (jinja_at_sign(p, "*") || jinja_at_sign(p, "**")) {
        n = jinja_node_new(p, jinja_at_sign(p, "*") ? JINJA_N_SPREAD : JINJA_N_SPREAD_KEYS);
        p->token++;
        n->a = jinja_expression(p);
        return n;
    }
    if (p->token->kind != JINJA_T_NAME || next->kind != JINJA_T_SIGN || !jinja_text_is(next->text, "="))
        return jinja_expression(p);
    n = jinja_node_new(p, JINJA_N_KEYWORD);
    n->text = p->token->text;
    p->token += 2;
    n->a = jinja_expression(p);
    return n;
}

static struct jinja_node *read_arguments(struct jinja_parser *p)
{
    struct tail items = {0};
    bool named = false;
    jinja_expect_sign(p, "(");
    while (!jinja_at_sign(p, ")")) {
        if (items.first)
            jinja_expect_sign(p, ",");
        if (jinja_at_sign(p, ")"))
            break;
        struct jinja_node *n = read_argument(p);
        bool is_named = n->kind == JINJA_N_KEYWORD || n->kind == JINJA_N_SPREAD_KEYS;
        p->s->at = n->at;
        if (named && !is_named)
            jinja_fail(p->s, ERR_FORMAT, "an argument without a name after one with a name");
        named |= is_named;
        tail_add(&items, n);
    }
    jinja_expect_sign(p, ")");
    return items.first;
}

static struct jinja_node *read_call(struct jinja_parser *p, struct jinja_node *what)
{
    struct jinja_node *n = join(p, JINJA_N_CALL, "", what, NULL);
    n->b = read_arguments(p);
    return n;
}

static struct jinja_node *bound_of_slice(struct jinja_parser *p)
{
    return jinja_at_sign(p, ":") || jinja_at_sign(p, "]") ? NULL : jinja_expression(p);
}

static struct jinja_node *read_item(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *n = join(p, JINJA_N_ITEM, "", of, NULL);
    jinja_expect_sign(p, "[");
    if (!jinja_at_sign(p, ":"))
        n->b = jinja_expression(p);
    if (jinja_skip_sign(p, ":")) {
        n->kind = JINJA_N_SLICE;
        n->c = bound_of_slice(p);
        if (jinja_skip_sign(p, ":"))
            n->d = bound_of_slice(p);
    }
    jinja_expect_sign(p, "]");
    return n;
}

static struct jinja_node *read_member(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *n = join(p, JINJA_N_MEMBER, "", of, NULL);
    jinja_expect_sign(p, ".");
    n->at = p->token->at;
    if (p->token->kind == JINJA_T_NUMBER && p->token->value.kind == JINJA_INT) {
        n->kind = JINJA_N_ITEM;
        n->b = constant(p, p->token->value);
        return n;
    }
    n->text = jinja_expect_name(p, "the name of a member");
    return n;
}

static struct jinja_node *read_postfix(struct jinja_parser *p, struct jinja_node *n)
{
    for (;;) {
        if (jinja_at_sign(p, "."))
            n = read_member(p, n);
        else if (jinja_at_sign(p, "["))
            n = read_item(p, n);
        else if (jinja_at_sign(p, "("))
            n = read_call(p, n);
        else
            return n;
    }
}

struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *input, bool inline_first)
{
    struct jinja_node *n = input;
    while (inline_first || jinja_skip_sign(p, "|")) {
        inline_first = false;
        n = join(p, JINJA_N_FILTER, "", n, NULL);
        n->at = p->token->at;
        n->text = jinja_expect_name(p, "the name of a filter");
        n->filter = jinja_filter_find(n->text);
        if (jinja_at_sign(p, "("))
            n->b = read_arguments(p);
    }
    return n;
}

static bool test_takes_next(const struct jinja_parser *p)
{
    if (p->token->kind == JINJA_T_NAME)
        return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and");
    return p->token->kind == JINJA_T_STRING || p->token->kind == JINJA_T_NUMBER || jinja_at_sign(p, "[") ||
           jinja_at_sign(p, "{");
}

static struct jinja_node *read_test(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *n = join(p, JINJA_N_TEST, "", of, NULL);
    p->token++;
    bool negated = jinja_skip_name(p, "not");
    n->at = p->token->at;
    n->text = jinja_expect_name(p, "the name of a test");
    n->test = jinja_test_find(n->text);
    if (jinja_at_sign(p, "("))
        n->b = read_arguments(p);
    else if (test_takes_next(p)) {
        if (jinja_at_name(p, "is"))
            jinja_unexpected(p, "one test alone (is a is b has no meaning)");
        n->b = read_postfix(p, read_primary(p));
    }
    return negated ? join(p, JINJA_N_NOT, "", n, NULL) : n;
}

static struct jinja_node *read_filters_and_tests(struct jinja_parser *p, struct jinja_node *n)
{
    for (;;) {
        if (jinja_at_sign(p, "|"))
            n = jinja_filters(p, n, false);
        else if (jinja_at_name(p, "is"))
            n = read_test(p, n);
        else if (jinja_at_sign(p, "("))
            n = read_call(p, n);
        else
            return n;
    }
}

/* --- operators --- */

static struct jinja_node *read_unary(struct jinja_parser *p, bool with_filters)
{
    struct jinja_node *n;
    jinja_enter(p->s);
    if (jinja_at_sign(p, "-") || jinja_at_sign(p, "+")) {
        n = jinja_node_new(p, JINJA_N_SIGNED);
        n->sign[0] = p->token->text.bytes[0];
        p->token++;
        n->a = read_unary(p, false);
    } else {
        n = read_primary(p);
    }
    n = read_postfix(p, n);
    if (with_filters)
        n = read_filters_and_tests(p, n);
    jinja_leave(p->s);
    return n;
}

static struct jinja_node *read_power(struct jinja_parser *p)
{
    struct jinja_node *n = read_unary(p, true);
    while (jinja_skip_sign(p, "**"))
        n = join(p, JINJA_N_BINARY, "**", n, read_unary(p, true));
    return n;
}

static struct jinja_node *read_product(struct jinja_parser *p)
{
    static const char *const signs[] = {"*", "//", "/", "%"};
    struct jinja_node *n = read_power(p);
    for (size_t i = 0; i < 4; i++) {
        if (!jinja_skip_sign(p, signs[i]))
            continue;
        n = join(p, JINJA_N_BINARY, signs[i], n, read_power(p));
        i = (size_t)-1;
    }
    return n;
}

static struct jinja_node *read_concat(struct jinja_parser *p)
{
    struct jinja_node *n = read_product(p);
    while (jinja_skip_sign(p, "~"))
        n = join(p, JINJA_N_CONCAT, "", n, read_product(p));
    return n;
}

static struct jinja_node *read_sum(struct jinja_parser *p)
{
    struct jinja_node *n = read_concat(p);
    for (;;) {
        if (jinja_skip_sign(p, "+"))
            n = join(p, JINJA_N_BINARY, "+", n, read_concat(p));
        else if (jinja_skip_sign(p, "-"))
            n = join(p, JINJA_N_BINARY, "-", n, read_concat(p));
        else
            return n;
    }
}

static const char *comparison(struct jinja_parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (jinja_skip_sign(p, signs[i]))
            return signs[i];
    if (jinja_skip_name(p, "in"))
        return "i";
    const struct jinja_token *next = p->token + 1;
    if (jinja_at_name(p, "not") && next->kind == JINJA_T_NAME && jinja_text_is(next->text, "in")) {
        p->token += 2;
        return "n";
    }
    return NULL;
}

static struct jinja_node *read_compare(struct jinja_parser *p)
{
    struct jinja_node *n = read_sum(p);
    struct tail operands = {0};
    const char *sign;
    while ((sign = comparison(p)))
        tail_add(&operands, join(p, JINJA_N_OPERAND, sign, read_sum(p), NULL));
    return operands.first ? join(p, JINJA_N_COMPARE, "", n, operands.first) : n;
}

static struct jinja_node *read_not(struct jinja_parser *p)
{
    if (!jinja_at_name(p, "not"))
        return read_compare(p);
    struct jinja_node *n = jinja_node_new(p, JINJA_N_NOT);
    p->token++;
    jinja_enter(p->s);
    n->a = read_not(p);
    jinja_leave(p->s);
    return n;
}

static struct jinja_node *read_and(struct jinja_parser *p)
{
    struct jinja_node *n = read_not(p);
    while (jinja_skip_name(p, "and"))
        n = join(p, JINJA_N_AND, "", n, read_not(p));
    return n;
}

static struct jinja_node *read_or(struct jinja_parser *p)
{
    struct jinja_node *n = read_and(p);
    while (jinja_skip_name(p, "or"))
        n = join(p, JINJA_N_OR, "", n, read_and(p));
    return n;
}

static struct jinja_node *read_choice(struct jinja_parser *p)
{
    struct jinja_node *n = read_or(p);
    while (jinja_skip_name(p, "if")) {
        struct jinja_node *choice = join(p, JINJA_N_CHOICE, "", n, NULL);
        choice->b = n;
        choice->a = read_or(p);
        if (jinja_skip_name(p, "else")) {
            jinja_enter(p->s);
            choice->c = read_choice(p);
            jinja_leave(p->s);
        }
        n = choice;
    }
    return n;
}

struct jinja_node *jinja_expression(struct jinja_parser *p)
{
    jinja_enter(p->s);
    struct jinja_node *n = read_choice(p);
    jinja_leave(p->s);
    return n;
}

static bool at_end(const struct jinja_parser *p, const char *end)
{
    return p->token->kind == JINJA_T_PRINT_END || p->token->kind == JINJA_T_BLOCK_END ||
           jinja_at_sign(p, ")") || (end && jinja_at_name(p, end));
}

struct jinja_node *jinja_expressions(struct jinja_parser *p, bool with_choice, const char *end)
{
    struct jinja_node *tuple = jinja_node_new(p, JINJA_N_TUPLE);
    struct tail items = {0};
    bool comma = false;
    do {
        if (comma && at_end(p, end))
            break;
        tail_add(&items, with_choice ? jinja_expression(p) : read_or(p));
    } while (jinja_skip_sign(p, ",") && (comma = true));
    if (!comma)
        return items.first;
    tuple->a = items.first;
    return tuple;
}

/* --- targets --- */

static struct jinja_node *read_target(struct jinja_parser *p, bool with_members)
{
    struct jinja_node *n;
    if (jinja_at_sign(p, "(")) {
        p->token++;
        jinja_enter(p->s);
        n = jinja_target(p, with_members);
        jinja_leave(p->s);
        jinja_expect_sign(p, ")");
        return n;
    }
    n = jinja_node_new(p, JINJA_N_NAME);
    n->symbol = jinja_intern(p, jinja_expect_name(p, "a name"));
    if (!with_members || !jinja_skip_sign(p, "."))
        return n;
    n = join(p, JINJA_N_MEMBER, "", n, NULL);
    n->text = jinja_expect_name(p, "the name of a member");
    return n;
}

struct jinja_node *jinja_target(struct jinja_parser *p, bool with_members)
{
    struct jinja_node *tuple = jinja_node_new(p, JINJA_N_TUPLE);
    struct tail items = {0};
    bool comma = false;
    do {
        if (comma && (at_end(p, "in") || jinja_at_sign(p, "=")))
            break;
        tail_add(&items, read_target(p, with_members));
    } while (jinja_skip_sign(p, ",") && (comma = true));
    if (!comma)
        return items.first;
    tuple->a = items.first;
    return tuple;
}
