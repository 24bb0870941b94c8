/* tools.h - the tools that a request offers to the model, in the form of OpenAI's API. */
#ifndef MOEFLUX_GENERATE_TOOLS_H
#define MOEFLUX_GENERATE_TOOLS_H

#include <stdbool.h>

struct generator;
struct json_t;
struct moeflux_err;
struct str;
struct tool_choice;

enum { TOOLS_MAX = 1024 };

/* Checks an array of {"type": "function", "function": {"name", "description", "parameters": a schema}}.
 * *out, which the caller owns, gets the functions; NULL: there is none. Tools of other types are left out:
 * *skipped is the type of the first one, borrowed; NULL: none. ERR_FORMAT: the text begins with `where` and
 * names the tool and its error. ERR_MEMORY. */
int tools_take(const struct json_t *tools, const char *where, struct json_t **out, const char **skipped,
               struct moeflux_err *e);

/* Returns the one of them with this name, borrowed; NULL: there is none. */
const struct json_t *tools_find(const struct json_t *tools, const char *name);

/* Appends the grammar of answers that make the calls (tool_calls.h), for constrain_begin_calls, which will
 * accept it. Call tools_check_model first. ERR_FORMAT, ERR_UNSUPPORTED: a tool's schema. ERR_MEMORY. */
int tools_grammar(const struct generator *s, const struct tool_choice *c, struct str *out,
                  struct moeflux_err *e);

/* Appends the grammar of answers that make the calls or, without calls, fit another grammar, `text`. The
 * constraint is that of answer_options with may_call. All else is as in tools_grammar. */
int tools_grammar_or(const struct generator *s, const struct tool_choice *c, const char *text,
                     struct str *out, struct moeflux_err *e);

/* Checks that the form of tool calls in the model's chat template is known; else ERR_UNSUPPORTED. */
int tools_check_model(const struct generator *s, const char *where, struct moeflux_err *e);
/* Checks that and prepares s->chat, which is open, for prompts with tools. ERR_MEMORY. */
int tools_use(struct generator *s, const char *where, struct moeflux_err *e);

#endif
