/* constrain.h - answers that fit a grammar: the source of the grammar, and the constraint for an answer. A
 * generator keeps the trie of its vocabulary and the tables of the latest grammars. After constrain_share
 * several threads may use them. */
#ifndef MOEFLUX_GENERATE_CONSTRAIN_H
#define MOEFLUX_GENERATE_CONSTRAIN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct constrain;
struct constraint;
struct generator;
struct json_t;
struct str;

enum constrain_kind {
    CONSTRAIN_GRAMMAR,     /* the text is a grammar */
    CONSTRAIN_JSON_SCHEMA, /* the text is a JSON Schema */
    CONSTRAIN_JSON_OBJECT, /* any JSON object; there is no text */
    CONSTRAIN_REGEX, /* the text is a regular expression that the whole answer matches (schema_pattern.c) */
};

/* Appends the grammar of an answer, checked: constrain_begin will accept it. `name` begins the errors.
 * ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. */
int constrain_grammar(enum constrain_kind kind, const char *text, size_t len, const char *name,
                      struct str *out, struct moeflux_err *e);
/* Does the same with a parsed schema. */
int constrain_schema(const struct json_t *schema, const char *name, struct str *out, struct moeflux_err *e);

/* Does the same with an array of texts, one of which is the answer. */
int constrain_choices(const struct json_t *choices, const char *name, struct str *out, struct moeflux_err *e);

/* Checks that constrain_begin will accept a grammar. Arguments and errors as above. */
int constrain_check(const struct str *grammar, const char *name, struct moeflux_err *e);

/* Makes a constraint at the beginning of an answer, for answer_options. The caller frees it with
 * constraint_free before it closes the generator. ERR_USAGE: there is no tokenizer. ERR_MEMORY. */
int constrain_begin(struct generator *s, const char *grammar, struct constraint **out, struct moeflux_err *e);

/* Does the same for an answer that calls tools (tools_grammar), where the tags of a call may be tokens. */
int constrain_begin_calls(struct generator *s, const char *grammar, struct constraint **out,
                          struct moeflux_err *e);

/* A constraint that a second thread makes, with the mask of the first token, while the prompt is evaluated.
 * Unless they are shared, only that thread may use the generator's grammars until constrain_await. */
struct constrain_ahead {
    struct generator *generator;
    const char *grammar; /* borrowed; NULL: there is none */
    bool calls;
    pthread_t thread;
    bool is_running;
    int rc;
    struct moeflux_err error;
    struct constraint *made;
};
void constrain_ahead(struct constrain_ahead *a, struct generator *s, const char *grammar, bool calls);
/* Waits for the thread. *out: the constraint, owned by the caller; NULL without a grammar. A second call
 * returns the same. Errors: those of constrain_begin. */
int constrain_await(struct constrain_ahead *a, struct constraint **out, struct moeflux_err *e);

/* Lets several threads begin constraints of the generator at the same time. ERR_MEMORY. */
int constrain_share(struct generator *s, struct moeflux_err *e);

/* Frees the grammars of a generator that is being closed. NULL is legal. */
void constrain_free(struct constrain *c);

#endif
