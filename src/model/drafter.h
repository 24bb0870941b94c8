/* drafter.h - a checkpoint's layer of multi-token prediction, described as a model of one layer: its drafter.
 * Its parts are those of the model's last layer that has experts and attention of its own.
 *
 * The layer's row of position p is made of the embedding of token p + 1 and of the model's hidden state after
 * token p:
 *   x = fc_embedding rms(e) * pre_fc_norm_embedding + fc_hidden rms(rms(h) * last_norm) * pre_fc_norm_hidden
 * One decoder layer, the drafter's own norm and the model's head follow. The logits are those of token p + 2.
 *
 * Canonical names: the layer's tensors are those of model.layers.0, its norm is model.norm, last_norm is the
 * model's own norm. The matrix of the file has the columns of fc_embedding, then those of fc_hidden. */
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

/* Makes the description of a model that of its drafter. where: the file that errors name. ERR_UNSUPPORTED: a
 * family whose layer is not supported. */
int drafter_config(struct config *c, const char *where, struct moeflux_err *e);
/* Returns which of the tensors that every such layer has is this one, by its name in the file: a bit of
 * DRAFTER_PARTS, the matrix and the norms that join the input, and the last norm. 0: none. c: the model or
 * its drafter. */
enum { DRAFTER_PARTS = 15 };
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
