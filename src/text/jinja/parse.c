/* Parses statements and whole templates. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/jinja/jinja.h"
#include "text/jinja/node.h"
#include "text/jinja/text.h"
#include "text/utf8.h"

/* bytes; a tree takes up to about 500 bytes for each, and the largest published templates have 30 KiB */
enum { MAX_SOURCE = 1 << 18 };
#define PARSE_MEMORY ((size_t)256 << 20)
#define PARSE_STEPS  ((uint64_t)1 << 26)

/* --- tokens --- */

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *n = jinja_alloc(p->s, 1, sizeof *n);
    n->kind = kind;
    n->at = p->token->at;
    return n;
}

const struct jinja_symbol *jinja_intern(struct jinja_parser *p, struct jinja_text name)
{
    struct jinja_symbol *s = p->template->symbols;
    for (; s; s = s->next) {
        jinja_count(p->s, 1);
        if (jinja_text_equal(s->name, name))
            return s;
    }
    s = jinja_alloc(p->s, 1, sizeof *s);
    *s = (struct jinja_symbol){name, p->template->symbols};
    p->template->symbols = s;
    return s;
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return p->token->kind == JINJA_T_NAME && jinja_text_is(p->token->text, name);
}

bool jinja_at_sign(const struct jinja_parser *p, const char *sign)
{
    return p->token->kind == JINJA_T_SIGN && jinja_text_is(p->token->text, sign);
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    bool there = jinja_at_name(p, name);
    p->token += there;
    return there;
}

bool jinja_skip_sign(struct jinja_parser *p, const char *sign)
{
    bool there = jinja_at_sign(p, sign);
    p->token += there;
    return there;
}

struct jinja_text jinja_expect_name(struct jinja_parser *p, const char *what)
{
    if (p->token->kind != JINJA_T_NAME)
        jinja_unexpected(p, what);
    return (p->token++)->text;
}

void jinja_expect_sign(struct jinja_parser *p, const char *sign)
{
    if (!jinja_skip_sign(p, sign))
        jinja_unexpected(p, sign);
}

void jinja_unexpected(struct jinja_parser *p, const char *wanted)
{
    const struct jinja_token *t = p->token;
    p->s->at = t->at;
    if (t->kind == JINJA_T_END)
        jinja_fail(p->s, ERR_FORMAT, "expected %s, found the end of the template", wanted);
    jinja_fail(p->s, ERR_FORMAT, "expected %s, found %s", wanted,
               quote_bytes(t->text.bytes, t->text.len).text);
}

/* --- statements --- */

static struct jinja_node *read_until(struct jinja_parser *p, const char *const ends[]);

static void end_block(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_T_BLOCK_END)
        jinja_unexpected(p, "%}");
    p->token++;
}

/* Parses a body, from the current %} up to {% end. Takes the name `end`, but not its %}. */
static struct jinja_node *read_body(struct jinja_parser *p, const char *end)
{
    end_block(p);
    struct jinja_node *body = read_until(p, (const char *const[]){end, NULL});
    p->token++;
    return body;
}

static struct jinja_node *read_if(struct jinja_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *first = NULL, **at = &first;
    for (;;) {
        struct jinja_node *n = *at = jinja_node_new(p, JINJA_N_IF);
        n->is_elif = n != first;
        n->a = jinja_expressions(p, false, NULL);
        end_block(p);
        n->b = read_until(p, ends);
        if (jinja_skip_name(p, "elif")) {
            at = &n->c;
            continue;
        }
        if (jinja_skip_name(p, "else"))
            n->c = read_body(p, "endif");
        else
            p->token++;
        return first;
    }
}

static struct jinja_node *read_for(struct jinja_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jinja_node *n = jinja_node_new(p, JINJA_N_FOR);
    n->a = jinja_target(p, false);
    if (!jinja_skip_name(p, "in"))
        jinja_unexpected(p, "in");
    n->b = jinja_expressions(p, false, "recursive");
    if (jinja_skip_name(p, "if"))
        n->e = jinja_expression(p);
    if (jinja_at_name(p, "recursive")) {
        p->s->at = p->token->at;
        jinja_fail(p->s, ERR_UNSUPPORTED, "recursive loops are not known");
    }
    end_block(p);
    p->n_loops++;
    n->c = read_until(p, ends);
    p->n_loops--;
    if (jinja_skip_name(p, "else"))
        n->d = read_body(p, "endfor");
    else
        p->token++;
    return n;
}

static struct jinja_node *read_set(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_SET);
    n->a = jinja_target(p, true);
    if (jinja_skip_sign(p, "=")) {
        n->b = jinja_expressions(p, true, NULL);
        return n;
    }
    n->kind = JINJA_N_SET_BLOCK;
    n->b = jinja_filters(p, jinja_node_new(p, JINJA_N_CAPTURED), false);
    n->c = read_body(p, "endset");
    return n;
}

static struct jinja_node *read_parameters(struct jinja_parser *p)
{
    struct jinja_node *first = NULL, **end = &first;
    bool optional = false;
    jinja_expect_sign(p, "(");
    while (!jinja_at_sign(p, ")")) {
        if (first)
            jinja_expect_sign(p, ",");
        struct jinja_node *n = jinja_node_new(p, JINJA_N_PARAMETER);
        n->symbol = jinja_intern(p, jinja_expect_name(p, "a parameter's name"));
        if (jinja_skip_sign(p, "="))
            n->a = jinja_expression(p);
        else if (optional)
            jinja_unexpected(p, "= and a default, as the parameter before it has one");
        optional = n->a;
        *end = n;
        end = &n->next;
    }
    jinja_expect_sign(p, ")");
    return first;
}

/* Parses the body of a macro or of a call block. */
static void read_macro_body(struct jinja_parser *p, struct jinja_node *n, const char *end)
{
    struct jinja_node *outer = p->macro;
    uint32_t n_loops = p->n_loops;
    p->macro = n;
    p->n_loops = 0;
    n->b = read_body(p, end);
    p->macro = outer;
    p->n_loops = n_loops;
}

static struct jinja_node *read_macro(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_MACRO);
    n->symbol = jinja_intern(p, jinja_expect_name(p, "the macro's name"));
    n->a = read_parameters(p);
    read_macro_body(p, n, "endmacro");
    return n;
}

static struct jinja_node *read_call_block(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_CALL_BLOCK);
    n->b = jinja_node_new(p, JINJA_N_MACRO);
    n->b->symbol = p->template->caller;
    if (jinja_at_sign(p, "("))
        n->b->a = read_parameters(p);
    n->a = jinja_expression(p);
    p->s->at = n->a->at;
    if (n->a->kind != JINJA_N_CALL)
        jinja_fail(p->s, ERR_FORMAT, "{%% call needs a call");
    read_macro_body(p, n->b, "endcall");
    return n;
}

static struct jinja_node *read_filter_block(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_FILTER_BLOCK);
    n->b = jinja_filters(p, jinja_node_new(p, JINJA_N_CAPTURED), true);
    n->c = read_body(p, "endfilter");
    return n;
}

static struct jinja_node *read_with(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_WITH), **end = &n->a;
    while (p->token->kind != JINJA_T_BLOCK_END) {
        if (n->a)
            jinja_expect_sign(p, ",");
        struct jinja_node *set = jinja_node_new(p, JINJA_N_SET);
        set->a = jinja_node_new(p, JINJA_N_NAME);
        set->a->symbol = jinja_intern(p, jinja_expect_name(p, "a name"));
        jinja_expect_sign(p, "=");
        set->b = jinja_expression(p);
        *end = set;
        end = &set->next;
    }
    n->b = read_body(p, "endwith");
    return n;
}

/* Loops outside of the block do not count, since transformers wraps it in a call. */
static struct jinja_node *read_generation(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, JINJA_N_GENERATION);
    uint32_t n_loops = p->n_loops;
    p->n_loops = 0;
    n->b = read_body(p, "endgeneration");
    p->n_loops = n_loops;
    return n;
}

static struct jinja_node *read_leave(struct jinja_parser *p, enum jinja_node_kind kind)
{
    if (p->n_loops == 0)
        jinja_fail(p->s, ERR_FORMAT, "break or continue outside of a loop");
    return jinja_node_new(p, kind);
}

/* Parses a statement after {%, at a name that does not end the enclosing block. */
static struct jinja_node *read_statement(struct jinja_parser *p)
{
    static struct jinja_node *(*const readers[])(struct jinja_parser *) = {
        read_if,         read_for,          read_set,  read_macro,
        read_call_block, read_filter_block, read_with, read_generation};
    static const char *const names[] = {"if", "for", "set", "macro", "call", "filter", "with", "generation"};
    p->s->at = p->token->at;
    if (jinja_skip_name(p, "break"))
        return read_leave(p, JINJA_N_BREAK);
    if (jinja_skip_name(p, "continue"))
        return read_leave(p, JINJA_N_CONTINUE);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (jinja_skip_name(p, names[i]))
            return readers[i](p);
    struct jinja_text name = p->token->text;
    jinja_fail(p->s, name.len > 3 && memcmp(name.bytes, "end", 3) == 0 ? ERR_FORMAT : ERR_UNSUPPORTED,
               "the tag %s is not expected here, or not known", quote_bytes(name.bytes, name.len).text);
}

static struct jinja_node *read_one(struct jinja_parser *p)
{
    struct jinja_node *n;
    if (p->token->kind == JINJA_T_DATA) {
        n = jinja_node_new(p, JINJA_N_DATA);
        n->value = (p->token++)->value;
        return n;
    }
    if (p->token->kind == JINJA_T_PRINT) {
        p->token++;
        n = jinja_node_new(p, JINJA_N_PRINT);
        n->a = jinja_expressions(p, true, NULL);
        if (p->token->kind != JINJA_T_PRINT_END)
            jinja_unexpected(p, "}}");
        p->token++;
        return n;
    }
    if (p->token->kind != JINJA_T_BLOCK)
        jinja_unexpected(p, "a tag");
    p->token++;
    if (p->token->kind != JINJA_T_NAME)
        jinja_unexpected(p, "the name of a tag");
    n = read_statement(p);
    end_block(p);
    return n;
}

/* Parses up to one of the names, which is then the next token; ends NULL: to the end of the template. */
static struct jinja_node *read_until(struct jinja_parser *p, const char *const ends[])
{
    struct jinja_node *first = NULL, **end = &first;
    jinja_enter(p->s);
    while (p->token->kind != JINJA_T_END) {
        bool ended = false;
        for (size_t i = 0; p->token->kind == JINJA_T_BLOCK && ends && ends[i] && !ended; i++)
            ended = p->token[1].kind == JINJA_T_NAME && jinja_text_is(p->token[1].text, ends[i]);
        if (ended) {
            p->token++;
            jinja_leave(p->s);
            return first;
        }
        *end = read_one(p);
        end = &(*end)->next;
    }
    if (ends)
        jinja_unexpected(p, ends[0]);
    jinja_leave(p->s);
    return first;
}

/* --- the template --- */

/* A function of its own, so that no variable of the caller lives across setjmp. */
static int parse(struct jinja *t, const char *source, size_t len)
{
    struct jinja_parser p = {.s = &t->state, .template = t};
    if (setjmp(t->state.failed))
        return t->state.rc;
    if (len > MAX_SOURCE)
        jinja_fail(p.s, ERR_UNSUPPORTED, "%zu bytes, a template may have %d", len, MAX_SOURCE);
    if (!utf8_is_valid(source, len))
        jinja_fail(p.s, ERR_FORMAT, "the template is not UTF-8");
    p.token = jinja_lex(p.s, source, len).tokens;
    t->loop = jinja_intern(&p, jinja_text_of("loop"));
    t->caller = jinja_intern(&p, jinja_text_of("caller"));
    t->varargs = jinja_intern(&p, jinja_text_of("varargs"));
    t->kwargs = jinja_intern(&p, jinja_text_of("kwargs"));
    t->body = read_until(&p, NULL);
    return 0;
}

int jinja_parse(struct jinja **out, const char *source, size_t len, const char *name, struct moeflux_err *e)
{
    struct jinja *t = mem_new(1, sizeof *t, e);
    *out = NULL;
    if (!t || !(t->name = mem_text(name, e))) {
        jinja_free(t);
        return ERR_MEMORY;
    }
    t->state.name = t->name;
    t->state.e = e;
    t->state.memory = PARSE_MEMORY;
    t->state.steps = PARSE_STEPS;
    t->state.depth = JINJA_PARSE_DEPTH;
    int rc = parse(t, source, len);
    t->state.e = NULL;
    if (rc == 0)
        *out = t;
    else
        jinja_free(t);
    return rc;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    jinja_state_free(&t->state);
    free(t->name);
    free(t);
}
