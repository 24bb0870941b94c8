#include "model/expert_tensors.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/str.h"
#include "model/family.h"
#include "model/fp8.h"
#include "model/model_dir_find.h"
#include "model/tensor.h"

static const char *const projections[] = {
    [EXPERT_GATE] = "gate_proj", [EXPERT_UP] = "up_proj", [EXPERT_DOWN] = "down_proj"};

enum { NAME = 160 };

const char *expert_tensors_proj(enum expert_proj proj)
{
    return projections[proj];
}

bool expert_tensors_has(const char *name)
{
    return strstr(name, ".mlp.switch_mlp.") || strstr(name, ".mlp.experts.");
}

/* Tries the forms in turn: a fused stack [E, 2 I, H] (gate above up) with down's [E, H, I], a stack [E, rows,
 * cols], a tensor of one expert. */
static struct expert_tensor find(const struct model_dir *m, uint32_t layer, uint32_t expert,
                                 enum expert_proj proj)
{
    char name[NAME];
    uint64_t n = m->config.n_experts;
    bool down = proj == EXPERT_DOWN;
    const struct tensor *t;
    snprintf(name, sizeof name, "model.layers.%u.mlp.%s.%s", layer,
             m->config.family->experts_by_columns ? "switch_mlp" : "experts",
             down ? "down_proj" : "gate_up_proj");
    if ((t = model_dir_find(m, name)))
        return down ? (struct expert_tensor){t, expert, n}
                    : (struct expert_tensor){t, 2ull * expert + proj, 2 * n};
    snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s.weight", layer, projections[proj]);
    if ((t = model_dir_find(m, name)))
        return (struct expert_tensor){t, expert, n};
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", layer, expert, projections[proj]);
    return (struct expert_tensor){model_dir_find(m, name), 0, 1};
}

bool expert_tensors_by_columns(const struct model_dir *m, const struct tensor *t)
{
    return m->config.family->experts_by_columns && !str_ends_with(t->name, ".weight");
}

static int check_dtype(const struct model_dir *m, const struct tensor *t, struct moeflux_err *e)
{
    bool has_codes = t->dtype == DTYPE_U32 && t->format != FORMAT_NONE;
    if (tensor_is_float(t->dtype) || t->dtype == DTYPE_F8_E4M3 || t->dtype == DTYPE_BLOCKS || has_codes)
        return 0;
    return tensor_fail_dtype(t,
                             t->dtype == DTYPE_U8
                                 ? "NVFP4 with a tensor for each expert, BF16, F16, F32 or F8_E4M3"
                                 : "BF16, F16, F32 or F8_E4M3",
                             m->files[t->file].path, e);
}

static int check(const struct model_dir *m, const struct expert_tensor *x, uint64_t rows, uint64_t cols,
                 struct moeflux_err *e)
{
    const struct tensor *t = x->t, *scales;
    uint64_t n = m->config.n_experts;
    int rc = check_dtype(m, t, e);
    if (rc < 0)
        return rc;
    struct tensor wanted = {.n_dims = 2, .shape = {rows, cols}};
    if (x->of > 1)
        wanted = (struct tensor){.n_dims = 3, .shape = {n, rows * (x->of / n), cols}};
    if (expert_tensors_by_columns(m, t))
        wanted = (struct tensor){.n_dims = 3, .shape = {n, cols, rows * (x->of / n)}};
    if (t->dtype == DTYPE_U32)
        wanted.shape[wanted.n_dims - 1] = cols * t->bits / 32;
    bool same = t->n_dims == wanted.n_dims;
    for (uint32_t i = 0; same && i < t->n_dims; i++)
        same = t->shape[i] == wanted.shape[i];
    if (same)
        return t->dtype == DTYPE_F8_E4M3 ? fp8_scales(m, t, &scales, e) : 0;
    char found[TENSOR_SHAPE_TEXT], expected[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    tensor_shape_text(&wanted, expected);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s, expected %s", m->files[t->file].path,
                   tensor_label(t), found, expected);
}

int expert_tensors_find(const struct model_dir *m, uint32_t layer, uint32_t expert, enum expert_proj proj,
                        struct expert_tensor *out, struct moeflux_err *e)
{
    const struct config *c = &m->config;
    uint64_t hidden = config_expert_hidden(c), rows = proj == EXPERT_DOWN ? hidden : c->moe_inner;
    uint64_t cols = proj == EXPERT_DOWN ? c->moe_inner : hidden;
    *out = find(m, layer, expert, proj);
    if (!out->t)
        return err_set(e, ERR_FORMAT, "%s: layer %u expert %u: no tensor with its %s", m->path, layer, expert,
                       projections[proj]);
    return check(m, out, rows, cols, e);
}

const struct tensor *expert_tensors_part(const struct model_dir *m, const struct tensor *weight,
                                         const char *tail)
{
    return model_dir_find_like(m, weight->name, strlen("weight"), tail);
}
