/* family.h - a family of models: what it is called, how its configuration is read, what its tensors are
 * called.
 *
 * A family is one file, family_X.c, and a line in family.c. Its reader describes every layer (config.h). The
 * floors above see the description, and of the family only its name and its tensors' names: src/arch builds
 * layers from it, schema.c their tensors. What a layer lacks for a new family, a mixer or an option of one,
 * goes there. */
#ifndef MOEFLUX_MODEL_FAMILY_H
#define MOEFLUX_MODEL_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/fused.h"

struct config;
struct json_view;
struct moeflux_err;
struct tensor_list;

enum { FAMILY_MAX_TYPES = 3, FAMILY_LIST_TEXT = 512 };

struct family {
    const char *name; /* for people: "Qwen3.5-MoE" */
    uint32_t id;      /* in fingerprints of saved states: stays, and is never given again */
    const char *types[FAMILY_MAX_TYPES + 1]; /* values of model_type, NULL behind the last */
    /* A key that no other family has: some converters leave model_type out of the manifest's config. NULL:
     * there is none */
    const char *own_key;
    /* the chat template of models that bring none, as text/chat/chat.h names it; NULL: unknown */
    const char *chat;

    /* Reads what config_read leaves to it: mixers, feed-forward parts, RoPE. c->layers is there, all zero.
     * Errors as config_read's: what no operation computes is refused by its key. */
    int (*read)(struct config *c, struct json_view *v);

    /* What configurations call moe_intermediate_size; NULL: that. */
    const char *inner_key;
    /* Parts of tensors' names: the files', ours; behind the last NULL. NULL: none. */
    const char *const (*renamed)[2];

    /* Tensors below "model.layers.N.mlp."; NULL: the family has none. */
    const char *router_bias; /* of a sigmoid router for the choice alone, else of its logits */
    const char *shared_gate; /* the weight of the shared expert: a matrix of one row */
    const char *shared;      /* the shared expert, before ".gate_proj" and so on */

    /* Matrices that its files hold as one; NULL: none. */
    const struct fused_matrix *fused; /* the last has no name */
    /* Makes the tensors of checkpoints that have the experts in another form those of MLX, as far as the same
     * bytes do; NULL: they have not. */
    int (*adopt)(struct tensor_list *l, const char *where, struct moeflux_err *e);
    /* Its plain stacks of experts have the gate's and the up rows in turn, each row a column:
     * [n_experts][hidden][2 inner], and down [n_experts][inner][hidden]. */
    bool experts_by_columns;

    /* Conversion. */
    const char *mlx_prefix; /* of MLX's names, before "model.": of models that came wrapped in others */
    bool norms_less_one;    /* Hugging Face's files hold the weights of norms less 1 */
    uint32_t gate_bits;     /* of the router and of shared_gate; 0: they are not quantised */
};

/* NULL: no family has this model_type, or this key. */
const struct family *family_find(const char *model_type);
const struct family *family_of_keys(const struct json_view *v);
/* All model types: "a, b or c". Returns `out`. */
const char *family_list(char out[FAMILY_LIST_TEXT]);

extern const struct family family_qwen35moe, family_qwen3moe, family_deepseek3, family_glm4moe,
    family_qwen3next, family_kimik2, family_minimaxm2, family_gptoss;

#endif
