/* api_request.h - the body of a request for completions in OpenAI's form: checked fields and choices. */
#ifndef MOEFLUX_API_API_REQUEST_H
#define MOEFLUX_API_API_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/request.h"
#include "moeflux_chat.h"

struct choice;
struct generator;
struct json_t;
struct refusal;
struct response_store;

enum { API_REQUEST_MAX_CHOICES = 128 };

struct api_request { /* zeroed at first; freed with api_request_free */
    bool chat;       /* a chat; false: the completion of a text */
    bool stream, include_usage;
    bool echo; /* the reply begins with the prompt */
    bool logprobs;
    uint32_t n;       /* choices for each prompt */
    int32_t priority; /* job.priority */
    uint32_t n_choices;
    struct moeflux_request **requests; /* [n_choices], ordered by prompt; they have their tokens */

    /* Set by dialects other than OpenAI's chats and completions. */
    struct json_t *given;             /* object: fields of the body that the reply repeats; NULL: none */
    char note[160];                   /* what was left out of the body, a line for the log; "": nothing */
    struct response_store *responses; /* where the reply is kept; NULL: nowhere */
};

/* Values of fields that the body does not have. */
struct api_request_defaults {
    struct request_options options;
    bool turns;  /* fill choice.stops and choice.cuts: where the next request of a conversation will differ */
    bool counts; /* the request asks for the number of its tokens: they may be more than the context holds */
    struct response_store *responses; /* replies that a later request continues; NULL: none */
};

/* Reads a body and makes its choices with their tokens. g: prepared (generator_prepare); a copy of it runs
 * the templates. Returns 0, or -1 with the refusal filled. */
int api_request_read(struct api_request *c, bool chat, const char *body, size_t len,
                     const struct generator *g, const struct api_request_defaults *defaults,
                     struct refusal *refusal);

/* Does the same with a parsed object, such as the body of a batch line. */
int api_request_take(struct api_request *c, bool chat, const struct json_t *in, const struct generator *g,
                     const struct api_request_defaults *defaults, struct refusal *refusal);

/* Returns what request idx was made to: its prompt, and the result of the job that answers it. Borrowed. */
struct choice *api_request_choice(const struct api_request *c, uint32_t idx);

/* Return of the first prompt its tokens, and the type of the first tool that was left out (NULL: none).
 * Borrowed. */
const struct token_list *api_request_prompt(const struct api_request *c);
const char *api_request_skipped_tool(const struct api_request *c);
/* Returns whether the request has tools that its prompt does not name, because the chat template leaves them
 * out. */
bool api_request_hides_tools(const struct api_request *c);

/* Frees all but the struct itself; a zeroed one is legal. */
void api_request_free(struct api_request *c);

#endif
