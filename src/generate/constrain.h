/* constrain.h - answers that fit a grammar: where the grammar comes from, and the constraint for an answer. A
 * generator keeps its vocabulary's trie and what was computed for the latest grammars, which several threads
 * may ask it for after constrain_share. */
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
};

/* Appends the grammar of an answer, checked: constrain_begin finds no fault in it. `name` begins the errors.
 * ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. */
int constrain_grammar(enum constrain_kind kind, const char *text, size_t len, const char *name,
                      struct str *out, struct moeflux_err *e);
/* The same of a schema that was parsed. */
int constrain_schema(const struct json_t *schema, const char *name, struct str *out, struct moeflux_err *e);

/* Whether constrain_begin would find a fault in a grammar, as above. */
int constrain_check(const struct str *grammar, const char *name, struct moeflux_err *e);

/* A constraint at the beginning of an answer, for answer_options; the caller gives it back with
 * constraint_free before the generator is closed. ERR_USAGE: there is no tokenizer. ERR_MEMORY. */
int constrain_begin(struct generator *s, const char *grammar, struct constraint **out, struct moeflux_err *e);

/* The same for an answer that calls tools (tools_grammar): the tags of the model's form may be its tokens. */
int constrain_begin_calls(struct generator *s, const char *grammar, struct constraint **out,
                          struct moeflux_err *e);

/* One of the two, made by a thread of its own, with the first tokens that may come, while the prompt is
 * evaluated. The generator's grammars are that thread's until constrain_await, unless they are shared. */
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
/* *out: as constrain_begin; NULL without a grammar. A second call gives the same. */
int constrain_await(struct constrain_ahead *a, struct constraint **out, struct moeflux_err *e);

/* From now on threads may begin constraints of the generator at the same time. ERR_MEMORY. */
int constrain_share(struct generator *s, struct moeflux_err *e);

/* Of a generator that is closed. NULL is legal. */
void constrain_free(struct constrain *c);

#endif
