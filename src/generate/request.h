/* request.h - one prompt with its sampling options, limits and grammar, read from a line of JSON. */
#ifndef MOEFLUX_GENERATE_REQUEST_H
#define MOEFLUX_GENERATE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "generate/draft.h"
#include "text/chat/chat.h"
#include "sample/sampler.h"
#include "text/tokenizer/tokenizer.h"

struct answer_options;
struct constrain_ahead;
struct moeflux_err;
struct json_t;
struct generator;

enum { REQUEST_NO_LIMIT = -1, REQUEST_NO_LOGPROBS = -1, REQUEST_MAX_STOPS = 16 };

/* What happens if the template cannot switch thinking as asked. */
enum request_switch {
    REQUEST_SWITCH_STRICT, /* an error */
    REQUEST_SWITCH_KNOWN,  /* it is ignored, as other variables that the template does not know */
    REQUEST_SWITCH_LIMIT,  /* instead of no thinking, a limit of 0 tokens; else it is ignored */
};

struct request_options {                     /* strings are borrowed */
    const char *prompt;                      /* NULL: there are messages */
    const char *system;                      /* NULL: none */
    int64_t predict;                         /* most tokens of the answer; REQUEST_NO_LIMIT */
    int64_t seed;                            /* -1: the caller chooses */
    int64_t logprobs;                        /* number of likeliest tokens; REQUEST_NO_LOGPROBS */
    struct moeflux_sampler_options sampling; /* without a seed */
    const char *stops[REQUEST_MAX_STOPS];    /* not empty */
    const struct json_t *tools;              /* tools.h; not empty; NULL: none */
    const char *tool;            /* the tool that the answer must call, once; NULL: any, at least once */
    const struct json_t *kwargs; /* object of further variables of the chat template; NULL: none */
    const char *grammar;         /* the answer must fit it (constrain.h); NULL: any text */
    const char *continues;       /* text that the answer continues; NULL: it begins a message */
    struct draft_options draft;
    uint32_t n_stops;
    uint32_t think_budget; /* tokens, if limit_thinking */
    enum request_switch switching;
    enum chat_effort effort;
    bool raw; /* the prompt is used as it is, without chat template */
    bool think, no_think, limit_thinking;
    bool ignore_eos;
    bool keep_stop;          /* a stop text is shown as the end of the answer */
    bool must_call;          /* the answer must call a tool */
    bool may_call;           /* the grammar is that of an answer without calls or of calls */
    bool one_call;           /* the answer ends with its first call */
    bool new_message;        /* the answer does not continue a last message of the assistant */
    bool continues_thinking; /* the text that it continues is thinking */
};

/* Returns the options of a request that says nothing but its prompt. */
struct request_options request_defaults(void);
/* Returns the sampler's options, with this seed. */
struct moeflux_sampler_options request_sampling(const struct request_options *o, uint64_t seed);
/* Starts making the constraint of the answer, for struct answer_options. constrain_await returns it; the
 * caller frees it with constraint_free before it closes the generator. */
void request_constrain_ahead(const struct request_options *o, struct generator *s, struct constrain_ahead *a);
struct chat_reasoning request_reasoning(const struct request_options *o);
/* Makes s->chat usable for the request, and sets in `o` what the template cannot do: a limit of the
 * thinking in the place of an effort or a switch that it does not know. Errors: those of
 * generator_use_chat. */
int request_use_chat(struct request_options *o, struct generator *s, const char *what, struct moeflux_err *e);
/* Returns the options for answer_run, without a sink; borrows from `o`. */
struct answer_options request_answer(const struct request_options *o);

struct request {           /* zeroed at first; freed with request_free */
    uint64_t line;         /* number of its line, from 1; 0: it was not read from lines */
    struct json_t *fields; /* the object, with the names of request_fields.h; NULL: there is none */
    /* a string, a whole number or null; borrowed from `fields` or jansson's own null */
    struct json_t *id;
    char *key;                      /* identifies the request: by its id, else by its line */
    struct request_options options; /* the defaults, replaced by the request's fields */
    struct str grammar;             /* grammar from its own fields, which options.grammar points to */
    struct moeflux_bias *bias;      /* likewise, of options.sampling */
    const char **breakers;          /* likewise; the texts are those of `fields` */
    struct json_t *tools;           /* likewise, of options.tools */
    /* type of the first tool that is left out, because it is no function; borrowed from `fields`; NULL:
     * none */
    const char *skipped_tool;
    bool has_format;       /* the grammar is of texts alone: the answer may call tools instead */
    bool tools_are_unseen; /* nothing writes the tools into the prompt (tool_text.h) */
    struct token_list tokens;
    /* Set by the caller: count the leading tokens that do not depend on the last message, n_system, too. */
    bool counts_system;
    uint32_t n_system;
    bool is_too_long; /* the text has more tokens than the context holds */
};

/* Makes the request of a line that was too long to read. Returns ERR_FORMAT with its text, or ERR_MEMORY. */
int request_too_long(struct request *r, uint64_t line, size_t max_bytes, struct moeflux_err *e);

/* Parses a line. ERR_FORMAT, ERR_USAGE: the text names the line and the field; id and key are set even then
 * if the line has an id. ERR_MEMORY. */
int request_read(struct request *r, const char *text, size_t len, uint64_t line,
                 const struct request_options *defaults, struct moeflux_err *e);

/* Does the same with a parsed object. Its strings are borrowed; errors begin with "the request"; there is
 * no key. */
int request_take(struct request *r, struct json_t *object, const struct request_options *defaults,
                 struct moeflux_err *e);

/* Makes the tokens of the prompt or the messages. The caller compares their number with the context; a text
 * whose bytes alone are too many is refused before it is encoded (ERR_USAGE, is_too_long).
 * ERR_USAGE, ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. */
int request_encode(struct request *r, struct generator *s, struct moeflux_err *e);

/* Checks that the prompt's tokens fit a sequence of max_context tokens. ERR_USAGE, is_too_long. */
int request_check_length(struct request *r, uint32_t max_context, struct moeflux_err *e);

void request_free(struct request *r);

#endif
