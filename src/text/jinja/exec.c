/* Runs statements and whole templates. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/quote.h"
#include "base/str.h"
#include "text/jinja/jinja.h"
#include "text/jinja/run.h"

const struct jinja_limits jinja_default_limits = {
    .steps = (uint64_t)1 << 26, .memory = (size_t)1 << 28, .output = (size_t)1 << 26};

/* How a list of statements ended. */
enum leaving { AT_END, AT_BREAK, AT_CONTINUE };

static enum leaving run_list(struct jinja_run *r, const struct jinja_node *list);

/* --- names --- */

const struct jinja_value *jinja_lookup(const struct jinja_run *r, const struct jinja_symbol *symbol)
{
    for (const struct jinja_scope *s = r->scope; s; s = s->outer)
        for (const struct jinja_variable *v = s->variables; v; v = v->next)
            if (v->symbol == symbol)
                return &v->value;
    return NULL;
}

void jinja_set(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_symbol *symbol,
               struct jinja_value value)
{
    struct jinja_variable *v = scope->variables;
    while (v && v->symbol != symbol)
        v = v->next;
    if (!v) {
        v = jinja_alloc(&r->s, 1, sizeof *v);
        v->symbol = symbol;
        v->next = scope->variables;
        scope->variables = v;
    }
    v->value = value;
}

static struct jinja_scope *new_scope(struct jinja_run *r, struct jinja_scope *outer)
{
    struct jinja_scope *s = jinja_alloc(&r->s, 1, sizeof *s);
    s->outer = outer;
    return s;
}

static void set_member(struct jinja_run *r, const struct jinja_node *target, struct jinja_value v)
{
    struct jinja_value of = jinja_eval(r, target->a);
    r->s.at = target->at;
    if (of.kind != JINJA_NAMESPACE)
        jinja_fail(&r->s, ERR_FORMAT, "a member of a %s cannot be set, only one of a namespace",
                   jinja_type(of));
    if (target->text.bytes[0] == '_')
        jinja_fail(&r->s, ERR_FORMAT, "a namespace has no members that begin with _");
    jinja_put(&r->s, of, jinja_of_text(target->text), v);
}

static void set_target(struct jinja_run *r, const struct jinja_node *target, struct jinja_value v)
{
    if (target->kind == JINJA_N_NAME) {
        jinja_set(r, r->scope, target->symbol, v);
        return;
    }
    if (target->kind == JINJA_N_MEMBER) {
        set_member(r, target, v);
        return;
    }
    size_t n = 0, i = 0;
    r->s.at = target->at;
    const struct jinja_list *items = jinja_items(&r->s, v);
    for (const struct jinja_node *t = target->a; t; t = t->next)
        n++;
    if (v.kind == JINJA_UNDEFINED || items->n != n)
        jinja_fail(&r->s, ERR_FORMAT, "%zu values for %zu names", items->n, n);
    for (const struct jinja_node *t = target->a; t; t = t->next)
        set_target(r, t, items->items[i++]);
}

/* --- blocks --- */

/* Returns what the list writes. It runs in a new scope inside `scope`. */
static struct jinja_value capture(struct jinja_run *r, const struct jinja_node *list,
                                  struct jinja_scope *scope)
{
    struct jinja_build text = jinja_build(&r->s), *out = r->out;
    struct jinja_scope *before = r->scope;
    r->scope = scope;
    r->out = &text;
    run_list(r, list);
    r->out = out;
    r->scope = before;
    return jinja_of_text(jinja_built(&text));
}

static struct jinja_value eval_captured(struct jinja_run *r, const struct jinja_node *value,
                                        const struct jinja_node *list)
{
    struct jinja_value before = r->captured;
    r->captured = capture(r, list, new_scope(r, r->scope));
    struct jinja_value v = jinja_eval(r, value);
    r->captured = before;
    return v;
}

static void write_value(struct jinja_run *r, struct jinja_value v)
{
    jinja_build_value(r->out, v);
    if (r->out->len > r->output)
        jinja_fail(&r->s, ERR_UNSUPPORTED, "it writes more than %zu bytes", r->output);
}

static enum leaving run_if(struct jinja_run *r, const struct jinja_node *n)
{
    while (!jinja_truth(jinja_eval(r, n->a))) {
        n = n->c;
        if (!n || !n->is_elif)
            return run_list(r, n);
    }
    return run_list(r, n->b);
}

/* Returns the items of the loop for which its condition holds. */
static const struct jinja_list *loop_items(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_value what = jinja_eval(r, n->b);
    r->s.at = n->at;
    const struct jinja_list *items = jinja_items(&r->s, what);
    if (!n->e)
        return items;
    struct jinja_value chosen = jinja_new_list(&r->s, JINJA_LIST);
    struct jinja_scope *before = r->scope;
    for (size_t i = 0; i < items->n; i++) {
        r->scope = new_scope(r, before);
        set_target(r, n->a, items->items[i]);
        if (jinja_truth(jinja_eval(r, n->e)))
            jinja_append(&r->s, chosen, items->items[i]);
    }
    r->scope = before;
    return chosen.list;
}

static enum leaving run_for(struct jinja_run *r, const struct jinja_node *n)
{
    const struct jinja_list *items = loop_items(r, n);
    struct jinja_scope *before = r->scope;
    if (items->n == 0) {
        r->scope = new_scope(r, before);
        enum leaving how = run_list(r, n->d);
        r->scope = before;
        return how;
    }
    struct jinja_loop *loop = jinja_alloc(&r->s, 1, sizeof *loop);
    *loop = (struct jinja_loop){.items = items};
    for (; loop->index < items->n; loop->index++) {
        jinja_count(&r->s, 1);
        r->scope = new_scope(r, before);
        set_target(r, n->a, items->items[loop->index]);
        jinja_set(r, r->scope, r->template->loop, (struct jinja_value){.kind = JINJA_LOOP, .loop = loop});
        if (run_list(r, n->c) == AT_BREAK)
            break;
    }
    r->scope = before;
    return AT_END;
}

static void run_with(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_scope *before = r->scope, *scope = new_scope(r, before);
    for (const struct jinja_node *set = n->a; set; set = set->next)
        jinja_set(r, scope, set->a->symbol, jinja_eval(r, set->b));
    r->scope = scope;
    run_list(r, n->b);
    r->scope = before;
}

static struct jinja_value new_macro(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_macro *m = jinja_alloc(&r->s, 1, sizeof *m);
    *m = (struct jinja_macro){n, r->scope};
    return (struct jinja_value){.kind = JINJA_MACRO, .macro = m};
}

/* Runs the call with one more argument, `caller`. */
static void run_call_block(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_node *caller = jinja_alloc(&r->s, 2, sizeof *caller), *value = caller + 1;
    struct jinja_node call = *n->a;
    *caller = (struct jinja_node){
        .kind = JINJA_N_KEYWORD, .at = n->at, .text = jinja_text_of("caller"), .a = value};
    *value = (struct jinja_node){.kind = JINJA_N_CONST, .at = n->at, .value = new_macro(r, n->b)};
    /* The new argument may point to the template's own, which are read-only. A
     * keyword may come first here. */
    caller->next = call.b;
    call.b = caller;
    write_value(r, jinja_eval(r, &call));
}

/* --- macros --- */

static void bind_rest(struct jinja_run *r, const struct jinja_macro *m, struct jinja_args *args)
{
    struct jinja_value rest = jinja_new_list(&r->s, JINJA_TUPLE), named = jinja_new_dict(&r->s, JINJA_DICT);
    const struct jinja_value *caller = NULL;
    for (size_t i = 0; i < args->n_named; i++)
        if (!args->named[i].taken && m->node->uses_caller && jinja_text_is(args->named[i].name, "caller")) {
            caller = &args->named[i].value;
            args->named[i].taken = true;
        }
    for (; m->node->uses_varargs && args->n_taken < args->n; args->n_taken++)
        jinja_append(&r->s, rest, args->items[args->n_taken]);
    for (size_t i = 0; m->node->uses_kwargs && i < args->n_named; i++) {
        if (!args->named[i].taken)
            jinja_put(&r->s, named, jinja_of_text(args->named[i].name), args->named[i].value);
        args->named[i].taken = true;
    }
    if (m->node->uses_caller)
        jinja_set(r, r->scope, r->template->caller,
                  caller ? *caller : jinja_undefined(JINJA_UNDEFINED, jinja_text_of("caller")));
    if (m->node->uses_varargs)
        jinja_set(r, r->scope, r->template->varargs, rest);
    if (m->node->uses_kwargs)
        jinja_set(r, r->scope, r->template->kwargs, named);
    jinja_args_end(r, args, m->node->symbol->name);
}

static void bind_parameters(struct jinja_run *r, const struct jinja_macro *m, struct jinja_args *args)
{
    for (const struct jinja_node *p = m->node->a; p; p = p->next) {
        const struct jinja_value *given = NULL;
        if (args->n_taken < args->n)
            given = &args->items[args->n_taken++];
        for (size_t i = 0; i < args->n_named; i++) {
            if (!jinja_text_equal(args->named[i].name, p->symbol->name) || args->named[i].taken)
                continue;
            if (given)
                jinja_fail(&r->s, ERR_FORMAT, "the argument %s is given twice",
                           quote_bytes(p->symbol->name.bytes, p->symbol->name.len).text);
            given = &args->named[i].value;
            args->named[i].taken = true;
        }
        struct jinja_value v = jinja_undefined(JINJA_UNDEFINED, p->symbol->name);
        if (given)
            v = *given;
        else if (p->a)
            v = jinja_eval(r, p->a);
        jinja_set(r, r->scope, p->symbol, v);
    }
}

struct jinja_value jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m, struct jinja_args *args)
{
    struct jinja_scope *before = r->scope, *scope = new_scope(r, m->scope);
    r->scope = scope;
    bind_parameters(r, m, args);
    bind_rest(r, m, args);
    struct jinja_value text = capture(r, m->node->b, scope);
    r->scope = before;
    return text;
}

/* --- statements --- */

static enum leaving run_one(struct jinja_run *r, const struct jinja_node *n)
{
    switch (n->kind) {
    case JINJA_N_DATA:
        write_value(r, n->value);
        return AT_END;
    case JINJA_N_PRINT: {
        struct jinja_value v = jinja_eval(r, n->a);
        r->s.at = n->at;
        write_value(r, v);
        return AT_END;
    }
    case JINJA_N_IF:
        return run_if(r, n);
    case JINJA_N_FOR:
        return run_for(r, n);
    case JINJA_N_SET:
        set_target(r, n->a, jinja_eval(r, n->b));
        return AT_END;
    case JINJA_N_SET_BLOCK:
        set_target(r, n->a, eval_captured(r, n->b, n->c));
        return AT_END;
    case JINJA_N_MACRO:
        jinja_set(r, r->scope, n->symbol, new_macro(r, n));
        return AT_END;
    case JINJA_N_CALL_BLOCK:
        run_call_block(r, n);
        return AT_END;
    case JINJA_N_FILTER_BLOCK:
        write_value(r, eval_captured(r, n->b, n->c));
        return AT_END;
    case JINJA_N_WITH:
        run_with(r, n);
        return AT_END;
    case JINJA_N_GENERATION:
        write_value(r, capture(r, n->b, new_scope(r, r->scope)));
        return AT_END;
    case JINJA_N_BREAK:
        return AT_BREAK;
    default:
        return AT_CONTINUE;
    }
}

static enum leaving run_list(struct jinja_run *r, const struct jinja_node *list)
{
    enum leaving how = AT_END;
    jinja_enter(&r->s);
    for (const struct jinja_node *n = list; n && how == AT_END; n = n->next) {
        jinja_count(&r->s, 1);
        r->s.at = n->at;
        how = run_one(r, n);
    }
    jinja_leave(&r->s);
    return how;
}

/* A function of its own, so that no variable of the caller lives across setjmp. */
static int run(struct jinja_run *r)
{
    if (setjmp(r->s.failed))
        return r->s.rc;
    r->scope = new_scope(r, NULL);
    run_list(r, r->template->body);
    return 0;
}

static int give(const struct jinja_text text, struct str *out, struct str *authors, struct moeflux_err *e)
{
    size_t len = out->len, n_authors = authors ? authors->len : 0;
    str_add(out, text.bytes, text.len);
    if (authors && text.authors && text.authors != jinja_context_authors)
        str_add(authors, text.authors, text.len);
    for (size_t i = 0; authors && (!text.authors || text.authors == jinja_context_authors) && i < text.len;
         i++)
        str_add(authors, text.authors ? jinja_context_authors : "", 1);
    if (str_ok(out) && (!authors || str_ok(authors)))
        return 0;
    out->len = len;
    if (authors)
        authors->len = n_authors;
    return err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu bytes", text.len);
}

int jinja_render_authors(const struct jinja *t, const struct json_t *context, time_t now,
                         const struct jinja_limits *limits, struct str *out, struct str *authors,
                         struct moeflux_err *e)
{
    struct jinja_run r = {
        .s = {.memory = limits->memory,
              .steps = limits->steps,
              .depth = JINJA_RUN_DEPTH,
              .name = t->name,
              .e = e},
        .template = t,
        .context = context,
        .now = now,
        .output = limits->output,
    };
    struct jinja_build text = jinja_build(&r.s);
    r.out = &text;
    int rc = run(&r);
    if (rc == 0)
        rc = give(jinja_built(&text), out, authors, e);
    jinja_state_free(&r.s);
    return rc;
}

int jinja_render(const struct jinja *t, const struct json_t *context, time_t now, struct str *out,
                 struct moeflux_err *e)
{
    return jinja_render_authors(t, context, now, &jinja_default_limits, out, NULL, e);
}
