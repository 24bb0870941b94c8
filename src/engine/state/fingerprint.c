/* Computes a model's fingerprint: a hash of samples, enough to tell models apart, few enough to be
 * quick. */
#include <string.h>
#include <xxhash.h>

#include "base/format.h"
#include "base/mem.h"
#include "engine/model.h"
#include "model/expert_tensors.h"
#include "model/family.h"

/* Bytes of a sample. Each tensor has three samples, the first and last expert of each layer four each. */
enum { SAMPLE = 1024, EXPERT_SAMPLE = 256 };

static void add(XXH3_state_t *h, const void *bytes, uint64_t n)
{
    XXH3_64bits_update(h, bytes, n);
}

/* Adds the dimensions of the parts, in the order of the first saved states: each kind's first description. */
static void add_parts(XXH3_state_t *h, const struct config *c)
{
    const struct gqa_config *g = &config_first(c, PART_ATTENTION)->gqa;
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    const struct latent_config *m = &config_first(c, PART_LATENT)->latent;
    const struct rope_config *r = &c->ropes[0];
    const uint32_t counts[] = {g->n_heads + m->n_heads,
                               g->n_kv_heads,
                               g->head_dim,
                               r->dim,
                               d->n_k_heads,
                               d->n_v_heads,
                               d->k_head_dim,
                               d->v_head_dim,
                               d->conv_kernel,
                               m->q_lora_rank,
                               m->kv_lora_rank,
                               m->nope_dim,
                               m->rope_dim,
                               m->v_dim,
                               c->n_experts,
                               c->top_k,
                               c->moe_inner,
                               c->shared_inner,
                               c->first_dense,
                               c->moe_freq,
                               config_first(c, PART_DENSE)->dense.inner,
                               c->router.n_groups,
                               c->router.keep_groups,
                               c->router.norm,
                               m->interleaved,
                               r->yarn,
                               r->truncate};
    add(h, counts, sizeof counts);
}

/* Adds the dimensions of a model with several streams: of these, of its indexer and its n-gram tables. */
static void add_streams(XXH3_state_t *h, const struct config *c)
{
    const struct index_config *x = &config_first(c, PART_ATTENTION)->gqa.index;
    const struct ngram_config *n = &config_first(c, PART_NGRAMS)->ngrams;
    const uint32_t counts[] = {c->streams.n,
                               c->streams.rank,
                               x->n_heads,
                               x->dim,
                               x->ratio,
                               x->budget,
                               n->inner,
                               n->taps,
                               n->table.size,
                               n->table.heads,
                               n->table.base,
                               n->table.divisor,
                               n->table.end_of_text,
                               (uint32_t)n->table.seed,
                               config_first(c, PART_DELTA_NET)->delta.sigmoid};
    add(h, counts, sizeof counts);
    if (!c->streams.rank) {
        add(h, &c->streams.iterations, sizeof c->streams.iterations);
        add(h, &c->streams.floor, sizeof c->streams.floor);
    }
    if (n->given.n_rows) {
        add(h, n->given.multipliers, sizeof n->given.multipliers);
        add(h, n->given.rows, sizeof n->given.rows);
        add(h, n->given.first, sizeof n->given.first);
    }
    if (n->table.n_words)
        add(h, &n->table.n_words, sizeof n->table.n_words);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t has_table = c->layers[i].n_blocks > 2;
        add(h, &has_table, sizeof has_table);
    }
}

/* Adds what models with a decay for each key channel have. */
static void add_channels(XXH3_state_t *h, const struct config *c)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    const uint32_t options[] = {d->by_channel, d->gate_rank, d->sigmoid,
                                config_first(c, PART_LATENT)->latent.gated, c->ropes[0].none};
    add(h, options, sizeof options);
    add(h, &d->lower, sizeof d->lower);
}

/* Adds what models with SiTU have. */
static void add_situ(XXH3_state_t *h, const struct config *c)
{
    const float factors[] = {c->situ_beta, c->situ_linear};
    const uint32_t options[] = {c->streams.block, c->latent_normed,
                                config_first(c, PART_DELTA_NET)->delta.z_full,
                                config_first(c, PART_LATENT)->latent.gates_channels};
    add(h, factors, sizeof factors);
    add(h, options, sizeof options);
}

/* Adds the layers whose experts' activations are clamped. */
static void add_clamps(XXH3_state_t *h, const struct config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const float clamps[] = {(float)i, c->layers[i].clamp, c->layers[i].shared_clamp};
        if (clamps[1] > 0 || clamps[2] > 0)
            add(h, clamps, sizeof clamps);
    }
    if (c->clamps_inputs)
        add(h, &c->clamps_inputs, sizeof c->clamps_inputs);
}

/* Adds what a model with norms after its parts has: every kind of attention and its table of angles, and what
 * is done to the embedding. */
static void add_posts(XXH3_state_t *h, const struct config *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct gqa_config *g = &c->parts[i].gqa;
        if (c->parts[i].kind != PART_ATTENTION)
            continue;
        const struct rope_config *r = &c->ropes[g->rope];
        const uint32_t counts[] = {g->n_kv_heads,      g->head_dim, g->norms_values,
                                   g->keys_are_values, r->dim,      r->n_pairs};
        const double constants[] = {(double)g->scale, r->theta, r->factor};
        add(h, counts, sizeof counts);
        add(h, constants, sizeof constants);
    }
    add(h, &c->embed_factor, sizeof c->embed_factor);
}

/* Adds every kind of compressed attention and its table of angles, how streams are mixed, and which layers
 * route by token. */
static void add_compressed(XXH3_state_t *h, const struct config *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct compressed_config *a = &c->parts[i].compressed;
        const struct index_config *x = &a->index;
        if (c->parts[i].kind != PART_COMPRESSED)
            continue;
        const struct rope_config *r = &c->ropes[a->rope];
        const uint32_t counts[] = {a->n_heads, a->head_dim, a->rope_dim, a->q_lora_rank, a->window,
                                   a->ratio,   a->overlaps, a->out_rank, a->out_groups,  x->n_heads,
                                   x->dim,     x->budget,   r->yarn,     r->truncate};
        const double constants[] = {r->theta,     r->factor,    r->original_context,
                                    r->beta_fast, r->beta_slow, r->attention_factor};
        const uint32_t shared[] = {a->borrows, a->norms_heads, x->ratio, x->blocks, x->block_rows, x->finds};
        add(h, counts, sizeof counts);
        add(h, constants, sizeof constants);
        if (a->projects_keys)
            add(h, shared, sizeof shared);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct config_layer *y = &c->layers[i];
        const uint32_t parts[] = {y->blocks[0].part, y->blocks[1].part};
        add(h, parts, sizeof parts);
    }
}

static void add_mamba(XXH3_state_t *h, const struct mamba_config *m)
{
    const uint32_t counts[] = {m->n_heads,   m->n_groups,    m->head_dim,
                               m->state_dim, m->conv_kernel, m->conv_biased};
    const float bounds[] = {m->low, m->high};
    add(h, counts, sizeof counts);
    add(h, bounds, sizeof bounds);
}

/* Adds the indexer of latent attention. */
static void add_token_index(XXH3_state_t *h, const struct index_config *x)
{
    const uint32_t counts[] = {x->n_heads,    x->dim,      x->ratio,      x->budget,
                               x->rotary_dim, x->weighted, x->layer_norm, x->interleaved};
    if (x->n_heads)
        add(h, counts, sizeof counts);
}

/* Adds what some kinds of grouped-query attention have: lists of key heads, values of another size, gates of
 * heads; and then every kind and its table of angles. */
static void add_kinds(XXH3_state_t *h, const struct config *c)
{
    bool has_some = false;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct gqa_config *g = &c->parts[i].gqa;
        has_some |= c->parts[i].kind == PART_ATTENTION &&
                    (g->index.by_head || g->value_dim > 0 || g->value_scale > 0 || g->head_gated);
    }
    for (uint32_t i = 0; has_some && i < c->n_parts; i++) {
        const struct gqa_config *g = &c->parts[i].gqa;
        const struct index_config *x = &g->index;
        if (c->parts[i].kind != PART_ATTENTION)
            continue;
        const struct rope_config *r = &c->ropes[g->rope];
        const uint32_t counts[] = {g->n_heads,    g->n_kv_heads, g->head_dim, g->value_dim, g->window,
                                   g->head_gated, g->sinks,      x->n_heads,  x->dim,       x->ratio,
                                   x->budget,     x->by_head,    r->dim,      r->n_divisors};
        add(h, counts, sizeof counts);
        add(h, &g->value_scale, sizeof g->value_scale);
        add(h, &r->theta, sizeof r->theta);
        add(h, r->divisors, r->n_divisors * sizeof *r->divisors);
    }
}

/* Adds what the layers have: mixers, windows, and whose choice they use. */
static void add_layers(XXH3_state_t *h, const struct config *c)
{
    uint32_t window = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        window = (uint32_t)size_max(window, config_window(c, i));
    if (window)
        add(h, &window, sizeof window);
    if (config_first(c, PART_DELTA_NET)->delta.tiled)
        add(h, &config_first(c, PART_DELTA_NET)->delta.tiled, sizeof(bool));
    if (config_first(c, PART_DELTA_NET)->delta.by_channel)
        add_channels(h, c);
    if (c->swiglu_limit > 0)
        add(h, &c->swiglu_limit, sizeof c->swiglu_limit);
    if (c->situ_beta > 0)
        add_situ(h, c);
    add_clamps(h, c);
    add_token_index(h, &config_first(c, PART_LATENT)->latent.index);
    add_kinds(h, c);
    if (config_first(c, PART_COMPRESSED)->kind == PART_COMPRESSED)
        add_compressed(h, c);
    if (c->moe_latent)
        add(h, &c->moe_latent, sizeof c->moe_latent);
    if (config_first(c, PART_MAMBA)->kind == PART_MAMBA)
        add_mamba(h, &config_first(c, PART_MAMBA)->mamba);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t kind = (uint32_t)config_mixer(c, i)->kind | (uint32_t)(config_window(c, i) > 0) << 8 |
                        (uint32_t)config_shares_choice(c, i) << 9;
        add(h, &kind, sizeof kind);
    }
}

/* Adds the dimensions and constants that states depend on. The EOS ids and the longest context are left
 * out: a user may change them. */
static void add_config(XXH3_state_t *h, const struct config *c)
{
    const uint32_t counts[] = {c->family->id, c->hidden, c->n_layers, c->vocab_size, c->tied};
    const struct rope_config *r = &c->ropes[0];
    const double constants[] = {(double)c->rms_eps,
                                (double)c->router.scale,
                                r->theta,
                                r->factor,
                                r->original_context,
                                r->beta_fast,
                                r->beta_slow,
                                r->mscale,
                                r->mscale_all_dim,
                                r->attention_factor};
    add(h, counts, sizeof counts);
    add_parts(h, c);
    if (c->streams.n)
        add_streams(h, c);
    add(h, constants, sizeof constants);
    if (config_has_posts(c))
        add_posts(h, c);
    if (c->expert_share > 0)
        add(h, &c->expert_share, sizeof c->expert_share);
    add_layers(h, c);
}

/* Adds a format, except the oldest ones: so models with only those keep their fingerprint and saved
 * states. */
static void add_format(XXH3_state_t *h, uint32_t format)
{
    if (format != FORMAT_NONE && format > FORMAT_F32)
        add(h, &format, sizeof format);
}

/* Whether a tensor is sampled. Not A_log, which the packed layout may store wider. Routed experts are sampled
 * as experts, since layouts name them differently. */
static bool is_sampled(const char *name)
{
    const char *dot = strrchr(name, '.');
    return !expert_tensors_has(name) && !(dot && !strcmp(dot, ".A_log"));
}

static int add_tensor(XXH3_state_t *h, const struct model_dir *d, const struct tensor *t,
                      struct moeflux_err *e)
{
    uint8_t sample[SAMPLE];
    uint64_t n = size_min(t->bytes, SAMPLE);
    const uint64_t from[] = {0, (t->bytes - n) / 2 & ~(uint64_t)3, t->bytes - n};
    add(h, t->name, strlen(t->name) + 1);
    add(h, &t->bytes, sizeof t->bytes);
    add_format(h, t->format);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof from / sizeof *from; i++) {
        rc = model_dir_read(d, t, from[i], n, sample, e);
        if (rc == 0)
            add(h, sample, n);
    }
    return rc;
}

/* Adds bytes of an expert from offset `at` of its slot, as many as a projection of this format has scales, or
 * numbers if it has no scales. */
static int add_expert_part(XXH3_state_t *h, const struct model_dir *d, uint32_t layer, uint32_t expert,
                           uint32_t format, uint64_t at, struct moeflux_err *e)
{
    uint8_t sample[EXPERT_SAMPLE];
    const uint64_t weights = (uint64_t)d->config.moe_inner * config_expert_hidden(&d->config);
    const struct format *f = format_of(format);
    uint64_t all = f->scale_bytes ? format_scale_bytes(f, weights) : format_code_bytes(f, weights);
    uint64_t n = size_min(all, sizeof sample);
    int rc = model_dir_read_expert(d, layer, expert, at, n, sample, e);
    if (rc == 0)
        add(h, sample, n);
    return rc;
}

/* Formats without scales are sampled at their weights. */
static uint64_t sampled_at(uint32_t format, uint64_t weights, uint64_t scales)
{
    return format_of(format)->scale_bytes ? scales : weights;
}

static int add_expert(XXH3_state_t *h, const struct model_dir *d, uint32_t layer, uint32_t expert,
                      struct moeflux_err *e)
{
    const struct expert_layout *y = &d->experts[layer];
    const struct expert_formats *f = &y->formats;
    const struct {
        uint32_t format;
        uint64_t at;
    } parts[] = {{f->gate, sampled_at(f->gate, y->gate_w, y->gate_s)},
                 {f->up, sampled_at(f->up, y->up_w, y->up_s)},
                 {f->down, sampled_at(f->down, y->down_w, y->down_s)},
                 {f->down, y->down_w}};
    const size_t n = format_of(f->down)->scale_bytes ? 4 : 3; /* the third and the fourth may be the same */
    int rc = 0;
    if (f->gate != f->up)
        add_format(h, f->gate);
    add_format(h, f->up);
    add_format(h, f->down);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_expert_part(h, d, layer, expert, parts[i].format, parts[i].at, e);
    return rc;
}

static int add_model(XXH3_state_t *h, const struct model_dir *d, float margin, struct moeflux_err *e)
{
    int rc = 0;
    add_config(h, &d->config);
    if (margin > 0)
        add(h, &margin, sizeof margin);
    for (size_t i = 0; rc == 0 && i < d->n_tensors; i++)
        if (is_sampled(d->tensors[i].name))
            rc = add_tensor(h, d, &d->tensors[i], e);
    for (uint32_t i = 0; rc == 0 && i < d->config.n_layers; i++)
        if (config_has_experts(&d->config, i))
            rc = add_expert(h, d, i, 0, e);
    for (uint32_t i = 0; rc == 0 && i < d->config.n_layers; i++)
        if (config_has_experts(&d->config, i))
            rc = add_expert(h, d, i, d->config.n_experts - 1, e);
    return rc;
}

static int compute(const struct moeflux_model *m, uint64_t *out, struct moeflux_err *e)
{
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return err_set(e, ERR_MEMORY, "out of memory for a checksum");
    XXH3_64bits_reset(h);
    int rc = add_model(h, &m->dir, m->prefer.margin, e);
    *out = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return rc;
}

/* Threads that call it at the same time each compute the same value. */
int moeflux_model_fingerprint(struct moeflux_model *m, uint64_t *out, struct moeflux_err *e)
{
    int null = err_need(e, "model", m, "place of the fingerprint", out);
    if (null)
        return null;
    pthread_mutex_lock(&m->lock);
    bool is_known = m->has_fingerprint;
    *out = m->fingerprint;
    pthread_mutex_unlock(&m->lock);
    int rc = is_known ? 0 : compute(m, out, e);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&m->lock);
    m->has_fingerprint = true;
    m->fingerprint = *out;
    pthread_mutex_unlock(&m->lock);
    return 0;
}
