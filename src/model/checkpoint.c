#include "model/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/str.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/fused.h"
#include "model/names.h"
#include "model/nvfp4.h"
#include "model/packed.h"
#include "model/quant_config.h"
#include "model/safetensors.h"
#include "model/stacks.h"
#include "model/tensor.h"

/* Gives a .weight the mode, bits and group of its entry in the table. */
static int adopt_entry(struct tensor *t, const struct quant_config *q, struct moeflux_err *e)
{
    struct quant_entry entry;
    char *tail = t->name + strlen(t->name) - strlen(".weight");
    *tail = '\0';
    int said = quant_config_matrix(q, t->name, &entry, e);
    *tail = '.';
    if (said < 0)
        return said;
    bool is_quantised = t->dtype == DTYPE_U32;
    if (is_quantised ? said == QUANT_SAID_PLAIN : said == QUANT_SAID_ENTRY)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is %s, but the quantization table has %s", q->where,
                       t->name, tensor_dtype_name(t->dtype),
                       is_quantised ? "false, not quantised" : "bits for it");
    if (is_quantised) {
        t->mode = entry.mode;
        t->bits = entry.bits;
        t->group = entry.group;
    }
    return 0;
}

/* Gives `t` its canonical name and declared bits. *keep is false if it is not part of the text model. */
static int adopt_tensor(struct tensor *t, const struct config *c, const struct quant_config *q, bool *keep,
                        struct moeflux_err *e)
{
    char *name;
    int rc = c->drafts ? drafter_name(c, t->name, &name, e)
                       : names_canonical(t->name, c->n_layers, c->family->bare_names, &name, e);
    *keep = name != NULL;
    if (rc < 0 || !name)
        return rc;
    rc = names_rename(&name, c->family->renamed, e);
    if (rc == 0 && str_ends_with(t->name, ".weight"))
        rc = adopt_entry(t, q, e);
    free(t->name);
    t->name = name;
    return rc;
}

static int adopt_tensors(struct tensor_list *l, struct model_dir *m, const struct quant_config *q,
                         struct moeflux_err *e)
{
    const struct config *c = &m->config;
    size_t kept = 0;
    int rc = 0;
    for (size_t i = 0; i < l->n && rc == 0; i++) {
        bool keep;
        rc = adopt_tensor(&l->items[i], c, q, &keep, e);
        if (keep || rc < 0) {
            struct tensor other = l->items[kept];
            l->items[kept++] = l->items[i];
            l->items[i] = other;
        }
    }
    if (rc < 0)
        return rc;
    for (size_t i = kept; i < l->n; i++) {
        const char *name = l->items[i].name;
        m->n_left_out +=
            !str_ends_with(name, "rotary_emb.inv_freq") && !(m->has_drafter && drafter_takes(c, name));
        free(l->items[i].name);
    }
    l->n = kept;
    return 0;
}

/* Returns whether a tensor's name has a part that only files of Hugging Face have. */
static bool has_published_name(const struct tensor_list *l, const char *part)
{
    size_t i = 0;
    while (part && i < l->n && !strstr(l->items[i].name, part))
        i++;
    return part && i < l->n;
}

/* Returns whether a convolution is [C, 1, taps]. */
static bool has_published_convolution(const struct tensor *t, size_t n)
{
    size_t i = 0;
    while (i < n &&
           !(str_ends_with(t[i].name, ".conv1d.weight") && t[i].n_dims == 3 && tensor_cols(&t[i]) != 1))
        i++;
    return i < n;
}

/* Returns whether the files have a layer of multi-token prediction that can be used. */
static bool has_drafter(const struct config *c, const struct tensor_list *l)
{
    uint32_t found = 0;
    for (size_t i = 0; i < l->n; i++)
        found |= drafter_part(c, l->items[i].name);
    return found == DRAFTER_PARTS;
}

/* Leaves the numbers of padded decays out that belong to no head. */
static void cut_decays(struct tensor_list *l, const struct config *c)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    for (size_t i = 0; c->family->pads_decays && i < l->n; i++) {
        struct tensor *t = &l->items[i];
        uint64_t n = t->n_dims == 1 ? t->shape[0] : 0;
        if (n == 0 || n != d->k_head_dim || n < d->n_v_heads || !str_ends_with(t->name, ".A_log"))
            continue;
        t->bytes = t->bytes / n * d->n_v_heads;
        t->shape[0] = d->n_v_heads;
    }
}

int checkpoint_open(struct model_dir *m, const struct quant_config *q, struct moeflux_err *e)
{
    struct safetensors s;
    const struct family *f = m->config.family;
    int rc = safetensors_open(&s, m->path, e);
    bool is_published = rc == 0 && has_published_name(&s.tensors, f->published_part);
    /* The drafter has no convolution, which tells otherwise. */
    is_published |= rc == 0 && m->is_drafter && has_published_convolution(s.tensors.items, s.tensors.n);
    m->has_drafter = rc == 0 && has_drafter(&m->config, &s.tensors);
    if (rc == 0)
        rc = adopt_tensors(&s.tensors, m, q, e);
    if (rc == 0 && m->is_drafter)
        rc = drafter_split(&s.tensors, m->path, e);
    if (rc == 0 && q->is_packed)
        rc = packed_adopt(&s.tensors, q->expert_format, m->path, e);
    if (rc == 0)
        rc = nvfp4_adopt(&s.tensors, s.files, m->path, e);
    if (rc == 0)
        rc = fused_split(&s.tensors, m->config.family->fused, &m->config, q->fp8.rows, m->path, e);
    if (rc == 0)
        cut_decays(&s.tensors, &m->config);
    if (rc == 0)
        rc = stacks_split_fp8(&s.tensors, e);
    if (rc == 0 && m->config.family->adopt)
        rc = m->config.family->adopt(&s.tensors, m->path, e);
    if (rc == 0)
        rc = tensor_list_sort(&s.tensors, m->path, e);
    if (rc < 0) {
        safetensors_close(&s);
        return rc;
    }
    m->files = s.files;
    m->n_files = s.n_files;
    m->tensors = s.tensors.items;
    m->n_tensors = s.tensors.n;
    m->norms_less_one =
        f->mlx_norms_less_one || (f->norms_less_one && (is_published || checkpoint_is_hugging_face(m)));
    return 0;
}

bool checkpoint_is_hugging_face(const struct model_dir *m)
{
    return has_published_convolution(m->tensors, m->n_tensors);
}

bool checkpoint_is_less_one(const struct model_dir *m, const char *name)
{
    static const char *const tails[] = {".input_layernorm.weight",   ".post_attention_layernorm.weight",
                                        ".self_attn.q_norm.weight",  ".self_attn.k_norm.weight",
                                        ".q_layernorm.weight",       ".k_layernorm.weight",
                                        ".norm_key.weight",          ".norm_query.weight",
                                        ".norm_conv.weight",         ".hc_norm.weight",
                                        ".last_norm.weight",         ".pre_fc_norm_embedding.weight",
                                        ".pre_fc_norm_hidden.weight"};
    if (!m->norms_less_one)
        return false;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (str_ends_with(name, tails[i]))
            return true;
    return !strcmp(name, "model.norm.weight");
}
