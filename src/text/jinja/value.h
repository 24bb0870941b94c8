/* value.h - the values of a running template, with Python's semantics. A part of jinja. Failures do not
 * return, and memory belongs to the state (state.h).
 *
 * A text records who wrote each of its bytes, so that the content of a message is never taken for a control
 * token. */
#ifndef MOEFLUX_TEXT_JINJA_VALUE_H
#define MOEFLUX_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/jinja/state.h"

struct json_t;

struct jinja_text {
    const char *bytes;   /* UTF-8, [len] */
    const char *authors; /* enum jinja_author [len]; NULL: the template; jinja_context_authors: the context */
    size_t len;
};
extern const char jinja_context_authors[];

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_ITERATOR, /* the result of map, select and others; can be iterated once */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD
};

struct jinja_value {
    enum jinja_kind kind;
    /* JINJA_UNDEFINED: the kind of value that has no member `text`; or JINJA_UNDEFINED: `text` is a
     * variable's name */
    enum jinja_kind owner;
    bool safe; /* JINJA_TEXT: made by the filters safe or escape; + escapes what it adds */
    /* JINJA_TEXT: a JSON number that is larger than an int or a float, as it was written */
    bool is_number;
    union {
        bool truth;
        int64_t number;
        double real;
        struct jinja_text text;
        struct jinja_list *list;               /* list, tuple, iterator */
        struct jinja_dict *dict;               /* dict, namespace */
        const struct jinja_loop *loop;         /* run.h */
        const struct jinja_macro *macro;       /* run.h */
        const struct jinja_function *function; /* run.h */
        const struct jinja_bound *bound;       /* run.h */
    };
};

struct jinja_list {
    struct jinja_value *items;
    size_t n, cap;
};

struct jinja_entry {
    struct jinja_value key, value;
};

struct jinja_dict {
    struct jinja_entry *entries; /* [n] in the order of insertion */
    size_t n, cap;
};

struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool truth);
struct jinja_value jinja_int(int64_t number);
struct jinja_value jinja_float(double real);
/* Makes a text whose author is the template; `text` must outlive the rendering. */
struct jinja_value jinja_literal(const char *text);
struct jinja_value jinja_of_text(struct jinja_text text);
struct jinja_value jinja_new_list(struct jinja_state *s, enum jinja_kind kind);
struct jinja_value jinja_new_dict(struct jinja_state *s, enum jinja_kind kind);
struct jinja_value jinja_pair(struct jinja_state *s, struct jinja_value a, struct jinja_value b);
/* Makes an undefined value; owner and name as in struct jinja_value. */
struct jinja_value jinja_undefined(enum jinja_kind owner, struct jinja_text name);
/* Copies a JSON value into the state's memory; its strings are borrowed and get these `authors`. */
struct jinja_value jinja_of_json(struct jinja_state *s, const struct json_t *json, const char *authors);

void jinja_append(struct jinja_state *s, struct jinja_value list, struct jinja_value item);
/* Sets a member of a dict. Fails for keys that Python cannot hash. */
void jinja_put(struct jinja_state *s, struct jinja_value dict, struct jinja_value key,
               struct jinja_value value);
/* Return a member of a dict; NULL: there is none. */
const struct jinja_value *jinja_find(struct jinja_state *s, const struct jinja_dict *dict,
                                     struct jinja_value key);
const struct jinja_value *jinja_find_text(struct jinja_state *s, const struct jinja_dict *dict,
                                          struct jinja_text key);

static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_BOOL;
}
static inline bool jinja_is_sequence(struct jinja_value v)
{
    return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}
/* Returns the value of a bool or an int. */
int64_t jinja_whole(struct jinja_value v);
double jinja_real(struct jinja_value v);

/* Returns Python's name of the type, for errors. */
const char *jinja_type(struct jinja_value v);
bool jinja_truth(struct jinja_value v);
bool jinja_equal(struct jinja_state *s, struct jinja_value a, struct jinja_value b);
/* Compares: < 0, 0 or > 0. Fails if Python's < does. */
int jinja_order(struct jinja_state *s, struct jinja_value a, struct jinja_value b);
bool jinja_contains(struct jinja_state *s, struct jinja_value where, struct jinja_value what);
size_t jinja_length(struct jinja_state *s, struct jinja_value v);
/* Returns the items of an iterable value: characters of a text, keys of a dict. An iterator is empty
 * afterwards. */
struct jinja_list *jinja_items(struct jinja_state *s, struct jinja_value v);
/* Fails because an undefined value was used. */
void jinja_fail_undefined(struct jinja_state *s, struct jinja_value v) __attribute__((noreturn));

#endif
