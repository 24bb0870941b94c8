/* tool_calls.h - separates an answer's tool calls from its text as it comes.
 *
 *   Hermes, Qwen2.5, Qwen3  <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *   Qwen3-Coder, Qwen3.5    <tool_call><function=f><parameter=p>\nvalue\n</parameter></function></tool_call>
 *   DeepSeek-V3, R1         <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}
 *                           \n```<｜tool▁call▁end｜> ... <｜tool▁calls▁end｜>
 *   DeepSeek-V3.1           the same with <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
 *   Kimi-K2                 <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0
 *                           <|tool_call_argument_begin|>{...}<|tool_call_end|> ... <|tool_calls_section_end|>
 *   gpt-oss                 messages with a recipient, in the form that harmony.h shows
 *   GLM-4.5                 <tool_call>f\n<arg_key>p</arg_key>\n<arg_value>value</arg_value>\n</tool_call>
 *   GLM-4.7                 the same without line ends
 *   DeepSeek-V3.2           <｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="p"
 *                           string="true">value</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>
 *   DeepSeek-V4             the same with <｜DSML｜tool_calls>
 *   DeepSeek-V4.1           the same with <｜DSML｜ calls>, and a space before each name
 *   Gemma 4                 <|tool_call>call:f{p:<|"|>value<|"|>,q:[1,{r:true}]}<tool_call|>
 *   MiniMax-M2              <minimax:tool_call>\n<invoke name="f">\n<parameter name="p">value</parameter>\n
 *                           </invoke>\n</minimax:tool_call>
 *   MiniMax-M3              <tool_call>\n<invoke name="f"><p>value</p><q><item>1</item></q></invoke>\n
 *                           </tool_call>, each tag after the token ]<]minimax[>[
 *
 *   Kimi-K3                 the tags of sections.h: each parameter has its type
 *
 * White space is allowed between the parts. A call that is not valid is given out as text, unchanged; only
 * white space around and between calls is left out, and the header of a call that is a message. A call
 * within which the answer ends breaks off: its arguments are what came. The result does not depend on how
 * the text is cut into pieces.
 *
 * Arguments are a JSON object, as the model wrote it. Some forms write values without JSON syntax; then
 * the tool's schema says what they are (json_schema_kinds). If only a string fits, or the schema says
 * nothing, the value is a JSON string. If other types fit too, it is taken as JSON of such a type where it
 * is valid, and else as a string. If no string fits, it is taken as JSON, with True, False and None for
 * true, false and null, and as a string if it is not valid JSON. In DSML and Kimi-K3's form an attribute says
 * which. In MiniMax-M3's form an element that contains elements is an object or a list, and each value in it
 * is read by its own schema.
 *
 * Such a value ends at a closing tag that is followed by another parameter or by the end of the call, or
 * where another parameter of the tool begins. A closing tag may be doubled. A call of Qwen3-Coder's form
 * may lack its first tag if it names one of the tools. */
#ifndef MOEFLUX_TEXT_CHAT_TOOL_CALLS_H
#define MOEFLUX_TEXT_CHAT_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

struct json_t;
struct moeflux_err;
struct tokenizer;
struct tool_form;

/* Returns the form that a chat template teaches; NULL: none of them, or no template. */
const struct tool_form *tool_form_find(const char *chat_template);
/* Returns the form that a tokenizer's template for prompts with tools teaches. family: whose template
 * to use for a model without one (chat.h). */
const struct tool_form *tool_form_of(const struct tokenizer *t, const char *family);
/* Returns whether a call is a message of its own (harmony.h). */
bool tool_form_is_message(const struct tool_form *f);
/* Returns whether the text is one of the form's tags, which may be a control token. False for forms whose
 * calls are messages: their tags never occur in text. */
bool tool_form_has_tag(const struct tool_form *f, const char *text, size_t len);

/* Which calls an answer must make. */
struct tool_choice {
    const struct json_t *tools; /* the same array as in struct tool_calls */
    const char *name;           /* the one tool to call, once; NULL: any of them */
    bool once;                  /* without a name: exactly one call; false: one or more */
    bool is_free;               /* the answer need not call: a schema that is refused leaves arguments free */
    const char *where;          /* begins the errors */
};
#define TOOL_NAME_END "\n"
/* Appends a grammar (grammar.h) of the answers that make these calls. Arguments fit the tool's schema
 * (json_schema.h); in forms without JSON syntax they are the parameters that it names, in its order. If a
 * call is a message of its own, the grammar is of the function's name, TOOL_NAME_END and the message's text.
 * ERR_FORMAT, ERR_UNSUPPORTED: the schema of the only tool that may be called is not valid or not supported,
 * with the place. The arguments of such a tool among others are free. ERR_MEMORY. */
int tool_form_grammar(const struct tool_form *f, const struct tool_choice *c, struct str *out,
                      struct moeflux_err *e);

enum tool_event {
    TOOL_TEXT,      /* the answer's text */
    TOOL_BEGINS,    /* a call begins; the bytes are the tool's name */
    TOOL_ARGUMENTS, /* more of its arguments */
    TOOL_ENDS,      /* the call is complete */
    TOOL_BREAKS,    /* the answer ends within the call: its arguments are not complete */
    TOOL_FAILS,     /* it was not a call; its text follows as TOOL_TEXT */
};

struct tool_sink {
    /* Whole characters; n is 0 for the last three events only. */
    int (*event)(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e);
    void *ctx;
};

enum { TOOL_MAX_NAME = 256 }; /* bytes of a name or an id at most */

struct tool_calls { /* zeroed: all is text; freed with tool_calls_free */
    const struct tool_form *form;
    /* the API's array: [{"type": "function", "function": {"name", "parameters"}}]; NULL: none */
    const struct json_t *tools;
    struct tool_sink sink;
    /* set by the caller before each part: it is thinking. A call in it counts if the answer ends before the
     * thinking does; otherwise it is thinking, too */
    bool is_thinking;
    int (*phase)(struct tool_calls *t); /* reads the next part; NULL: text between calls */
    struct str input;                   /* the bytes not given out yet */
    size_t at;                          /* bytes of `input` already read */
    size_t tag_end;                     /* end in `input` of the call's first tag; 0: the call has ended */
    bool begun;                         /* TOOL_BEGINS was given out */
    bool after_call;                    /* only white space came since the last call */
    bool at_end;
    bool is_bare; /* the call's first tag is missing */
    bool holds;   /* thinking has a call: `input` is kept from there on */
    struct {
        unsigned depth;
        bool in_string, escaped;
    } json; /* state of the JSON object that is read */
    struct str name, arguments;
    struct str id;  /* the call's id as the model writes it; empty: the form has none */
    size_t n_given; /* bytes of the arguments already given out */
    /* name of the parameter whose value is read; Gemma's form: the open objects and lists; MiniMax-M3's:
     * the open elements */
    struct str key;
    struct str keys; /* the parameters so far, each between two newlines */
    int kind;        /* TOOL_VALUE_* of the value */
    size_t n_seen;   /* bytes of the value already searched for its end; Gemma's form: what comes next */
};

/* Starts an answer. The tools are borrowed. form NULL: all is text. */
void tool_calls_init(struct tool_calls *t, const struct tool_form *form, const struct json_t *tools,
                     struct tool_sink sink);

/* Takes whole characters of the answer and gives out what is certain. Returns the
 * sink's failure; ERR_MEMORY. */
int tool_calls_push(struct tool_calls *t, const char *bytes, size_t n, struct moeflux_err *e);
/* Ends a part of the answer: gives out what was held back. Errors as tool_calls_push. */
int tool_calls_end(struct tool_calls *t, struct moeflux_err *e);
/* Ends the answer. Calls in thinking that has not ended are given out; what follows them is the answer. */
int tool_calls_finish(struct tool_calls *t, struct moeflux_err *e);
/* Returns whether a call has begun whose end has not come. All that comes belongs to it. */
bool tool_calls_is_open(const struct tool_calls *t);

void tool_calls_free(struct tool_calls *t);

#endif
