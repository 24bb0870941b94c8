/* generator.h - everything that generation needs in addition to a model: tokenizer, template, sampler,
 * sequence. */
#ifndef MOEFLUX_GENERATE_GENERATOR_H
#define MOEFLUX_GENERATE_GENERATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/breakers.h"
#include "generate/draft.h"
#include "moeflux.h"
#include "text/chat/chat.h"
#include "sample/sampler.h"
#include "text/tokenizer/tokenizer.h"

enum { GENERATOR_TEXTS = 7 };

struct generator;

/* Replaces the evaluation of prompts and single tokens, for batches. prompt: appends a part of a prompt,
 * n >= 1 tokens, to the generator's sequence; is_end: its `logits` get those after the last one. token:
 * appends a token and puts the logits after it into `logits`. step: does the work of draft_step, which it may
 * call. */
struct generator_evaluator {
    int (*prompt)(void *ctx, struct generator *s, const int32_t *ids, uint32_t n, bool is_end,
                  struct moeflux_err *e);
    int (*token)(void *ctx, struct generator *s, int32_t id, struct moeflux_err *e);
    int (*step)(void *ctx, struct generator *s, int32_t id, bool more, int32_t *next, struct moeflux_err *e);
    void *ctx;
};

/* Makes room in memory for sequences, before n tokens are appended to one. */
struct generator_room {
    int (*make)(void *ctx, struct moeflux_session *s, size_t n, struct moeflux_err *e);
    void *ctx;
};

struct generator {
    struct moeflux_model *model;      /* borrowed, as the copies are */
    const char *dir;                  /* model directory: info.dir */
    struct moeflux_progress progress; /* reports loading and prompts; asked before each token to continue */
    struct moeflux_model_info info;
    struct tokenizer *tokenizer; /* NULL: the directory has none */
    bool has_chat;               /* `chat` is usable */
    struct chat chat;
    struct moeflux_session *sequence; /* NULL until generator_start */
    struct sampler *sampler;
    struct breakers_cache breakers; /* the sampler's, if DRY is on */
    struct constrain *constrain;    /* NULL until an answer must fit a grammar */
    uint8_t *allowed;               /* bitmap of the ids that may be sampled; NULL: all */
    float *logits;                  /* [vocab_size], after the last token of generator_eval */
    uint32_t max_context;           /* tokens */
    uint64_t most_prompt_bytes;     /* a longer text has more than max_context tokens; 0: not known */
    uint64_t seed;
    struct draft *draft; /* the running answer's; NULL: none */
    struct draft_costs draft_costs;
    struct generator_evaluator evaluator; /* zeroed: the generator evaluates all itself */
    struct generator_room room;           /* zeroed: an evaluation takes the memory that it finds */
    /* The same model on other devices; each copy has its own sequences. */
    struct moeflux_model *copies[MOEFLUX_MAX_DEVICES - 1];
    uint32_t n_copies;
    /* What `info` points to; owned, so that it outlives a lost model. */
    char *texts[GENERATOR_TEXTS];
    int32_t *eos;
};

/* Makes a generator of a model and its copies on other devices, n >= 1 of them in all, and opens its
 * tokenizer. The models must outlive it, or be replaced (generator_set_models). Errors: those of
 * tokenizer_open; ERR_MEMORY. */
int generator_of_models(struct generator *s, struct moeflux_model *const *models, uint32_t n,
                        struct moeflux_err *e);
/* Replaces the models, when their device is lost, by others that were opened with the same options. All else
 * stays, and other threads may use it. No sequence may be left. */
void generator_set_models(struct generator *s, struct moeflux_model *const *models, uint32_t n);
/* Sets the progress callback, whose ctx must outlive the generator. */
void generator_report(struct generator *s, const struct moeflux_progress *p);

/* Returns the model (idx 0) or copy idx - 1. */
struct moeflux_model *generator_copy(const struct generator *s, uint32_t idx);
/* Sums the statistics of the model and its copies, with a row for each device. */
void generator_get_stats(const struct generator *s, struct moeflux_stats *out);

/* Makes s->chat usable. ERR_USAGE: there is no tokenizer (`what` names what needs it). ERR_UNSUPPORTED: there
 * is no template, it cannot be run, or it cannot switch thinking like this. A template that does not know the
 * effort ignores it. */
int generator_use_chat(struct generator *s, struct chat_reasoning reasoning, const char *what,
                       struct moeflux_err *e);

/* Replaces the model's chat template (text; NULL: it stays), and sets more variables of the template (an
 * object; NULL: none). Neither is taken over. On failure nothing changes. Errors: those of
 * generator_use_chat, ERR_FORMAT (the text is no template), ERR_MEMORY. */
int generator_set_template(struct generator *s, const char *text, struct json_t *variables, const char *what,
                           struct moeflux_err *e);

/* Checks ids that the tokenizer has made. ERR_FORMAT: the model has no such token, so the tokenizer is
 * another model's. */
int generator_check_ids(const struct generator *s, const struct token_list *ids, struct moeflux_err *e);

/* Prepares what every sequence needs: the context in tokens (0: the smaller of the model's maximum and
 * MOEFLUX_DEFAULT_CONTEXT), the ids that may be sampled, room for logits. A second call changes the context.
 * ERR_USAGE: max_context is above the model's maximum. ERR_MEMORY. */
int generator_prepare(struct generator *s, uint32_t max_context, struct moeflux_err *e);

/* Does the work of generator_prepare, and makes the sequence and the sampler. */
int generator_start(struct generator *s, uint32_t max_context, const struct moeflux_sampler_options *o,
                    struct moeflux_err *e);

/* Makes another generator on the same model (copy 0) or one of its copies, for a concurrent request. It
 * shares all with `of`, which was prepared and must outlive it, except template, logits, sampler and its
 * breakers, which are not set yet. Before an evaluation the caller sets logits [vocab_size] (malloc; freed
 * with s) and a sequence (which stays the caller's). */
void generator_share(struct generator *s, const struct generator *of, uint32_t copy);
/* Frees such a generator; a zeroed one is legal. */
void generator_unshare(struct generator *s);

/* Evaluates the ids and passes them to the sampler (sampler_accept). `outputs` may be NULL; its `logits` are
 * not used: s->logits gets them. Errors: those of moeflux_session_eval. */
int generator_eval(struct generator *s, const int32_t *ids, size_t n, const struct moeflux_outputs *outputs,
                   struct moeflux_err *e);

/* Evaluates one token, passes it to the sampler and samples the next one. s->logits may not be set. more: the
 * next token will probably be evaluated (moeflux_session_step). */
static inline int generator_step(struct generator *s, int32_t id, bool more, int32_t *next,
                                 struct moeflux_err *e)
{
    int rc = s->room.make ? s->room.make(s->room.ctx, s->sequence, 1, e) : 0;
    if (rc)
        return rc;
    return s->evaluator.step ? s->evaluator.step(s->evaluator.ctx, s, id, more, next, e)
                             : draft_step(s, id, more, next, e);
}
/* Samples *id from s->logits, which are those of the last token. */
int generator_choose(struct generator *s, int32_t *id, struct moeflux_err *e);

/* Does the work of generator_eval without logits, for a part of the prompt that is not its end. */
int generator_feed(struct generator *s, const int32_t *ids, size_t n, struct moeflux_err *e);

/* Replaces the sampler by one with these options, whose seed becomes the generator's. ids [n]: tokens that
 * the text begins with; the sampler accepts them. On failure the old sampler stays. */
int generator_new_sampler(struct generator *s, const struct moeflux_sampler_options *o, const int32_t *ids,
                          size_t n, struct moeflux_err *e);

bool generator_is_eos(const struct generator *s, int32_t id);

/* Frees all but the models; a zeroed or half-built generator is legal. */
void generator_close(struct generator *s);

#endif
