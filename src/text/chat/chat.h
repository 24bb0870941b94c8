/* chat.h - prompts by the model's own chat template, and the parts of its answers.  The template
 * (chat_template of tokenizer_config.json, or chat_template.jinja) is run unchanged (jinja.h). A model
 * without a template gets the one of its family, if the family has a single form. chat_open renders a
 * few short conversations to find out what the template does: which token ends a turn, whether a
 * prompt ends inside the thinking, and whether thinking can be switched (enable_thinking, thinking, or
 * thinking_mode).  Only the template writes control tokens: "<|im_end|>" typed by a user stays text. */
#ifndef MOEFLUX_TEXT_CHAT_CHAT_H
#define MOEFLUX_TEXT_CHAT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/str.h"
#include "text/tokenizer/tokenizer.h"

struct jinja;
struct json_t;
struct moeflux_err;
struct tool_form;

/* AUTO: the template's own default. */
enum chat_thinking { CHAT_THINKING_AUTO, CHAT_THINKING_ON, CHAT_THINKING_OFF };

/* How much is thought. AUTO: the template's own default. */
enum chat_effort {
    CHAT_EFFORT_AUTO,
    CHAT_EFFORT_NONE,
    CHAT_EFFORT_MINIMAL,
    CHAT_EFFORT_LOW,
    CHAT_EFFORT_MEDIUM,
    CHAT_EFFORT_HIGH,
    CHAT_EFFORT_XHIGH,
    CHAT_N_EFFORTS
};
/* What an answer's thinking should be. */
struct chat_reasoning {
    enum chat_thinking thinking;
    enum chat_effort effort;
};
/* Returns the effort of a name: "none" to "xhigh", and "max" for xhigh; CHAT_N_EFFORTS: there is none. */
enum chat_effort chat_effort_find(const char *name);

/* How a family writes its thinking. */
struct chat_tags {
    const char *open, *close;
    const char *label; /* follows `open` and is not shown; may be empty */
};
extern const struct chat_tags chat_tags[];
enum { CHAT_N_TAGS = 4, CHAT_TAGS_OF_SECTIONS = 3 };

/* Ids of the control tokens of gpt-oss's form (harmony.h); -1 where there is none. */
struct harmony {
    bool is_used;
    int32_t start, channel, message, end, call;
};

/* Ids of the control tokens of Kimi-K3's form (sections.h); -1 where there is none. */
struct sections {
    bool is_used;
    int32_t open, close, sep, end;
};

struct chat { /* zeroed at first; freed with chat_free */
    const struct tokenizer *tokenizer;
    struct jinja *template;
    struct jinja *tool_template; /* the template for prompts with tools; NULL: `template` */
    bool knows_tools;            /* chat_use_tools was called, and sets these: */
    bool leaves_tools_out;       /* the template does not write the tools (tool_text.h) */
    struct jinja *tool_list;     /* writes them after the system's text instead; NULL: nothing does */
    enum chat_thinking thinking; /* the argument of chat_open */
    enum chat_effort effort;     /* the argument of chat_use_effort */
    /* value of the template's variable reasoning_effort; NULL: it is not set */
    const char *effort_word;
    struct json_t *switches;         /* object: the variables that tell the template about thinking */
    time_t now;                      /* the time of the template's strftime_now */
    bool is_family;                  /* the template is not the model's own */
    const struct chat_tags *tags;    /* those that the template writes; else <think> and </think> */
    bool opens_inside;               /* the prompt ends with tags->open */
    bool may_open;                   /* the answer may begin with tags->open */
    int32_t think_open, think_close; /* ids of the tags; -1 where the tokenizer has none */
    int32_t turn_close;              /* the token that ends an answer; -1: the template writes none */
    struct harmony harmony;
    struct sections sections;
    char prompt_end[64];    /* harmony: the last bytes of a prompt */
    struct token_list tail; /* the tokens after an answer, including turn_close */
    /* How many tokens at the end of a prompt are not in the next question's prompt, if the answer has
     * thinking. A checkpoint of a recurrent state before them saves work. */
    uint32_t n_opening;
};

/* Opens a chat. family: whose template to use for a model without one, by its name in
 * chat_families.c; NULL: not known. The tokenizer must outlive the chat. ERR_UNSUPPORTED: there is no
 * template, it cannot be run, or its thinking cannot be switched as asked. */
int chat_open(struct chat *c, const struct tokenizer *t, const char *family, enum chat_thinking thinking,
              time_t now, struct moeflux_err *e);
void chat_free(struct chat *c);

/* Tells the template how much to think, if it has the variable reasoning_effort: by the effort's name, or
 * else the nearest one that it distinguishes. Errors: as chat_open. */
int chat_use_effort(struct chat *c, enum chat_effort effort, struct moeflux_err *e);
/* Returns the limit of thinking in tokens that stands for c->effort, because the template does not know it.
 * -1: none. */
int64_t chat_effort_budget(const struct chat *c);

/* Finds out what the template makes of tools; to be called before a prompt with some is rendered. f: the form
 * of its calls (tool_calls.h). ERR_MEMORY. */
int chat_use_tools(struct chat *c, const struct tool_form *f, struct moeflux_err *e);

/* Appends the tokens by which the template ends the thinking of an answer and begins its text. *n_tag: how
 * many of them, counted from the first one, end the thinking; the rest begins the text. */
int chat_close_thinking(const struct chat *c, struct token_list *out, size_t *n_tag, struct moeflux_err *e);

/* --- prompts --- */

struct chat_prompt {
    const struct json_t *messages; /* an array of {role, content, ...} */
    const struct json_t *tools;    /* an array; NULL: none */
    /* object: more variables of the template, which take precedence; NULL: none */
    const struct json_t *kwargs;
    bool opens_answer; /* add_generation_prompt */
    /* the prompt ends with the last message, an assistant's, so that the answer continues it; then
     * opens_answer is false */
    bool continues;
    uint64_t most_bytes; /* limit of the rendered text; 0: none */
};

/* A rendered prompt. */
struct chat_text { /* zeroed at first; freed with chat_text_free */
    struct str text;
    struct str authors; /* an enum jinja_author for each byte */
};
void chat_text_free(struct chat_text *t);

/* Appends {role, content} to an array. Invalid UTF-8 becomes U+FFFD; *n_replaced (may be NULL) is increased
 * by the number of replacements. ERR_MEMORY. */
int chat_say(struct json_t *messages, const char *role, const char *text, size_t len, size_t *n_replaced,
             struct moeflux_err *e);

/* Returns whether the message to continue ends inside its thinking. */
bool chat_continues_thinking(const struct chat *c, const struct json_t *message);

/* Renders a prompt into the empty *out. Errors as jinja_render. ERR_UNSUPPORTED: the template does not repeat
 * the text of the message to continue. */
int chat_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                struct moeflux_err *e);

/* Appends the tokens of the text from the byte `from`, where a control token begins or ends. On failure
 * nothing is appended. */
int chat_encode(const struct chat *c, const struct chat_text *text, size_t from, struct token_list *out,
                struct moeflux_err *e);

/* Renders and encodes a prompt. *n_system (may be NULL): the tokens before the last message, which do not
 * depend on its content. ERR_NO_FIT: the text is longer than most_bytes, and was not encoded. */
int chat_prompt_tokens(const struct chat *c, const struct chat_prompt *p, struct token_list *out,
                       uint32_t *n_system, struct moeflux_err *e);

/* Tokens from..to of a list: an answer as it was sampled, and the tokens after it. */
struct chat_span {
    uint32_t from, to;
};
/* Turns `tokens` into those of the text. Keeps the common prefix, with the answers as they were
 * sampled, even if the template would write other tokens or white space for them. After the first
 * difference (a template may leave out old thinking) they are the text's tokens. *n_kept: tokens kept.
 * spans: the answers in `tokens`, ascending. A tokenizer that puts a space in front of a text
 * (normalise.h) keeps no text that the template wrote, only what precedes it. On failure nothing
 * changes. */
int chat_extend(const struct chat *c, const struct chat_text *text, const struct chat_span *spans,
                size_t n_spans, struct token_list *tokens, uint32_t *n_kept, struct moeflux_err *e);

/* Appends the tokens between a sampled answer and the next turn. ended: the answer's last token was the
 * end-of-turn token. On failure nothing is appended. */
int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct moeflux_err *e);

/* Finds the first control token in the text from the byte `from` on. Returns 1 with its id and place, or 0
 * with *start = *end = the text's length. */
int chat_next_control(const struct chat *c, const struct chat_text *text, size_t from, int32_t *id,
                      size_t *start, size_t *end, struct moeflux_err *e);

/* --- answers (filter.c) --- */

/* Sorts an answer's tokens into thinking, answer and control as they come. A tokenizer without a token
 * tags->close spells it in several tokens; they are held back until it is certain that they do not
 * spell it. CHAT_TOOL: a tool call in the answer; not set here, but by generate/answer.c. */
enum chat_part { CHAT_ANSWER, CHAT_THINKING, CHAT_CONTROL, CHAT_TOOL };
enum { CHAT_HEADER = 400 }; /* bytes of a harmony header or a section's tag, with the NUL */
struct chat_filter {
    bool inside_think; /* or it is not known yet whether the answer has begun */
    bool at_start;     /* newlines right after a tag belong to the tag */
    bool has_calls;    /* set by the caller: calls of tools are read. harmony.h */
    size_t n_newlines; /* newlines at the end of the thinking so far, which may belong to the closing tag */
    size_t n_held;     /* characters of tags->close that have come so far */
    bool in_label;     /* the label after tags->open has not come whole; n_label: characters so far */
    size_t n_label;
    /* harmony.h: part and header of the current message; has_shown[1]: thinking has come, [0]: answer.
     * sections.h: part of the current section, and the tag that has begun; is_between: a section has ended */
    enum chat_part message;
    bool is_between;
    bool in_header, has_shown[2];
    size_t n_header;
    char header[CHAT_HEADER];
};
/* Starts an answer. */
void chat_filter_init(struct chat_filter *f, const struct chat *c);
/* Starts the continuation of an answer: of its thinking or its text. */
void chat_filter_continue(struct chat_filter *f, const struct chat *c, bool in_thinking);
/* Whether the next token may belong to the thinking. */
bool chat_filter_is_thinking(const struct chat_filter *f, const struct chat *c);
/* Takes the answer's next token. Appends the bytes to show to `shown` (none for CHAT_CONTROL) and returns the
 * part to which they belong. */
enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);
/* Appends bytes of a control token that count as text, after what was held back. */
void chat_filter_show(struct chat_filter *f, const char *bytes, size_t n, struct str *shown);
/* Ends the answer: appends what was held back, and returns the part to which it belongs. */
enum chat_part chat_filter_end(struct chat_filter *f, const struct chat *c, struct str *shown);

#endif
