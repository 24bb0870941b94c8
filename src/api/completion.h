/* completion.h - the reply to an API request as JSON: whole, or in pieces as they come. */
#ifndef MOEFLUX_API_COMPLETION_H
#define MOEFLUX_API_COMPLETION_H

#include <stdint.h>

#include "base/str.h"

struct answer_piece;
struct api_request;
struct completion;
struct json_t;
struct moeflux_err;
struct refusal;
struct tokenizer;

/* Creates the reply to a request. All pointers are borrowed; model: its name. NULL with `e` filled. */
struct completion *completion_new(const struct api_request *request, const char *model,
                                  const struct tokenizer *t, struct moeflux_err *e);
/* Discards the pieces, because the answers are computed again. */
void completion_reset(struct completion *c);
/* Frees the reply; NULL is legal. */
void completion_free(struct completion *c);

/* ---- whole ---- */

/* Keeps a piece of choice `idx`. */
void completion_keep(struct completion *c, uint32_t idx, const struct answer_piece *p);
/* Returns the reply, once all choices have a result; the caller owns it. NULL: no memory. */
struct json_t *completion_json(struct completion *c);

/* ---- as server-sent events, appended to `out` ---- */

/* Appends a piece of choice `idx`. */
void completion_send_piece(struct completion *c, uint32_t idx, const struct answer_piece *p, struct str *out);
/* Appends why choice `idx` ended or failed, once it is done. */
void completion_send_end(struct completion *c, uint32_t idx, struct str *out);
/* Appends the usage, if it was asked for, and the end, once all choices are done. */
void completion_send_last(struct completion *c, struct str *out);

#endif
