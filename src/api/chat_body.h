/* chat_body.h - builds the body of a chat completion from the body of another dialect (dialect.h).
 *
 * All fields of the other body are copied at first; the dialect replaces those that mean something else. So
 * the fields that this project adds, such as top_k or grammar, work in every dialect. The first error fills
 * the refusal, and later calls do nothing. */
#ifndef MOEFLUX_API_CHAT_BODY_H
#define MOEFLUX_API_CHAT_BODY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

struct json_t;
struct refusal;

struct chat_body {
    struct json_t *fields;   /* object: the chat completion */
    struct json_t *messages; /* array, a field after chat_body_end */
    struct json_t *tools;    /* likewise */
    struct json_t *given;    /* fields that the reply repeats; NULL: none */
    struct refusal *refusal; /* borrowed */
    char note[160];          /* what was left out; "": nothing */

    /* Private: the message that is being made, its texts, and the functions' names by the ids of calls. */
    struct json_t *current;
    struct str content, thinking;
    bool is_cut; /* the last text goes on in the next one of its kind */
    struct json_t *names;
};

/* Begins with a copy of the fields of `in`; freed with chat_body_free. */
void chat_body_init(struct chat_body *b, const struct json_t *in, struct refusal *refusal);
/* Sets the messages and tools. Returns 0, or -1 with the refusal filled. */
int chat_body_end(struct chat_body *b);
void chat_body_free(struct chat_body *b);

/* Sets a field; takes ownership of `value`. */
void chat_body_set(struct chat_body *b, const char *name, struct json_t *value);
/* Refuses each of these fields that has another value than null, false, 0, "" or an empty list. names: ended
 * by NULL. */
void chat_body_refuse(struct chat_body *b, const char *const *names);
/* Refuses a number of answers, n, other than 1. */
void chat_body_refuse_choices(struct chat_body *b);
/* Removes fields that do not change the answer. names: ended by NULL. */
void chat_body_drop(struct chat_body *b, const char *const *names);
/* Refuses the request if a text has failed for lack of memory. */
void chat_body_check(struct chat_body *b, const struct str *text);
/* Notes that tools of a type are left out. */
void chat_body_skip(struct chat_body *b, const char *type);

/* Thinking as an opaque text, where an API has encrypted thinking: some clients send back nothing else.
 * _seal returns it; the caller owns it. NULL: no memory. _unseal appends the thinking; nothing if `sealed`
 * (NULL: none) is another server's. */
struct json_t *chat_body_seal(const char *thinking, size_t n);
void chat_body_unseal(const struct json_t *sealed, struct str *out);

/* ---- messages ---- */

/* Appends a text of n bytes by "system", "user" or "assistant". Texts of the system at the beginning become
 * one message; later ones are the user's, because most templates take a system message first only. Parts of
 * one assistant's turn become one message. */
void chat_body_say(struct chat_body *b, const char *role, const char *text, size_t n);
/* Notes that the assistant's last text was cut: what goes on with it is joined as it is. */
void chat_body_cut(struct chat_body *b);
/* Appends to the assistant's turn: thinking, and a call. arguments: an object or a text; borrowed. */
void chat_body_think(struct chat_body *b, const char *text, size_t n);
void chat_body_call(struct chat_body *b, const char *id, const char *name, const struct json_t *arguments);
/* Appends the result of a call. */
void chat_body_result(struct chat_body *b, const char *id, const char *text, size_t n);

/* Joins a text, or the texts of parts whose type is one of `types` (ended by NULL), with newlines between
 * them. Other parts are refused; `where` names the place. field: param of the refusal. */
void chat_body_join(struct chat_body *b, const struct json_t *content, const char *const *types,
                    const char *field, const char *where, struct str *out);

/* ---- tools ---- */

/* Appends a function. description, parameters: NULL: none; borrowed. */
void chat_body_tool(struct chat_body *b, const char *name, const struct json_t *description,
                    const struct json_t *parameters);
/* Sets tool_choice to "auto", "required" or "none". Without tools, "auto" and "none" mean nothing. */
void chat_body_choose(struct chat_body *b, const char *mode);
/* Sets tool_choice to a function. */
void chat_body_choose_tool(struct chat_body *b, const char *name);

#endif
