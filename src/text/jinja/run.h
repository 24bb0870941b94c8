/* run.h - the state of a running template: variables, calls, and what filters, tests and methods use. A part
 * of jinja. */
#ifndef MOEFLUX_TEXT_JINJA_RUN_H
#define MOEFLUX_TEXT_JINJA_RUN_H

#include <time.h>

#include "text/jinja/node.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

/* A name's value. A loop's or macro's variables end with it, as in jinja2. */
struct jinja_variable {
    const struct jinja_symbol *symbol;
    struct jinja_value value;
    struct jinja_variable *next;
};
struct jinja_scope {
    struct jinja_scope *outer;
    struct jinja_variable *variables;
};

struct jinja_run {
    struct jinja_state s;
    const struct jinja *template;
    const struct json_t *context;
    time_t now;
    struct jinja_scope *scope;
    struct jinja_build *out;
    size_t output;               /* bytes that `out` may have at most */
    struct jinja_value captured; /* value of JINJA_N_CAPTURED */
};

struct jinja_named {
    struct jinja_text name;
    struct jinja_value value;
    bool taken;
};
struct jinja_args {
    struct jinja_value *items;
    size_t n, n_taken;
    struct jinja_named *named;
    size_t n_named;
};
/* Takes the next positional argument, or else the one with this name; NULL: not given. */
const struct jinja_value *jinja_take(struct jinja_args *a, const char *name);
/* Takes an argument that must be given. */
struct jinja_value jinja_need(struct jinja_run *r, struct jinja_args *a, const char *name);
/* Take an argument as a bool, integer or text; fail if it has another type. */
bool jinja_take_bool(struct jinja_args *a, const char *name, bool fallback);
int64_t jinja_take_int(struct jinja_run *r, struct jinja_args *a, const char *name, int64_t fallback);
struct jinja_text jinja_take_text(struct jinja_run *r, struct jinja_args *a, const char *name,
                                  const char *fallback);
/* Fails if arguments are left over. `what`: the name of what was called. */
void jinja_args_end(struct jinja_run *r, const struct jinja_args *a, struct jinja_text what);

struct jinja_loop {
    const struct jinja_list *items;
    size_t index; /* current item, from 0 */
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
};

struct jinja_function {
    const char *name;
    struct jinja_value (*call)(struct jinja_run *r, struct jinja_args *args);
};
/* Returns a global function (raise_exception, range ...); NULL: it is not known. */
const struct jinja_function *jinja_function_find(struct jinja_text name);

struct jinja_method {
    const char *name;
    struct jinja_value (*call)(struct jinja_run *r, struct jinja_value self, struct jinja_args *args);
};
struct jinja_bound {
    const struct jinja_method *method;
    struct jinja_value self;
};
/* Returns the method of this name; NULL: values of this kind have none. */
const struct jinja_method *jinja_method_find(enum jinja_kind kind, struct jinja_text name);
/* Returns the methods of lists, tuples or dicts; the last one has no name. NULL: values of this kind have
 * none. */
const struct jinja_method *jinja_container_methods(enum jinja_kind kind);

/* Put the entries of a dict, or pairs, into a dict; and all named arguments, which are taken. */
void jinja_put_all(struct jinja_run *r, struct jinja_value dict, struct jinja_value from);
void jinja_put_named(struct jinja_run *r, struct jinja_value dict, struct jinja_args *args);

/* --- expressions (eval.c) --- */
struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n);
struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value what, struct jinja_args *args);
/* Return v.name and v[key]. */
struct jinja_value jinja_member(struct jinja_run *r, struct jinja_value v, struct jinja_text name);
struct jinja_value jinja_item(struct jinja_run *r, struct jinja_value v, struct jinja_value key);
/* Run a filter or a test; NULL (the name is not known) fails. */
struct jinja_value jinja_filter_by_name(struct jinja_run *r, struct jinja_text name, jinja_filter *filter,
                                        struct jinja_value v, struct jinja_args *args);
bool jinja_test_by_name(struct jinja_run *r, struct jinja_text name, const struct jinja_test *test,
                        struct jinja_value v, struct jinja_args *args);

/* --- operators (operators.c) --- */
struct jinja_value jinja_binary(struct jinja_run *r, const char sign[2], struct jinja_value a,
                                struct jinja_value b);
struct jinja_value jinja_signed(struct jinja_run *r, char sign, struct jinja_value v);
bool jinja_compare(struct jinja_run *r, const char sign[2], struct jinja_value a, struct jinja_value b);
/* Returns v[from:to:step]; NULL: left out. */
struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value v, const struct jinja_value *from,
                               const struct jinja_value *to, const struct jinja_value *step);

/* --- statements (exec.c) --- */
struct jinja_value jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m,
                                    struct jinja_args *args);
/* Returns the variable's value; NULL: not set. */
const struct jinja_value *jinja_lookup(const struct jinja_run *r, const struct jinja_symbol *symbol);
void jinja_set(struct jinja_run *r, struct jinja_scope *scope, const struct jinja_symbol *symbol,
               struct jinja_value value);

/* --- JSON, time --- */
void jinja_build_json(struct jinja_build *b, struct jinja_value v, struct jinja_args *options,
                      struct jinja_run *r);
struct jinja_text jinja_time(struct jinja_state *s, time_t when, struct jinja_text format);

/* --- filters of sequences (sequences.c) --- */
jinja_filter jinja_filter_batch, jinja_filter_dictsort, jinja_filter_first, jinja_filter_items,
    jinja_filter_join, jinja_filter_last, jinja_filter_list, jinja_filter_map, jinja_filter_max,
    jinja_filter_min, jinja_filter_reject, jinja_filter_rejectattr, jinja_filter_reverse, jinja_filter_select,
    jinja_filter_selectattr, jinja_filter_sort, jinja_filter_sum, jinja_filter_unique;

#endif
