/* drafter.h - a checkpoint's layer of multi-token prediction, described as a model of one layer: its drafter.
 * Its parts are those of config.drafter.
 *
 * The layer's row of position p is made of the embedding of token p + 1 and of the model's hidden state after
 * token p:
 *   x = fc_embedding rms(e) * pre_fc_norm_embedding + fc_hidden rms(rms(h) * last_norm) * pre_fc_norm_hidden
 * One decoder layer, the drafter's own norm and the model's head follow. The logits are those of token p + 2.
 * If the layer has several residual streams, h is the model's streams, and x is computed for each of them
 * without last_norm; a low-rank mix has one norm over all streams (arch/drafter_input.h).
 *
 * Canonical names: the layer's tensors are those of model.layers.0, its norm is model.norm, its last mix that
 * of the model's streams; last_norm is the model's own norm. Files may have one matrix model.mtp.fc in place
 * of two: the columns of fc_embedding, then those of fc_hidden. */
#ifndef MOEFLUX_MODEL_DRAFTER_H
#define MOEFLUX_MODEL_DRAFTER_H

#include "model/model.h"

struct moeflux_err;
struct tensor_list;

/* A converted model has its drafter's converted files here, without embedding and head. */
#define DRAFTER_DIR "mtp"

/* The tensors of struct drafter_input, below "model.". */
#define DRAFTER_LAST_NORM      "model.mtp.last_norm.weight"
#define DRAFTER_EMBEDDING_NORM "model.mtp.pre_fc_norm_embedding.weight"
#define DRAFTER_HIDDEN_NORM    "model.mtp.pre_fc_norm_hidden.weight"
#define DRAFTER_EMBEDDING_FC   "model.mtp.fc_embedding"
#define DRAFTER_HIDDEN_FC      "model.mtp.fc_hidden"

/* Returns whether the family's layer is supported. */
bool drafter_is_known(const struct family *f);
/* Makes the description of a model that of its drafter. where: the file that errors name. ERR_UNSUPPORTED: a
 * family whose layer is not published or not supported. */
int drafter_config(struct config *c, const char *where, struct moeflux_err *e);
/* Return whether a drafter has last_norm, and the numbers of a token that pre_fc_norm_hidden is for. */
static inline bool drafter_has_last_norm(const struct config *c)
{
    return c->streams.n == 0 && !c->drafts_raw;
}

static inline uint32_t drafter_norm_width(const struct config *c)
{
    return c->streams.rank ? config_width(c) : c->hidden;
}

/* Returns which of the tensors that every such layer has is this one, by its name in the file: bits of
 * DRAFTER_PARTS, the matrices and the norms that join the input, and what precedes the head. 0: none. c: the
 * model or its drafter. */
enum { DRAFTER_PARTS = 31 };
uint32_t drafter_part(const struct config *c, const char *source);
/* Returns whether a checkpoint's tensor is one of the layer's. c: the model. */
bool drafter_takes(const struct config *c, const char *source);
/* Writes the matrix's name in files. Returns `out`. */
enum { DRAFTER_LABEL = 48 };
const char *drafter_label(const struct config *c, char out[DRAFTER_LABEL]);
/* Gives the canonical form of a checkpoint's tensor name in *out (caller frees), NULL for a tensor that the
 * drafter does not have. c: the drafter. ERR_MEMORY. */
int drafter_name(const struct config *c, const char *source, char **out, struct moeflux_err *e);
/* Returns whether a canonical name is that of the embedding or the head, which are the model's. */
bool drafter_shares(const char *name);
/* Splits the matrix that joins the embedding and the hidden state, under canonical names, into its two
 * halves. ERR_FORMAT names a tensor that has no halves. */
int drafter_split(struct tensor_list *l, const char *where, struct moeflux_err *e);

#endif
