#include "model/drafter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/family.h"
#include "model/tensor.h"

#define FC "model.mtp.fc."

/* Names of the layer's tensors: how they begin in files, in canonical form. NULL: a copy of a tensor of the
 * model, left out. */
struct renaming {
    const char *theirs, *ours;
};

/* The names of a form, after what all of them begin with; the first one that fits counts. */
static const struct renaming mtp[] = {{"layers.0.", "model.layers.0."},
                                      {"norm.", "model.norm."},
                                      {"hyper_connection_mixer.", "model.hyper_connection_mixer."},
                                      {"", "model.mtp."},
                                      {NULL}};
static const struct renaming nextn[] = {{"eh_proj.", "model.mtp.fc."},
                                        {"enorm.", "model.mtp.pre_fc_norm_embedding."},
                                        {"hnorm.", "model.mtp.pre_fc_norm_hidden."},
                                        {"shared_head.norm.", "model.norm."},
                                        {"transformer.shared_head.norm.", "model.norm."},
                                        {"transformer.shared_head.output.", NULL},
                                        {"pre_mlp_layernorm.", "model.layers.0.post_attention_layernorm."},
                                        {"final_layernorm.", "model.norm."},
                                        {"shared_head.head.", NULL},
                                        {"embed_tokens.", NULL},
                                        {"", "model.layers.0."},
                                        {NULL}};
static const struct renaming stages[] = {{"e_proj.", "model.mtp.fc_embedding."},
                                         {"h_proj.", "model.mtp.fc_hidden."},
                                         {"enorm.", "model.mtp.pre_fc_norm_embedding."},
                                         {"hnorm.", "model.mtp.pre_fc_norm_hidden."},
                                         {"norm.", "model.norm."},
                                         {"hc_head_", "model.hc_head_"},
                                         {"emb.", NULL},
                                         {"head.", NULL},
                                         {"", "model.layers.0."},
                                         {NULL}};
static const struct form {
    const struct renaming *names;
    const char *start; /* start of all names; NULL: "layers.N.", N being the number of the model's layers */
    const char *join;  /* the matrix that every layer has */
} forms[] = {[DRAFTER_AS_MTP] = {mtp, "mtp.", "fc."},
             [DRAFTER_AS_MTP_OF_STREAMS] = {mtp, "mtp.", "fc_embedding."},
             [DRAFTER_AS_NEXTN] = {nextn, NULL, "eh_proj."},
             [DRAFTER_AS_MTP_NEXTN] = {nextn, "mtp.layers.0.", "eh_proj."},
             [DRAFTER_AS_STAGES] = {stages, "mtp.0.", "e_proj."}};

bool drafter_is_known(const struct family *f)
{
    return f->drafter != DRAFTER_NONE && f->drafter != DRAFTER_UNPUBLISHED;
}

/* Returns whether a layer of the model has the parts that the drafter's layer has. */
static bool is_like(const struct config *c, uint32_t layer)
{
    return config_has_experts(c, layer) && config_mixer(c, layer)->kind != PART_DELTA_NET &&
           !config_shares_choice(c, layer);
}

int drafter_config(struct config *c, const char *where, struct moeflux_err *e)
{
    uint32_t like = c->n_layers;
    while (like > 0 && !is_like(c, like - 1))
        like--;
    if (like > 0 && c->drafter.n_blocks == 0)
        c->drafter = c->layers[like - 1];
    if (c->family->drafter == DRAFTER_UNPUBLISHED)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s has no layer of multi-token prediction: its weights are not published", where,
                       c->family->name);
    if (!drafter_is_known(c->family) || c->drafter.n_blocks == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: no layer of multi-token prediction of %s is supported", where,
                       c->family->name);
    c->layers[0] = c->drafter;
    if (!c->drafter.blocks[0].mix)
        c->streams = (struct streams_config){0};
    c->drafts_as = c->n_layers;
    c->n_layers = 1;
    c->drafts = true;
    return 0;
}

/* Returns the name without what checkpoints have before the text model's names. */
static const char *bare(const char *name)
{
    static const char *const prefixes[] = {"language_model.", "model.", "language_model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const char *rest = str_after(name, prefixes[i]);
        name = rest ? rest : name;
    }
    return name;
}

/* Returns the name of one of the layer's tensors after what all of them begin with; NULL: it is another
 * tensor's. */
static const char *in_layer(const struct config *c, const char *name)
{
    char layer[32];
    const struct form *f = &forms[c->family->drafter];
    snprintf(layer, sizeof layer, "layers.%u.", c->drafts ? c->drafts_as : c->n_layers);
    return drafter_is_known(c->family) ? str_after(name, f->start ? f->start : layer) : NULL;
}

/* Finds the first renaming that fits a name; *rest is what follows. NULL: none does. */
static const struct renaming *find_renaming(const struct renaming *r, const char *name, const char **rest)
{
    *rest = NULL;
    while (r->theirs && !(*rest = str_after(name, r->theirs)))
        r++;
    return r->theirs ? r : NULL;
}

uint32_t drafter_part(const struct config *c, const char *source)
{
    static const struct {
        const char *start;
        uint32_t bits;
    } parts[] = {{FC, 3},
                 {DRAFTER_EMBEDDING_FC ".", 1},
                 {DRAFTER_HIDDEN_FC ".", 2},
                 {"model.mtp.pre_fc_norm_embedding.", 4},
                 {"model.mtp.pre_fc_norm_hidden.", 8},
                 {"model.norm.", 16},
                 {"model.hyper_connection_mixer.", 16}};
    char ours[64] = "";
    const char *rest = NULL, *own = in_layer(c, bare(source));
    const struct renaming *r = own ? find_renaming(forms[c->family->drafter].names, own, &rest) : NULL;
    uint32_t i = 0, n = sizeof parts / sizeof *parts;
    if (r && r->ours)
        snprintf(ours, sizeof ours, "%s%.40s", r->ours, rest);
    while (i < n && !str_after(ours, parts[i].start))
        i++;
    return i < n ? parts[i].bits : 0;
}

bool drafter_takes(const struct config *c, const char *source)
{
    return in_layer(c, bare(source)) != NULL;
}

const char *drafter_label(const struct config *c, char out[DRAFTER_LABEL])
{
    const struct form *f = &forms[c->family->drafter];
    if (f->start)
        snprintf(out, DRAFTER_LABEL, "%s%sweight", f->start, f->join);
    else
        snprintf(out, DRAFTER_LABEL, "model.layers.%u.%sweight", c->drafts ? c->drafts_as : c->n_layers,
                 f->join);
    return out;
}

int drafter_name(const struct config *c, const char *source, char **out, struct moeflux_err *e)
{
    static const struct renaming shared[] = {{"norm.", "model.mtp.last_norm."},
                                             {"embed_tokens.", "model.embed_tokens."},
                                             {"word_embeddings.", "model.embed_tokens."},
                                             {"embed.", "model.embed_tokens."},
                                             {"head.", "lm_head."},
                                             {"lm_head.", "lm_head."},
                                             {NULL}};
    const char *name = bare(source), *own = in_layer(c, name), *rest;
    *out = NULL;
    if (!own && str_after(name, "norm.") && !drafter_has_last_norm(c))
        return 0;
    const struct renaming *r =
        find_renaming(own ? forms[c->family->drafter].names : shared, own ? own : name, &rest);
    if (!r || !r->ours)
        return 0;
    size_t n = strlen(r->ours) + strlen(rest) + 1;
    *out = mem_new(n, 1, e);
    if (!*out)
        return ERR_MEMORY;
    snprintf(*out, n, "%s%s", r->ours, rest);
    return 0;
}

bool drafter_shares(const char *name)
{
    return str_after(name, "model.embed_tokens") || str_after(name, "lm_head");
}

/* Describes one half of the columns of `whole`. */
static int take_half(const struct tensor *whole, uint32_t half, struct tensor *out, struct moeflux_err *e)
{
    char name[80];
    uint64_t rows = whole->shape[0], row = whole->bytes / rows;
    snprintf(name, sizeof name, "%s.%s", half ? DRAFTER_HIDDEN_FC : DRAFTER_EMBEDDING_FC,
             whole->name + strlen(FC));
    *out = *whole;
    out->pieces = (struct tensor_pieces){1, row, rows, {{half * (row / 2), row / 2}}};
    out->shape[1] /= 2;
    out->bytes /= 2;
    return tensor_set_name(out, name, whole->source, e);
}

static int split(struct tensor_list *l, size_t at, const char *where, struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    struct tensor halves[2];
    bool has_halves =
        whole.pieces.n_runs == 0 && whole.of_blocks == TENSOR_NO_BLOCKS && whole.n_dims == 2 &&
        whole.shape[0] > 0 && whole.shape[1] % 2 == 0 && whole.bytes / whole.shape[0] % 2 == 0 &&
        strlen(whole.name) < 40 &&
        (whole.dtype != DTYPE_BLOCKS || format_takes_cols(format_of(whole.format), whole.shape[1] / 2));
    if (!has_halves)
        return err_set(e, ERR_FORMAT, "%s: tensor %s has %" PRIu64 " columns, expected two matrices' columns",
                       where, tensor_label(&whole), whole.n_dims == 2 ? whole.shape[1] : 0);
    int rc = take_half(&whole, 0, &halves[0], e);
    if (rc < 0)
        return rc;
    l->items[at] = halves[0];
    rc = take_half(&whole, 1, &halves[1], e);
    free(whole.name);
    return rc < 0 ? rc : tensor_list_add(l, &halves[1], e);
}

int drafter_split(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* halves are appended after these */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (str_after(l->items[i].name, FC))
            rc = split(l, i, where, e);
    return rc;
}
