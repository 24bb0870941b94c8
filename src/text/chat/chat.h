/* chat.h - prompts by the model's own chat template, and the shape of its answers.
 *
 * The template (chat_template of tokenizer_config.json, or chat_template.jinja) is run as it is (jinja.h); a
 * model of a family that has one form, but no template beside its tokenizer, gets the family's. What a
 * template and a tokenizer say by what they do is found out with a few short conversations: which token ends
 * a turn, whether a prompt ends inside of the thinking, and whether thinking can be switched
 * (enable_thinking, or thinking).
 *
 * Control tokens stand where the template wrote them. What users write is never one: "<|im_end|>" typed by a
 * user stays text. */
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

/* AUTO: as the model's own template does when nothing is said. */
enum chat_thinking { CHAT_THINKING_AUTO, CHAT_THINKING_ON, CHAT_THINKING_OFF };

/* Ids of the control tokens of gpt-oss's form (harmony.h); -1 where there is none. */
struct harmony {
    bool is_used;
    int32_t start, channel, message, end, call;
};

struct chat { /* zeroed at first; freed with chat_free */
    const struct tokenizer *tokenizer;
    struct jinja *template;
    struct jinja *tool_template;     /* for prompts with tools; NULL: the same one */
    enum chat_thinking thinking;     /* as it was opened */
    struct json_t *switches;         /* what the template is told of it */
    time_t now;                      /* what it takes the time for */
    bool is_family;                  /* the template is not the model's own */
    bool opens_inside;               /* the prompt opens the think block */
    bool may_open;                   /* the answer may begin with one that it opens itself */
    int32_t think_open, think_close; /* ids of <think> and </think>; -1 where the tokenizer has none */
    int32_t turn_close;              /* the token that ends an answer; -1: the template writes none */
    struct harmony harmony;
    char prompt_end[64];    /* of harmony's form: the last bytes of a prompt */
    struct token_list tail; /* what stands behind an answer, turn_close among it */
    /* Tokens at the end of a prompt that the next question's prompt has not, if the answer has thinking: a
     * checkpoint of a recurrent state in front of them saves work. */
    uint32_t n_opening;
};

/* family: the form of the model's family, for a model that brings no template: "qwen3.5" or "qwen3"; NULL:
 * not known. The tokenizer must outlive the chat. ERR_UNSUPPORTED: there is no template, it cannot be run, it
 * has no thinking, or nothing else. */
int chat_open(struct chat *c, const struct tokenizer *t, const char *family, enum chat_thinking thinking,
              time_t now, struct moeflux_err *e);
void chat_free(struct chat *c);

/* --- prompts --- */

struct chat_prompt {
    const struct json_t *messages; /* an array of {role, content, ...} */
    const struct json_t *tools;    /* an array; NULL: none */
    /* more members of the template's context (an object), which win; NULL: none */
    const struct json_t *kwargs;
    bool opens_answer; /* add_generation_prompt */
};

/* A rendered prompt. */
struct chat_text { /* zeroed at first; freed with chat_text_free */
    struct str text;
    struct str authors; /* an enum jinja_author for each byte */
};
void chat_text_free(struct chat_text *t);

/* Appends {role, content} to an array. Invalid UTF-8 becomes U+FFFD; *n_replaced (may be NULL) is increased.
 * */
int chat_say(struct json_t *messages, const char *role, const char *text, size_t len, size_t *n_replaced,
             struct moeflux_err *e);

/* Fills the empty *out. Errors as jinja_render. */
int chat_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                struct moeflux_err *e);

/* Appends the tokens of the text from the byte `from`, where a control token begins or ends. On failure
 * nothing is appended. */
int chat_encode(const struct chat *c, const struct chat_text *text, size_t from, struct token_list *out,
                struct moeflux_err *e);

/* Both. *n_system (may be NULL): how many of the tokens stand before the last message, whatever it says. */
int chat_prompt_tokens(const struct chat *c, const struct chat_prompt *p, struct token_list *out,
                       uint32_t *n_system, struct moeflux_err *e);

/* Tokens from..to of a list: an answer as it was sampled, with what followed it. */
struct chat_span {
    uint32_t from, to;
};
/* Makes `tokens` those of the text. What they have of it already stays, with the answers as they were
 * sampled, even where the template would have written other tokens or white space; from where the text parts
 * from them (a template leaves old thinking out) they are the text's. *n_kept: how many stayed. spans:
 * ascending, of `tokens`. On failure nothing changes. */
int chat_extend(const struct chat *c, const struct chat_text *text, const struct chat_span *spans,
                size_t n_spans, struct token_list *tokens, uint32_t *n_kept, struct moeflux_err *e);

/* Appends what must follow a sampled answer before the next turn: `ended` says whether the answer's last
 * token was the end-of-turn token. On failure nothing is appended. */
int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct moeflux_err *e);

/* The first control token in the text from the byte `from` on: 1 and its id and place; 0: *start = *end = its
 * length. */
int chat_next_control(const struct chat *c, const struct chat_text *text, size_t from, int32_t *id,
                      size_t *start, size_t *end, struct moeflux_err *e);

/* --- answers (filter.c) --- */

/* Sorts an answer's tokens into thinking, answer and control as they come. A tokenizer without the token
 * </think> spells it in several; they are held back until it is certain that they are not it. CHAT_TOOL: a
 * tool's call in an answer, which generate/answer.c tells apart. */
enum chat_part { CHAT_ANSWER, CHAT_THINKING, CHAT_CONTROL, CHAT_TOOL };
enum { CHAT_HEADER = 400 };
struct chat_filter {
    bool inside_think; /* or where it is not known yet whether the answer follows */
    bool at_start;     /* newlines right after <think> or </think> belong to the tag */
    size_t n_held;     /* characters of </think> that have come */
    /* harmony.h: the message, its header, whether some answer, and some thinking, has come */
    enum chat_part message;
    bool in_header, has_shown[2];
    size_t n_header;
    char header[CHAT_HEADER];
};
void chat_filter_init(struct chat_filter *f, const struct chat *c);
/* Appends the bytes that are to be shown now to `shown` (none for CHAT_CONTROL); they belong to the part
 * returned. */
enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);
/* At the end of an answer: what was held back, which is thinking. */
void chat_filter_end(struct chat_filter *f, struct str *shown);

#endif
