/* tool_forms.h - how each model family writes tool calls: what tool_calls.c and its forms share. */
#ifndef MOEFLUX_TEXT_CHAT_TOOL_FORMS_H
#define MOEFLUX_TEXT_CHAT_TOOL_FORMS_H

#include "text/chat/tool_calls.h"

/* Result of a phase. TOOL_GO: it has read up to `at` and set the next `phase`. TOOL_WAIT: it needs more
 * input; `at` is where it will continue. TOOL_NO_CALL: this is not a call. */
enum { TOOL_GO, TOOL_WAIT, TOOL_NO_CALL };

struct tool_grammar;

/* How a form writes parameters one by one without JSON syntax, with white space between the tags. */
struct tool_plain {
    const char *name_open, *name_close; /* around the function's name; the first may be empty */
    const char *key_open, *key_close;   /* around a parameter's name */
    const char *value_open;             /* precedes its value; NULL: key_close does */
    const char *value_close;
    const char *end;  /* follows the last parameter; NULL: call_close does */
    bool is_on_lines; /* a newline before and after a value belongs to the tags */
    bool is_tight;    /* tags are written without white space between them */
    bool has_kind;    /* an attribute after a parameter's name says whether its value is a string */
    /* ends the first tag of a call and that of a parameter, after a name in quotes with XML's escapes and
     * other attributes; a parameter's `type` says what its value is. NULL: names end them */
    const char *tag_end;
};

struct tool_form {
    const char *marks[2]; /* texts in every template that teaches the form; the second may be NULL */
    const char *section_open, *section_close; /* around all calls; NULL: none. The first may be missing */
    const char *call_open, *call_close;
    const char *separator, *fence_close; /* inside a call: after its name, after its object; NULL: none */
    const char *padding, *between;       /* after call_open and before call_close; between calls */
    const char *section_padding;         /* inside the section's tags; NULL: none */
    const char *quote; /* around strings, or a token inside of tags or in front of them; NULL: none */
    /* a call inside its tags as it is shown to a model (tool_text.h), with the name tool_call_name and the
     * arguments tool_call_arguments; NULL: the templates show one */
    const char *example;
    const struct tool_plain *plain; /* NULL: arguments are a JSON object, or written as Gemma does */
    /* a call is a message of its own: its tags do not occur in text, and the
     * grammar is of what they enclose */
    bool is_message;
    bool is_split; /* tags are control tokens with text between them */
    bool has_ids;  /* the text that names the function is the call's id, too */
    /* the first phase, after call_open; NULL: calls of this form are not read */
    int (*read)(struct tool_calls *t);
    /* Appends a call of the function, without the tags around it, to g->calls. */
    int (*write)(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
};

/* A grammar of calls under construction. */
struct tool_grammar {
    struct str *rules, calls; /* lines; an expression */
    unsigned n_rules;         /* number of the schemas' rules so far */
    const char *where;        /* begins the errors */
    struct moeflux_err *e;
};

/* The first one that matches a template is used. */
extern const struct tool_form tool_forms[];
extern const size_t tool_n_forms;

/* --- for the forms --- */

/* Returns what a value without JSON syntax is, by its schema (NULL: none). parameters: the tool's whole
 * schema. TOOL_VALUE_UNION and more is a string or of another type: the JSON_SCHEMA_* bits are added. */
enum { TOOL_VALUE_TEXT, TOOL_VALUE_TEXT_OR_NULL, TOOL_VALUE_JSON, TOOL_VALUE_UNION = 1 << 12 };
int tool_value_kind(const struct json_t *parameters, const struct json_t *schema);

/* tool_grammar.c */
int tool_write_hermes(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_plain(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_deepseek3(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_deepseek31(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_kimi(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_gemma(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_nested(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_message(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);

#define TOOL_GEMMA_QUOTE "<|\"|>"
/* DSML's attribute of a parameter, after its opening quote. */
#define TOOL_IS_TEXT "true\">"
#define TOOL_IS_JSON "false\">"

/* Returns the schema of the parameters of the offered tool that is called; NULL: it has none.
 * *is_known (may be NULL): a tool has this name. */
const struct json_t *tool_parameters(const struct tool_calls *t, bool *is_known);
/* Parses a JSON value for its type; numbers may be rounded. NULL: it is not valid, or too large. The caller
 * releases it. */
struct json_t *tool_load(const char *bytes, size_t n);

/* Returns the unread input, [*n]. */
static inline const char *tool_rest(const struct tool_calls *t, size_t *n)
{
    *n = t->input.len - t->at;
    return str_text(&t->input) + t->at;
}
/* Skips white space. */
void tool_skip_space(struct tool_calls *t);
/* Reads `text`. TOOL_WAIT: it may still come; TOOL_NO_CALL: something else is next. */
int tool_expect(struct tool_calls *t, const char *text);
/* Reads a name and the `end` that follows it. The name is trimmed, on one line, of
 * 1 to TOOL_MAX_NAME bytes. */
int tool_read_name(struct tool_calls *t, const char *end, struct str *name);
/* Returns how many bytes at the end of these may be the beginning of `text`. */
size_t tool_held(const char *bytes, size_t n, const char *text);

/* Reads a JSON object, which begins here, and appends it to `to` as it comes. TOOL_GO: it is complete. */
int tool_read_object(struct tool_calls *t, struct str *to);
/* Ends a call: checks that the arguments are a JSON object. */
int tool_finish(struct tool_calls *t);

/* Appends bytes with JSON's escapes, without quotes. */
void tool_add_escaped(struct str *to, const char *bytes, size_t n);
/* Appends a whole value as JSON; t->kind says what it may be. */
void tool_add_value(struct tool_calls *t, const char *bytes, size_t n);

/* Reads calls whose parameters are written one by one (struct tool_plain). tool_plain.c */
int tool_read_plain(struct tool_calls *t);
/* Reads Gemma's calls. tool_gemma.c */
int tool_read_gemma(struct tool_calls *t);
/* Reads MiniMax-M3's calls. tool_nested.c */
int tool_read_nested(struct tool_calls *t);

#endif
