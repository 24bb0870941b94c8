/* family.h - a family of models: its name, the reader of its configuration, the names of its tensors.
 *
 * A family is one file, families/X.c, and a line in family.c. Its reader describes every layer (config.h).
 * src/arch builds layers from that description, schema.c lists their tensors. The floors above use the
 * description; of the family they use only its name and its tensors' names. A mixer or an option that no
 * layer has yet goes to src/arch. */
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

/* How checkpoints name the tensors of a layer of multi-token prediction (drafter.h). */
enum drafter_form {
    DRAFTER_NONE,        /* the layer is not supported */
    DRAFTER_UNPUBLISHED, /* no checkpoint has its weights, even if its configuration names such a layer */
    DRAFTER_AS_MTP,      /* mtp.fc, mtp.norm, mtp.layers.0.X */
    /* mtp.fc_embedding, mtp.fc_hidden, mtp.hyper_connection_mixer, mtp.layers.0.X */
    DRAFTER_AS_MTP_OF_STREAMS,
    /* model.layers.N.eh_proj, .enorm, .hnorm, .shared_head.norm and .X after the last layer */
    DRAFTER_AS_NEXTN,
    DRAFTER_AS_MTP_NEXTN, /* the same names after mtp.layers.0. */
    DRAFTER_AS_STAGES     /* mtp.0.e_proj, .h_proj, .enorm, .hnorm, .norm and .X */
};

struct family {
    const char *name;                        /* shown to users: "Qwen3.5-MoE" */
    uint32_t id;                             /* part of saved states' fingerprints: never changed or reused */
    const char *types[FAMILY_MAX_TYPES + 1]; /* values of model_type; NULL ends the list */
    /* A key by which the family is known where a converter has left model_type out, or NULL. A configuration
     * with one of not_keys is another family's; NULL ends them; NULL: none. */
    const char *own_key;
    const char *const *not_keys;
    /* A key that must be true, else the model has no experts; NULL: all have some. */
    const char *moe_switch;
    /* Chat template for models without one, by its name in text/chat/chat_families.c; NULL: unknown */
    const char *chat;

    /* Reads what config_read leaves to the family: mixers, feed-forward parts, RoPE. c->layers is allocated
     * and zero. Fails by v->rc (config_parts.h). */
    void (*read)(struct config *c, struct json_view *v);

    /* A list with an entry for each layer, which files may have in place of num_hidden_layers; NULL: none. */
    const char *layers_key;
    /* The family's key for moe_intermediate_size; NULL: that one. */
    const char *inner_key;
    const char *act; /* another name than silu that hidden_act may have; NULL: none */
    /* Pairs of parts of tensor names: in files, canonical. A pair of NULL ends the list; NULL: none. */
    const char *const (*renamed)[2];

    enum drafter_form drafter; /* how checkpoints name a layer of multi-token prediction */
    bool bare_names;           /* checkpoints' names have nothing before "layers.N." */
    /* Lists with an entry for each layer may have more, for layers of multi-token prediction. */
    bool longer_lists;

    bool overrides; /* per_layer_config is read; the others refuse it */

    /* Tensors below "model.layers.N.mlp."; NULL: the family has none. */
    const char *router_bias; /* sigmoid router: added for the choice alone; else: added to the logits */
    const char *shared_gate; /* computes the shared expert's weight: a matrix of one row */
    const char *shared;      /* the shared expert, before ".gate_proj" and so on */

    /* Matrices that files store as one, up to an entry without a name; NULL: none. */
    const struct fused_matrix *fused;
    /* Describes experts that a checkpoint stores in another form as MLX's tensors, where the same bytes
     * serve. NULL: not needed. */
    int (*adopt)(struct tensor_list *l, const char *where, struct moeflux_err *e);
    /* Unquantised stacks of experts are transposed, and gate and up rows are interleaved:
     * [n_experts][hidden][2 inner], down [n_experts][inner][hidden]. */
    bool experts_by_columns;

    /* Conversion. */
    const char *mlx_prefix;  /* what MLX's names have before "model.": the models were part of larger ones */
    bool norms_less_one;     /* Hugging Face's files store the weights of norms minus 1 */
    bool mlx_norms_less_one; /* MLX's do so, too */
    /* What tells Hugging Face's files from MLX's then: part of a tensor's name. NULL: the shape of the
     * convolution */
    const char *published_part;
    bool pads_decays;    /* published A_log has k_head_dim numbers, of which the heads' come first */
    bool decays_negated; /* GGUF files have -exp(A_log) even if decays have a bound */
    uint32_t gate_bits;  /* bits of the router and of shared_gate; 0: they are not quantised */
};

/* Return the family with this model_type, or the one whose own_key `v` has; NULL: there is none. */
const struct family *family_find(const char *model_type);
const struct family *family_of_keys(const struct json_view *v);
/* Returns whether a tensor, by its name without ".weight", is the matrix of a router or a gate, or weighs
 * residual streams or pooled keys: what is quantised to gate_bits or not at all. streams_rank: that of the
 * residual streams (config.h). */
bool family_is_gate(const struct family *f, const char *base, uint32_t streams_rank);
/* Writes all model types as "a, b or c"; one that ends with "_text" only if it has no other name. Returns
 * `out`. */
const char *family_list(char out[FAMILY_LIST_TEXT]);

extern const struct family family_qwen35moe, family_qwen3moe, family_deepseek3, family_glm4moe,
    family_qwen3next, family_kimik2, family_minimaxm2, family_gptoss, family_glm4moelite, family_qwen4exp,
    family_gemma4, family_glmdsa, family_deepseek32, family_kimilinear, family_bailinghybrid,
    family_deepseek4, family_glm5next, family_minimaxm3, family_step35, family_mimov2, family_nemotronh,
    family_kimik3, family_deepseek41;

#endif
