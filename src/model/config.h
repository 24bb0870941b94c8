/* config.h - describes a model: its layers, dimensions and constants. config_read.h fills the description
 * from config.json (or a manifest's "config"). Floors above use it and do not ask for the family.
 *
 * Names are those of the literature. Counts are > 0 if the model uses them, else 0. */
#ifndef MOEFLUX_MODEL_CONFIG_H
#define MOEFLUX_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/ngram.h"

struct moeflux_err;
struct family;
struct json_t;

/* The kinds of parts that layers consist of. The mixers, in which the tokens of a sequence meet, come
 * first. The numbers are in fingerprints of saved states and must not change. */
enum part_kind {
    PART_DELTA_NET,
    PART_ATTENTION,  /* grouped-query attention */
    PART_LATENT,     /* multi-head latent attention */
    PART_DENSE,      /* feed-forward */
    PART_EXPERTS,    /* routed experts, and a shared one; described in struct config */
    PART_NGRAMS,     /* rows of a table by a hash of the last tokens */
    PART_COMPRESSED, /* attention over one latent a position, and over compressed ones; a mixer, too */
    PART_MAMBA,      /* Mamba-2; a mixer, too */
    PART_KINDS,
    PART_MIXERS = PART_DENSE
};

/* Norms of queries and keys in grouped-query attention: none, one per head, one over all heads of a token. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEADS, QK_NORM_ALL };

/* An indexer (ops/indexer/indexer.h): a token sees the best blocks of positions up to a budget. */
struct index_config {
    /* 0: the layer has no indexer. If it has a ratio, its tokens see what the last layer before it with an
     * indexer has chosen for them */
    uint32_t n_heads;
    uint32_t dim;
    uint32_t ratio;  /* positions of a block, a power of two; 0: every token sees everything */
    uint32_t budget; /* blocks */
    uint32_t rotary_dim;
    /* The candidates are the best `blocks` groups of `block_rows` consecutive blocks, by their largest
     * scores, with the last group. A layer that chooses them has `finds`; others with `blocks` choose among
     * those that the last such layer before them has found. 0: no candidates */
    uint32_t blocks, block_rows;
    bool finds;
    /* each head chooses for a key head of its own, by its largest score in a block, and a token always sees
     * the block of its own position; keys are of single positions */
    bool by_head;
    bool weighted;    /* the heads' scores have weights, a projection of the hidden state */
    bool layer_norm;  /* the key has a layer norm with biases, queries have no norm */
    bool interleaved; /* rotates the pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2) */
    bool pooled;      /* learned weights average a block's normed keys; needs layer_norm and rotary_dim 0 */
};

struct gqa_config {
    uint32_t n_heads, n_kv_heads, head_dim;
    struct index_config index;
    uint32_t rope;   /* index into config.ropes */
    uint32_t window; /* positions that a token sees, with its own; 0: all */
    enum qk_norm norm;
    uint32_t value_dim;   /* channels of a value, at most head_dim; 0: head_dim */
    float scale;          /* factor of the scores; 0: 1 / sqrt(head_dim) */
    float value_scale;    /* factor of the values; 0: 1 */
    bool norms_values;    /* each head's values are divided by their rms */
    bool keys_are_values; /* k_proj computes the values, too: there is no v_proj */
    bool gated;           /* q_proj computes a gate for each query, too */
    bool head_gated;      /* each head's output is multiplied by a sigmoid */
    bool biased;          /* q_proj, k_proj and v_proj have biases */
    bool out_biased;      /* o_proj has a bias */
    bool sinks;           /* each head has one more score, without a value */
};

/* The key of a configuration that says delta_config.tiled; conversions of GGUF files write it. */
#define CONFIG_TILED_KEY "linear_value_heads_tiled"

struct delta_config {
    uint32_t n_k_heads, n_v_heads, k_head_dim, v_head_dim, conv_kernel;
    bool sigmoid; /* the output gate is sigmoid(z), else silu(z) */
    bool tiled;   /* value head h has key head h mod n_k_heads, else h / (n_v_heads / n_k_heads) */
    /* Kimi Delta Attention: a decay for each key channel; q, k and v have matrices of their own */
    bool by_channel;
    float lower;        /* by_channel: lower bound of the decay's logarithm, < 0; 0: none */
    uint32_t gate_rank; /* by_channel: rank of the matrices of decays and output gates; 0: full */
    bool z_full;        /* the matrix of output gates is full, whatever gate_rank is */
};

/* A table of n-gram rows (ngram.h, table.h) and what adds them to the residual (ops/ngram/ngram.h). */
struct ngram_config {
    struct ngram_table table;
    bool fused;              /* one matrix makes keys and values, and there is no convolution (taps 0) */
    struct ngram_hash given; /* the table's constants, if the configuration has them; n_rows 0: it has none */
    uint32_t width;          /* numbers of a token's residual */
    uint32_t inner;          /* numbers of all rows of a token */
    uint32_t taps;           /* taps of the convolution; its dilation is table.size */
};

struct latent_config {
    uint32_t n_heads;
    uint32_t q_lora_rank; /* 0: plain q_proj */
    uint32_t kv_lora_rank, nope_dim, rope_dim, v_dim;
    uint32_t rope;             /* index into config.ropes */
    bool interleaved;          /* rotates the pairs (2i, 2i+1) instead of (i, i + rope_dim/2) */
    struct index_config index; /* its queries are projections of q_a */
    bool gated;                /* each head's output is multiplied by a sigmoid */
    bool gates_channels;       /* gated: by one for each channel */
    float eps;                 /* added to the mean in the norms of q_a and of latents; 0: 1e-6 */
};

/* DeepSeek-V4's attention. A position has one row of head_dim numbers, the key and the value of all heads. A
 * token sees the rows of a window, and rows that each `ratio` positions are compressed to. */
struct compressed_config {
    uint32_t n_heads, head_dim;
    uint32_t rope_dim; /* the last channels of a head, which are rotated in pairs (2i, 2i + 1) */
    uint32_t rope;     /* index into config.ropes: angles of queries, rows and compressed rows */
    uint32_t q_lora_rank;
    uint32_t window;  /* positions that a token sees uncompressed, with its own */
    uint32_t ratio;   /* positions of a compressed row, a power of two; 0: there are none */
    bool overlaps;    /* a compressed row is made of its positions and of those of the row before it */
    bool norms_heads; /* each head's query is divided by its rms */
    /* DeepSeek-V4.1: a row's weights have no biases, rows of one position no weights, and index keys are
     * projections of the normed rows */
    bool projects_keys;
    bool borrows;              /* its compressed rows are those of the last layer before it that makes some */
    struct index_config index; /* chooses compressed rows; n_heads 0: a token sees all complete ones */
    /* The heads' outputs form out_groups groups, of which each has a matrix of out_rank rows; another matrix
     * follows */
    uint32_t out_groups, out_rank;
};

/* Mamba-2 (ops/ssd/ssd.h). */
struct mamba_config {
    uint32_t n_heads, n_groups, head_dim, state_dim, conv_kernel;
    bool conv_biased; /* the convolution has biases */
    float low, high;  /* bounds of the time steps; high may be infinite */
};

struct dense_config {
    uint32_t inner;
    float clamp; /* bound of the activations; 0: none */
};

/* The layers' routed experts, described in struct config. */
struct routed_config {
    bool by_token; /* a table [vocab_size][own_top_k] names a token's experts by its id */
};

/* One description of a part; layers that share it have equal shapes and options. */
struct part_config {
    enum part_kind kind;
    union {
        struct gqa_config gqa;
        struct delta_config delta;
        struct latent_config latent;
        struct compressed_config compressed;
        struct mamba_config mamba;
        struct dense_config dense;
        struct routed_config routed;
        struct ngram_config ngrams;
    };
};

/* A step of a layer: x += part(norm(x)), or with streams: a mix of them, the part, and its output weighted
 * for each stream. N-gram rows are added to all streams. With norms after the parts, which all blocks of all
 * layers have then: x = (x + outer(kept + post(part(norm(x))))) * factor, kept = the outputs of the blocks
 * before that are held back. */
struct config_block {
    uint32_t part; /* index into config.parts */
    /* Tensors below "model.layers.N.": weights of the norm before it; what mixes the streams before it. NULL:
     * none */
    const char *norm, *mix;
    /* Likewise the weights of the norm after it, of the norm over the sum with what was kept, and one number.
     * NULL: none. `outer` and `factor` need `post`. */
    const char *post, *outer, *factor;
    bool keeps; /* post(part(norm(x))) is kept for the next block, and x stays */
};

/* The residual: one vector of a token, or several streams that a mix makes one before each part
 * (ops/streams/streams.h). With blocks the first stream is the sum of the current block of layers, and each
 * other one, of a block before it. */
struct streams_config {
    uint32_t n;          /* 0: plain */
    uint32_t block;      /* layers of a block; 0: another mix, which is low-rank or doubly stochastic */
    bool scores_alone;   /* blocks: scores have their norms' weights in them; set from the tensors */
    uint32_t rank;       /* rank of a low-rank mix; 0: the mix is doubly stochastic */
    uint32_t iterations; /* doubly stochastic: Sinkhorn's, at least 1 */
    float floor;         /* doubly stochastic */
    bool ends_in_mean;   /* doubly stochastic: all streams weigh the same before the last norm */
    bool lagged;         /* doubly stochastic: a mix takes the weights that the mix before it has computed */
};

enum { CONFIG_MAX_EOS = 16, CONFIG_MAX_PARTS = 12, CONFIG_MAX_BLOCKS = 4, CONFIG_MAX_ROPES = 2 };
enum { CONFIG_MAX_DIVISORS = 128 };

/* A layer's blocks, in order. Routed experts are in its last block. */
struct config_layer {
    uint32_t n_blocks;
    struct config_block blocks[CONFIG_MAX_BLOCKS];
    /* Clamps of the activations of the routed experts and of the shared one (ops/experts/experts.h); 0:
     * none */
    float clamp, shared_clamp;
};

/* A table of rotary angles. */
struct rope_config {
    uint32_t dim;     /* rotated channels of a head, even */
    uint32_t n_pairs; /* pairs that turn, the first ones; the angles of the others are 0. 0: all */
    bool yarn;        /* false: plain RoPE */
    bool none;        /* all angles are 0 */
    bool truncate;    /* YaRN: floor and ceil the correction range */
    double theta;
    double factor;                                   /* YaRN; else the angles are divided by it, 0: by 1 */
    double original_context, beta_fast, beta_slow;   /* YaRN */
    double mscale, mscale_all_dim, attention_factor; /* YaRN; 0: absent */
    uint32_t n_divisors;                             /* 0: none, else one for each pair */
    double divisors[CONFIG_MAX_DIVISORS];            /* divide the angles of the pairs */
};

/* How a router chooses experts (ops/router/router.h). */
struct router_config {
    bool sigmoid;  /* sigmoid scores, experts in groups; else softmax */
    bool softplus; /* sigmoid: the scores are sqrt(log(1 + exp(logit))) in its place */
    uint32_t n_groups, keep_groups;
    float scale;
    bool norm;
    bool own_norm; /* its input is rms(x) * router.scale / sqrt(hidden), else the experts' input */
    bool factors;  /* the weights are multiplied by factors of the experts; softmax only */
};

struct config {
    const struct family *family;
    uint32_t hidden, n_layers, vocab_size;
    struct streams_config streams;
    uint32_t max_context; /* tokens: max_position_embeddings, or what YaRN stretches to; 0: unknown */
    float rms_eps;
    bool tied; /* lm_head is the embedding */
    /* The layer of multi-token prediction; n_blocks 0: it is like the last layer with experts and
     * attention of its own. Without a mix it has one residual stream */
    struct config_layer drafter;
    bool drafts_raw;             /* that layer's hidden states have no last norm (drafter.h) */
    bool drafts;                 /* the only layer is that of multi-token prediction (drafter.h) */
    uint32_t drafts_as;          /* its number in GGUF files: the whole model's layers */
    struct config_layer *layers; /* [n_layers], owned; at least one has experts */
    struct part_config parts[CONFIG_MAX_PARTS];
    uint32_t n_parts;
    struct rope_config ropes[CONFIG_MAX_ROPES];
    uint32_t n_ropes;
    /* MLA: the heads' matrices are kv_b_proj, else embed_q and unembed_out; set from the tensors */
    bool has_kv_b;
    /* The indexer's queries and its key are index_q_proj and index_k_proj, else index_qk_proj; set from the
     * tensors */
    bool splits_index;

    /* experts, the same in all layers that have some */
    uint32_t n_experts, moe_inner;
    uint32_t top_k;     /* routed experts of a token: the file's num_experts_per_tok, or the user's number */
    uint32_t own_top_k; /* the file's top_k */
    /* A token uses its best experts until their weights sum to this share of the total, (0, 1); 0: all
     * top_k */
    float expert_share;
    uint32_t shared_inner; /* sum over all shared experts; 0: there is none */
    /* routed experts read a projection of the normed hidden state to so many columns, and another matrix
     * projects their sum back; 0: they read the hidden state */
    uint32_t moe_latent;
    bool latent_normed;             /* a norm comes before the matrix that projects back */
    uint32_t first_dense, moe_freq; /* DeepSeek's keys for dense layers; only fingerprints use them */
    struct router_config router;
    bool experts_biased;
    float swiglu_limit; /* gpt-oss's, of all feed-forward parts (ops/gating.h); 0: none */
    bool clamps_inputs; /* clamps bound the gate before SiLU, not after it */
    bool gelu;          /* all feed-forward parts have GELU in place of SiLU */
    float situ_beta;    /* all feed-forward parts have SiTU with this factor (ops/gating.h); 0: none */
    float situ_linear;  /* SiTU's factor of up rows; 0: none */
    bool gateless;      /* feed-forward parts have no gate: down_proj relu(up_proj x)^2 */
    float embed_factor; /* factor of the embedding; 0: none */
    float softcap;      /* logits are softcap * tanh(logits / softcap); 0: they are not */

    int32_t eos[CONFIG_MAX_EOS]; /* end-of-text ids of all files that name some, each once */
    uint32_t n_eos;
    int32_t *suppressed; /* [n_suppressed] ids that no answer has, of all files that name some; owned */
    size_t n_suppressed, cap_suppressed;
};

/* Returns the numbers of a token's residual. */
static inline uint32_t config_width(const struct config *c)
{
    return c->hidden * (c->streams.n ? c->streams.n : 1);
}

/* Returns the weights of a token's lagged mix, which go from one layer to the next with its residual. */
static inline uint32_t config_lagged(const struct config *c)
{
    return c->streams.lagged ? c->streams.n : 0;
}

/* Returns the columns of what routed experts read, and the rows of what they give. */
static inline uint32_t config_expert_hidden(const struct config *c)
{
    return c->moe_latent ? c->moe_latent : c->hidden;
}

/* Returns the gates of latent attention. */
static inline uint32_t config_latent_gates(const struct latent_config *m)
{
    return m->gated ? m->n_heads * (m->gates_channels ? m->v_dim : 1) : 0;
}

/* Returns the blocks of layers that begin before layer i. */
static inline uint32_t config_blocks_before(const struct streams_config *s, uint32_t i)
{
    return (i + s->block - 1) / s->block;
}

/* Returns the rank of the delta net's output gates; 0: full. */
static inline uint32_t config_z_rank(const struct delta_config *d)
{
    return d->z_full ? 0 : d->gate_rank;
}

/* Returns the channels of the delta net's convolution. */
static inline uint32_t config_conv_dim(const struct delta_config *d)
{
    return 2 * d->n_k_heads * d->k_head_dim + d->n_v_heads * d->v_head_dim;
}

/* Returns the channels of Mamba-2's values, and those of its convolution. */
static inline uint32_t config_mamba_inner(const struct mamba_config *m)
{
    return m->n_heads * m->head_dim;
}

static inline uint32_t config_mamba_channels(const struct mamba_config *m)
{
    return config_mamba_inner(m) + 2 * m->n_groups * m->state_dim;
}

/* Returns the channels of a value. */
static inline uint32_t config_value_dim(const struct gqa_config *g)
{
    return g->value_dim ? g->value_dim : g->head_dim;
}

/* Returns the delta net's decays of a token. */
static inline uint32_t config_decays(const struct delta_config *d)
{
    return d->n_v_heads * (d->by_channel ? d->k_head_dim : 1);
}

/* Returns the share of the router's weights that a token's experts have at least; 1: all. */
static inline float config_expert_share(const struct config *c)
{
    return c->expert_share > 0 ? c->expert_share : 1;
}

/* Returns whether a norm comes before the head; a low-rank mix of streams has its own. */
static inline bool config_has_last_norm(const struct config *c)
{
    return c->streams.rank == 0;
}

/* Returns whether norms follow the parts. */
static inline bool config_has_posts(const struct config *c)
{
    return c->layers[0].blocks[0].post != NULL;
}

/* Returns the description of a block's part. */
static inline const struct part_config *config_part(const struct config *c, uint32_t layer, uint32_t block)
{
    return &c->parts[c->layers[layer].blocks[block].part];
}

/* Returns whether layer i has routed experts. */
static inline bool config_has_experts(const struct config *c, uint32_t i)
{
    uint32_t n = c->layers[i].n_blocks;
    return n > 0 && config_part(c, i, n - 1)->kind == PART_EXPERTS;
}

/* Returns whether a table names the experts of layer i's tokens. */
static inline bool config_is_by_token(const struct config *c, uint32_t i)
{
    return config_has_experts(c, i) && config_part(c, i, c->layers[i].n_blocks - 1)->routed.by_token;
}

/* Returns the first description of this kind, or one with all fields 0. */
const struct part_config *config_first(const struct config *c, enum part_kind kind);
/* Returns the description of the layer's first mixer; of its first part if it has none. */
const struct part_config *config_mixer(const struct config *c, uint32_t layer);
/* Returns whether a layer's tokens see what a layer before it has chosen for them. */
bool config_shares_choice(const struct config *c, uint32_t layer);
/* Returns whether layers from this one on need what a layer before it has made: a choice, candidates, or
 * compressed rows. */
bool config_needs_choice(const struct config *c, uint32_t layer);
/* Returns the layer whose compressed rows this one sees: it or one before it; UINT32_MAX: none. */
uint32_t config_rows_of(const struct config *c, uint32_t layer);
/* Returns the positions that layer i's mixer sees; 0: all. */
uint32_t config_window(const struct config *c, uint32_t layer);

/* Returns whether a token's experts depend on its id in some layer. */
bool config_routes_by_token(const struct config *c);

/* Returns the longest context of a sequence in tokens, with a default for models that give none. */
static inline uint32_t config_longest_context(const struct config *c)
{
    return c->max_context ? c->max_context : 262144;
}

/* Sets how many experts a token uses: n of a layer, and of these only as many as reach `share` of the weights
 * (ops/router/router.h). n 0: the file's number; share 0 or 1: all n. ERR_USAGE: the router cannot choose n,
 * or `share` is outside [0, 1]. */
int config_set_active_experts(struct config *c, uint32_t n, float share, struct moeflux_err *e);

/* Adds what an object of config.json or generation_config.json says about answers: eos_token_id to c->eos,
 * each once, and suppress_tokens to c->suppressed. ERR_FORMAT, ERR_MEMORY. */
int config_add_generation(struct config *c, const struct json_t *root, const char *where,
                          struct moeflux_err *e);

void config_free(struct config *c);

#endif
