/* completion.h - the answer to a call as JSON: whole, or in pieces as they come. */
#ifndef MOEFLUX_API_COMPLETION_H
#define MOEFLUX_API_COMPLETION_H

#include <stdint.h>

#include "base/str.h"

struct answer_piece;
struct call;
struct completion;
struct json_t;
struct moeflux_err;
struct refusal;
struct tokenizer;

/* call, model and tokenizer are borrowed. NULL with `e` filled. */
struct completion *completion_new(const struct call *call, const char *model, const struct tokenizer *t,
                                  struct moeflux_err *e);
/* What was kept is gone: the answers are computed once more. */
void completion_reset(struct completion *c);
/* NULL is legal. */
void completion_free(struct completion *c);

/* ---- whole ---- */

/* Keeps a piece of ask `idx`. */
void completion_keep(struct completion *c, uint32_t idx, const struct answer_piece *p);
/* When all asks are done, with results. NULL without memory. */
struct json_t *completion_json(struct completion *c);

/* ---- as server-sent events, appended to `out` ---- */

void completion_send_piece(struct completion *c, uint32_t idx, const struct answer_piece *p, struct str *out);
/* The ask is done: why it ended, or why it failed. */
void completion_send_end(struct completion *c, uint32_t idx, struct str *out);
/* All are done: the usage, if it was asked for, and the end. */
void completion_send_last(struct completion *c, struct str *out);

#endif
