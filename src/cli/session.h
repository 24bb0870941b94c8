/* session.h - an opened model with what a conversation needs beside it: tokenizer, template, sampler, sequence. */
#ifndef MOEFLUX_CLI_SESSION_H
#define MOEFLUX_CLI_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "moeflux.h"
#include "text/chat.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

struct bar;
struct options;

struct session {
    struct moeflux_model *model;
    struct moeflux_model_info info;
    struct tokenizer *tokenizer; /* NULL: the directory has none */
    bool has_chat;               /* `chat` is usable */
    struct chat chat;
    struct moeflux_session *sequence; /* NULL until session_start */
    struct sampler *sampler;
    uint8_t *allowed;     /* bitmap of the ids that may be sampled; NULL: all */
    float *logits;        /* [vocab_size], after the last token */
    uint32_t max_context; /* tokens */
    uint64_t seed;
    uint64_t load_ns;
};

/* Opens the model and its tokenizer; the bar shows loading and, later, prompts. */
int session_open(struct session *s, const struct options *o, struct bar *bar, struct moeflux_err *e);

/* Makes the chat template usable. ERR_USAGE when there is no tokenizer (`what` names what needs it),
 * ERR_UNSUPPORTED when the template is not known or the tokenizer lacks its tokens. */
int session_use_chat(struct session *s, const struct options *o, const char *what, struct moeflux_err *e);

/* The ids of a text without template: before it the token that the model's files put before every text, unless the
 * text begins with it. Appends to `out`, which is empty; the rest as tokenizer_encode. */
int session_encode(const struct session *s, const char *text, size_t len, enum token_specials specials,
                   struct token_list *out, size_t *n_replaced, struct moeflux_err *e);

/* Makes the sequence and the sampler. max_context 0: the smaller of the model's own and 8,192. */
int session_start(struct session *s, const struct options *o, uint32_t max_context, struct moeflux_err *e);

/* Evaluates the ids and tells the sampler of them; `outputs` may be NULL, its `logits` is set here. */
int session_eval(struct session *s, const int32_t *ids, size_t n, const struct moeflux_outputs *outputs,
                 struct moeflux_err *e);

/* The same without logits: for a part of the prompt that more follows. */
int session_feed(struct session *s, const int32_t *ids, size_t n, struct moeflux_err *e);

/* A sampler of its own for what comes: with these options (their seed becomes the session's), told of the tokens that the
 * text begins with. On failure the old one stays. */
int session_new_sampler(struct session *s, const struct sampler_options *o, const int32_t *ids, size_t n,
                        struct moeflux_err *e);

bool session_is_eos(const struct session *s, int32_t id);

/* After a run that ended with `rc`: writes the file of --usage, if it was given and the model was opened, unless the run
 * failed (an interruption is no failure). Returns rc, or ERR_IO with `e` filled. */
int session_save_usage(const struct session *s, const struct options *o, int rc, struct moeflux_err *e);

/* A zeroed or half-built session is legal. */
void session_close(struct session *s);

#endif
