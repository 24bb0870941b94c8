/* tool_calls.h - the calls of tools that an answer makes, told apart from its text as it comes.
 *
 *   Hermes, Qwen2.5, Qwen3 <tool_call>{"name": "f", "arguments": {...}}</tool_call> Qwen3-Coder, Qwen3.5
 *   <tool_call><function=f><parameter=p>\nvalue\n</parameter></function></tool_call> DeepSeek-V3, R1
 *   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n``` <｜tool▁call▁end｜> ...
 *   <｜tool▁calls▁end｜> DeepSeek-V3.1 the same with <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
 *   Kimi-K2 <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}
 *   <|tool_call_end|> ... <|tool_calls_section_end|> gpt-oss messages for a recipient, as harmony.h hands
 *   them out GLM-4.5 <tool_call>f\n<arg_key>p</arg_key>\n<arg_value>value</arg_value>\n</tool_call>
 *   MiniMax-M2 <minimax:tool_call>\n<invoke name="f">\n<parameter name="p">value</parameter>\n</invoke>\n
 *   </minimax:tool_call>
 *
 * White space may stand between the parts. What is no whole call by its form comes out as text, all of it;
 * only white space around calls, and between them, is left out. How the text is cut into pieces makes no
 * difference.
 *
 * Names and arguments: a JSON object, as the model wrote it. Where a form writes values plainly, the tool's
 * own schema says what they are (json_schema_kinds): where a text fits, or nothing is said, a value is a JSON
 * string, but null where that fits too; else it is the JSON that is written, with True, False and None for
 * true, false and null, and a string where it is no JSON. */
#ifndef MOEFLUX_TEXT_CHAT_TOOL_CALLS_H
#define MOEFLUX_TEXT_CHAT_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

struct json_t;
struct moeflux_err;
struct tokenizer;
struct tool_form;

/* The form that a chat template teaches; NULL: none of them, or no template. */
const struct tool_form *tool_form_find(const char *chat_template);
/* That of a tokenizer's template for prompts with tools. */
const struct tool_form *tool_form_of(const struct tokenizer *t);
/* Whether a call is a message of its own (harmony.h). */
bool tool_form_is_message(const struct tool_form *f);
/* Whether the text is one of the form's tags, which may be a control token. Tags of messages are no part of a
 * text: false. */
bool tool_form_has_tag(const struct tool_form *f, const char *text, size_t len);

/* What an answer has to call. */
struct tool_choice {
    const struct json_t *tools; /* as struct tool_calls has them */
    const char *name;           /* this one, once; NULL: any of them, */
    bool once;                  /* once, or once or more */
    const char *where;          /* errors begin with it */
};
#define TOOL_NAME_END "\n"
/* Appends a grammar (grammar.h) of the answers that do. Arguments fit the tool's schema (json_schema.h); in
 * the form without quotes they are the parameters that it names, in its order. Of a call that is a message of
 * its own: of the function's name, TOOL_NAME_END and the message's text. ERR_FORMAT, ERR_UNSUPPORTED: what a
 * schema has that cannot be held to, with its place; ERR_MEMORY. */
int tool_form_grammar(const struct tool_form *f, const struct tool_choice *c, struct str *out,
                      struct moeflux_err *e);

enum tool_event {
    TOOL_TEXT,      /* the answer's text */
    TOOL_BEGINS,    /* a call; the bytes are the tool's name */
    TOOL_ARGUMENTS, /* its arguments go on */
    TOOL_ENDS,      /* they are whole */
    TOOL_FAILS,     /* it is no call after all; what stood for it comes as text */
};

struct tool_sink {
    /* Whole characters; n is 0 for the last two events only. */
    int (*event)(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e);
    void *ctx;
};

struct tool_calls { /* zeroed: all is text; freed with tool_calls_free */
    const struct tool_form *form;
    /* as in the API: [{"type": "function", "function": {"name", "parameters"}}]; NULL: none */
    const struct json_t *tools;
    struct tool_sink sink;
    int (*phase)(struct tool_calls *t); /* what is read now */
    struct str input;                   /* from what has not been given out */
    size_t at;                          /* of these bytes have been read */
    size_t tag_end;                     /* of the tag that a call begins with, and the space before it */
    bool begun;                         /* TOOL_BEGINS was given */
    bool after_call;                    /* nothing but white space came since the last call */
    bool at_end;
    struct {
        unsigned depth;
        bool in_string, escaped;
    } json; /* where the object that is read stands */
    struct str name, arguments;
    size_t n_given; /* bytes of the arguments */
    struct str key; /* the parameter whose value is read */
    int kind;       /* of the value */
    size_t n_seen;  /* bytes of it that were looked through */
};

/* The tools are borrowed. form NULL: all is text. */
void tool_calls_init(struct tool_calls *t, const struct tool_form *form, const struct json_t *tools,
                     struct tool_sink sink);

/* Whole characters of the answer. Gives out what is certain. A failure of the sink is returned; ERR_MEMORY.
 * */
int tool_calls_push(struct tool_calls *t, const char *bytes, size_t n, struct moeflux_err *e);
/* The answer has ended: what was held back comes out. */
int tool_calls_end(struct tool_calls *t, struct moeflux_err *e);

void tool_calls_free(struct tool_calls *t);

#endif
