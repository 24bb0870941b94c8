/* answer.h - the generation loop: sampled ids become parts of text until something ends the answer. */
#ifndef MOEFLUX_GENERATE_ANSWER_H
#define MOEFLUX_GENERATE_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "generate/draft.h"
#include "generate/logprobs.h"
#include "moeflux_chat.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

struct constraint;
struct generator;
struct json_t;

enum { ANSWER_ID_BYTES = 264 }; /* bytes of a call's id, with the NUL */

/* A tool that the answer calls. */
struct answer_call {
    /* the model's own, if its form has ids; else "call_...", the same for the same seed and place in
     * the text */
    char id[ANSWER_ID_BYTES];
    struct str name;
    struct str arguments; /* a JSON object; its beginning if is_cut */
    bool is_cut;          /* the answer ended within the call */
};

/* Receives the pieces as they come. Each sampled token gives one piece at once, with the whole characters
 * that it completes and that can be shown, which may be none. Characters that were held back come with a
 * later token, or in a piece without a token. */
struct answer_sink {
    int (*piece)(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e);
    void *ctx;
};

struct answer_options {
    int64_t limit; /* tokens; negative: none */
    bool ignore_eos;
    bool chat; /* separate the template's parts, such as thinking; false: all text is the answer */
    /* [n_stops] texts that end the answer and are not shown. They are not searched in the thinking. One that
     * is the text of an added token also ends the answer where that token is sampled. */
    const char *const *stops;
    size_t n_stops;
    bool keep_stop; /* the stop text is shown as the end of the answer */
    /* After think_budget tokens the thinking is ended by the template's own closing marks; the answer goes
     * on. */
    bool limits_thinking;
    uint32_t think_budget;
    /* The text of the message that the answer continues, a part of what the constraint describes; NULL: it
     * begins a message. */
    const char *continues;
    bool continues_thinking; /* that text is thinking */
    /* Tools (text/chat/tool_calls.h): calls are recognised by the form of the model's chat template, if it
     * is known. NULL: calls are text. */
    const struct json_t *tools;
    bool one_call;  /* the first call ends the answer */
    bool must_call; /* the constraint describes a call (tools_grammar) */
    bool may_call;  /* the constraint describes a text or calls (request_prompt.c) */
    bool logprobs;
    uint32_t n_logprobs; /* number of likeliest tokens, at most MOEFLUX_MAX_LOGPROBS */
    struct draft_options draft;
    /* The answer without its thinking must fit it; NULL: any text. Advanced by each token. */
    struct constraint *constraint;
    struct answer_sink sink;
};

struct answer { /* zeroed at first; freed with answer_free */
    struct str text, thinking;
    struct token_list tokens; /* every sampled id, also of the end of text and of a stop text */
    struct logprobs logprobs; /* one row for each token, if asked for */
    enum moeflux_stop stop;
    const char *stop_text;     /* the stop that was found, borrowed from the options; NULL: none */
    struct answer_call *calls; /* [n_calls] calls; the last one may be cut */
    size_t n_calls, calls_cap;
    uint32_t n_pending;      /* last tokens that are not part of the sequence yet */
    uint64_t first_token_ns; /* clock_ns() of the first token; 0: none */
    uint64_t decode_ns;      /* time from the first token to the end */
    uint32_t n_decoded;      /* tokens evaluated in that time */
    struct draft_counts drafts;
};

/* Samples an answer after the prompt, which has been evaluated. After a failure `a` has what came
 * before. */
int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e);

/* Returns the form of moeflux_chat.h, borrowed from `c`. */
struct moeflux_call answer_call_of(const struct answer_call *c);

void answer_free(struct answer *a);

#endif
