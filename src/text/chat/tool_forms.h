/* tool_forms.h - how the families write a call: what tool_calls.c and its forms share. */
#ifndef MOEFLUX_TEXT_CHAT_TOOL_FORMS_H
#define MOEFLUX_TEXT_CHAT_TOOL_FORMS_H

#include "text/chat/tool_calls.h"

/* What a phase answers. It has read on, up to `at`, and says what is next in `phase`; it waits for more,
 * having read nothing that it would have to read again; or it is no call. */
enum { TOOL_GO, TOOL_WAIT, TOOL_NO_CALL };

struct tool_grammar;

/* How a form writes parameters plainly, one by one, with white space between the tags. */
struct tool_plain {
    const char *name_open, *name_close; /* around the function's name; the first may be empty */
    const char *key_open, *key_close;   /* around a parameter's name */
    const char *value_open;             /* before its value; NULL: key_close is */
    const char *value_close;
    const char *end;  /* behind the last parameter; NULL: the call ends there */
    bool is_on_lines; /* a newline before and behind a value belongs to the tags */
};

struct tool_form {
    const char *marks[2]; /* what a template that teaches it has in it; the second may be NULL */
    const char *section_open,
        *section_close; /* around all calls; NULL: nothing, and the first may be left out */
    const char *call_open, *call_close;
    const char *separator, *fence_close; /* inside a call, behind its object; NULL: none */
    const char *padding, *between;       /* behind call_open and before call_close; between calls */
    const char *section_padding;         /* inside the section's tags; NULL: none */
    const struct tool_plain *plain;      /* NULL: arguments are a JSON object */
    /* a call is a message of its own: its tags are none in a text, and the grammar is of what they enclose */
    bool is_message;
    int (*read)(struct tool_calls *t); /* the first phase behind call_open */
    /* Appends a call of the function, without the tags around it, to the grammar's `calls`. */
    int (*write)(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
};

/* A grammar of calls while it is written. */
struct tool_grammar {
    struct str *rules, calls; /* lines; an expression */
    unsigned n_rules;         /* of schemas */
    const char *where;        /* errors begin with it */
    struct moeflux_err *e;
};

/* The first that fits is taken. */
extern const struct tool_form tool_forms[];
extern const size_t tool_n_forms;

/* --- for the forms --- */

/* What a value is that is written without quotes, by the schema of the tool's parameters and its own (NULL:
 * there is none). */
enum { TOOL_VALUE_TEXT, TOOL_VALUE_TEXT_OR_NULL, TOOL_VALUE_JSON };
int tool_value_kind(const struct json_t *parameters, const struct json_t *schema);

/* tool_grammar.c */
int tool_write_hermes(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_plain(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_deepseek3(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_deepseek31(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_kimi(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);
int tool_write_message(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g);

enum { TOOL_MAX_NAME = 256 }; /* bytes of a name */

/* The rest of the input. */
static inline const char *tool_rest(const struct tool_calls *t, size_t *n)
{
    *n = t->input.len - t->at;
    return str_text(&t->input) + t->at;
}
/* Skips white space. */
void tool_skip_space(struct tool_calls *t);
/* Reads `text`: TOOL_GO, TOOL_WAIT where it may still come, TOOL_NO_CALL. */
int tool_expect(struct tool_calls *t, const char *text);
/* Reads up to and with `end`, at most TOOL_MAX_NAME bytes before it: a name on one line, trimmed, not empty.
 * */
int tool_read_name(struct tool_calls *t, const char *end, struct str *name);
/* How many bytes at the end of these the text may begin with. */
size_t tool_held(const char *bytes, size_t n, const char *text);

/* Reads a JSON object, which begins here. Appends to `to` what has come; TOOL_GO: it is whole. */
int tool_read_object(struct tool_calls *t, struct str *to);
/* The call is whole: checks the arguments. */
int tool_finish(struct tool_calls *t);

#endif
