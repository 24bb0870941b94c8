/* answer.h - the generation loop: sampled ids become parts of text until something ends the answer. */
#ifndef MOEFLUX_GENERATE_ANSWER_H
#define MOEFLUX_GENERATE_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "generate/logprobs.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

struct constraint;
struct generator;
struct json_t;
struct moeflux_err;

/* A tool that the answer calls. */
struct answer_call {
    char id[32]; /* "call_...", the same for the same seed and place in the text */
    struct str name;
    struct str arguments; /* a JSON object */
};

enum answer_call_event {
    ANSWER_CALL_BEGINS,    /* the name is there; no text */
    ANSWER_CALL_ARGUMENTS, /* `text` goes on with them */
    ANSWER_CALL_ENDS,      /* it is whole; no text */
    ANSWER_CALL_FAILS,     /* it is none; what stood for it comes next, as text of the answer */
};

/* What has come. Each sampled token comes once, at once, with the whole characters that it completes and that
 * can be shown, which may be none; what was held back comes with a later token or with none. */
struct answer_piece {
    int32_t id; /* -1: no token of its own */
    enum chat_part part;
    const char *text;
    size_t len;
    const struct logprob *logprobs; /* of `id`: [1 + n_top], the token's own first (logprobs.h); NULL: none */
    uint32_t n_top;
    const struct answer_call *call; /* of CHAT_TOOL, else NULL */
    /* Counts those that fail, too: clients put a call together from the pieces of one index. */
    uint32_t call_idx;
    enum answer_call_event event;
};

/* Where the answer goes as it comes. What the piece points to is borrowed for the call. */
struct answer_sink {
    int (*piece)(void *ctx, const struct answer_piece *p, struct moeflux_err *e);
    void *ctx;
};

struct answer_options {
    int64_t limit; /* tokens; negative: none */
    bool ignore_eos;
    bool chat; /* the template's parts are told apart; else all text is answer */
    const char *const
        *stops; /* [n_stops] texts that end the answer and are not shown; not looked for in its thinking */
    size_t n_stops;
    /* As text/chat/tool_calls.h has them: calls are told apart by the form of the model's chat template, if
     * it is known. NULL: they are text. */
    const struct json_t *tools;
    bool one_call;  /* the first call ends the answer */
    bool must_call; /* the constraint is of a call (tools_grammar) */
    bool logprobs;
    uint32_t n_logprobs; /* of the likeliest tokens, at most LOGPROBS_MAX */
    /* what the answer, without its thinking, must fit; NULL: nothing. It is moved on. */
    struct constraint *constraint;
    struct answer_sink sink;
};

enum answer_stop {
    ANSWER_EOS,
    ANSWER_LENGTH,
    ANSWER_CONTEXT,
    ANSWER_INTERRUPTED,
    ANSWER_STOP_TEXT, /* one of the options' stops */
    ANSWER_TOOLS,     /* as ANSWER_EOS, with at least one call */
    ANSWER_N_STOPS
};

struct answer { /* zeroed at first; freed with answer_free */
    struct str text, thinking;
    struct token_list tokens; /* every sampled id, those of the end-of-text and of a stop text included */
    struct logprobs logprobs; /* of each of them, where they were asked for */
    enum answer_stop stop;
    /* of ANSWER_STOP_TEXT: the one that was found, borrowed from the options; else NULL */
    const char *stop_text;
    struct answer_call *calls; /* whole ones */
    size_t n_calls, calls_cap;
    uint32_t n_pending;      /* so many of the last `tokens` are not part of the sequence yet */
    uint64_t first_token_ns; /* clock_ns() when the first id was there; 0: none */
    uint64_t decode_ns;      /* from then to the end */
    uint32_t n_decoded;      /* tokens evaluated in that time */
};

/* The prompt has been evaluated. A failure leaves in `a` what there was before it. */
int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e);

/* "eos", "length", "context", "interrupted", "stop" or "tool_calls". */
const char *answer_stop_name(enum answer_stop stop);

void answer_free(struct answer *a);

#endif
