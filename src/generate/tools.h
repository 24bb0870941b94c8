/* tools.h - the tools that a request offers to the model, as OpenAI's API has them. */
#ifndef MOEFLUX_GENERATE_TOOLS_H
#define MOEFLUX_GENERATE_TOOLS_H

#include <stdbool.h>

struct generator;
struct json_t;
struct moeflux_err;
struct str;
struct tool_choice;

enum { TOOLS_MAX = 128 };

/* A list of {"type": "function", "function": {"name", "description", "parameters": a schema}}. ERR_FORMAT:
 * `where` begins the text, which says what is wrong with which of them. */
int tools_check(const struct json_t *tools, const char *where, struct moeflux_err *e);

/* A file with such a list, checked. *tools is the caller's; NULL: the list is empty. ERR_IO, ERR_FORMAT with
 * the file's name. */
int tools_read(const char *path, struct json_t **tools, struct moeflux_err *e);

/* Whether a function of this name is among them. */
bool tools_have(const struct json_t *tools, const char *name);

/* Appends the grammar of answers that make the calls (tool_calls.h), after tools_check_model; for
 * constrain_begin_calls, which finds no fault in it. ERR_FORMAT, ERR_UNSUPPORTED: a tool's schema;
 * ERR_MEMORY. */
int tools_grammar(const struct generator *s, const struct tool_choice *c, struct str *out,
                  struct moeflux_err *e);

/* ERR_UNSUPPORTED: the model's chat template has no form for their calls that is known. */
int tools_check_model(const struct generator *s, const char *where, struct moeflux_err *e);

#endif
