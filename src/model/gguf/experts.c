#include "model/gguf/experts.h"

#include <stdio.h>

#include "base/err.h"
#include "base/format.h"
#include "model/expert_places.h"
#include "model/model.h"
#include "model/model_dir_find.h"
#include "model/tensor.h"

/* A projection of all experts: rows [first, first + rows) of each block of a tensor. */
struct stack {
    const struct tensor *tensor;
    uint64_t first, rows;
};

static const char *const tails[] = {"gate_proj", "up_proj", "down_proj"};

static uint32_t format_of_stack(const struct stack *s)
{
    const struct tensor *t = s->tensor;
    return t->dtype == DTYPE_F32    ? FORMAT_F32
           : t->dtype == DTYPE_F16  ? FORMAT_F16
           : t->dtype == DTYPE_BF16 ? FORMAT_BF16
                                    : t->format;
}

static int check_shape(const struct model_dir *m, const struct tensor *t, uint64_t rows, uint64_t cols,
                       struct moeflux_err *e)
{
    struct tensor wanted = {.n_dims = 3, .shape = {m->config.n_experts, rows, cols}};
    char found[TENSOR_SHAPE_TEXT], expected[TENSOR_SHAPE_TEXT];
    bool same = t->n_dims == 3;
    for (uint32_t i = 0; same && i < 3; i++)
        same = t->shape[i] == wanted.shape[i];
    if (same)
        return 0;
    tensor_shape_text(t, found);
    tensor_shape_text(&wanted, expected);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s, expected %s", m->files[t->file].path, t->name,
                   found, expected);
}

/* Finds projection i: a tensor of its own, or for gate and up half the rows of one that has both. */
static int find_stack(const struct model_dir *m, uint32_t layer, uint32_t i, struct stack *out,
                      struct moeflux_err *e)
{
    const struct config *c = &m->config;
    bool is_down = i == 2;
    uint64_t rows = is_down ? c->hidden : c->moe_inner, cols = is_down ? c->moe_inner : c->hidden;
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s.weight", layer, tails[i]);
    *out = (struct stack){model_dir_find(m, name), 0, rows};
    if (out->tensor)
        return check_shape(m, out->tensor, rows, cols, e);
    char both[96];
    snprintf(both, sizeof both, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    *out = (struct stack){is_down ? NULL : model_dir_find(m, both), i * rows, rows};
    if (!out->tensor)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is missing", m->path, name);
    return check_shape(m, out->tensor, 2 * rows, cols, e);
}

static int place_layer(struct model_dir *m, uint32_t layer, struct moeflux_err *e)
{
    struct stack stacks[3];
    struct expert_place *place = &m->places[layer];
    int rc = 0;
    for (uint32_t i = 0; i < 3 && rc == 0; i++)
        rc = find_stack(m, layer, i, &stacks[i], e);
    if (rc < 0)
        return rc;
    const struct expert_formats formats = {format_of_stack(&stacks[0]), format_of_stack(&stacks[1]),
                                           format_of_stack(&stacks[2])};
    rc = expert_places_lay_out(m, layer, &formats, e);
    if (rc < 0)
        return rc;
    const struct expert_layout *l = &m->experts[layer];
    const uint64_t at[] = {l->gate_w, l->up_w, l->down_w};
    for (uint32_t i = 0; i < 3; i++) {
        const struct tensor *t = stacks[i].tensor;
        uint64_t stride = t->bytes / m->config.n_experts, row_bytes = stride / t->shape[1];
        place->runs[i] = (struct expert_run){t->file, t->off + stacks[i].first * row_bytes, stride,
                                             stacks[i].rows * row_bytes, at[i]};
        m->expert_bytes += m->config.n_experts * stacks[i].rows * row_bytes;
    }
    place->n_runs = 3;
    place->n_parts = 1;
    return 0;
}

int gguf_experts_place(struct model_dir *m, struct moeflux_err *e)
{
    int rc = expert_places_begin(m, e);
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++)
        if (config_has_experts(&m->config, i))
            rc = place_layer(m, i, e);
    return rc;
}
