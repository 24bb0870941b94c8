/* constrain.h - answers that fit a grammar: where the grammar comes from, and the constraint for an answer.
 * A generator keeps its vocabulary's trie and what was computed for the latest grammars. */
#ifndef MOEFLUX_GENERATE_CONSTRAIN_H
#define MOEFLUX_GENERATE_CONSTRAIN_H

#include <stddef.h>

struct moeflux_err;
struct constrain;
struct constraint;
struct generator;
struct json_t;
struct str;

enum constrain_kind {
    CONSTRAIN_GRAMMAR,     /* the text is a grammar */
    CONSTRAIN_JSON_SCHEMA, /* the text is a JSON Schema */
    CONSTRAIN_JSON_OBJECT, /* any JSON object; there is no text */
};

/* Appends the grammar of an answer, checked: constrain_begin finds no fault in it. `name` begins the errors. ERR_FORMAT,
 * ERR_UNSUPPORTED, ERR_MEMORY. */
int constrain_grammar(enum constrain_kind kind, const char *text, size_t len, const char *name,
                      struct str *out, struct moeflux_err *e);
/* The same of a schema that was parsed. */
int constrain_schema(const struct json_t *schema, const char *name, struct str *out, struct moeflux_err *e);

/* Whether constrain_begin would find a fault in a grammar, as above. */
int constrain_check(const struct str *grammar, const char *name, struct moeflux_err *e);

/* A constraint at the beginning of an answer, for answer_options; the caller gives it back with constraint_free before the
 * generator is closed. ERR_USAGE: there is no tokenizer. ERR_MEMORY. */
int constrain_begin(struct generator *s, const char *grammar, struct constraint **out, struct moeflux_err *e);

/* The same for an answer that calls tools (tools_grammar): the tags of the model's form may be its tokens. */
int constrain_begin_calls(struct generator *s, const char *grammar, struct constraint **out,
                          struct moeflux_err *e);

/* Of a generator that is closed. NULL is legal. */
void constrain_free(struct constrain *c);

#endif
