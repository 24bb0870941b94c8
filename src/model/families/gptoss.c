/* gpt-oss: grouped-query attention with sinks and biases, and with a window in every other layer; experts
 * with biases and a clamped activation, a router with biases, no shared expert. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/names.h"
#include "model/tensor.h"

static const char WINDOW[] = "sliding_attention", FULL[] = "full_attention";

/* Reads which layers have a window. Without layer_types every other layer has one, beginning with the
 * first. */
static int read_layers(struct config *c, struct json_view *v)
{
    const json_t *types = json_view_array(v, "layer_types");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const char *type = types ? json_string_value(json_array_get(types, i)) : i % 2 ? FULL : WINDOW;
        if (!type || (strcmp(type, WINDOW) != 0 && strcmp(type, FULL) != 0))
            return err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%u] is %s, expected %s or %s", v->where, i,
                           type ? type : "missing", WINDOW, FULL);
        c->layers[i] = (struct config_layer){MIXER_ATTENTION, true, !strcmp(type, WINDOW)};
    }
    return v->rc;
}

/* Checks that the biases of all experts can be counted in 32 bits. */
static int check_biases(const struct config *c, const struct json_view *v)
{
    uint64_t most = c->hidden > 2 * c->moe_inner ? c->hidden : 2 * c->moe_inner;
    if (most * c->n_experts <= UINT32_MAX)
        return 0;
    return err_set(v->e, ERR_UNSUPPORTED, "%s: biases of %u experts of %u and %u rows, expected fewer",
                   v->where, c->n_experts, c->moe_inner, c->hidden);
}

static int read(struct config *c, struct json_view *v)
{
    /* Older exports have another name for num_experts_per_tok. */
    bool is_older = !json_view_get(v, "num_experts_per_tok") && json_view_get(v, "experts_per_token");
    c->n_experts = json_view_u32(v, "num_local_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k =
        json_view_u32(v, is_older ? "experts_per_token" : "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->norm_topk = c->attn_biased = c->attn_out_biased = c->attn_sinks = c->experts_biased = true;
    c->attn_window = json_view_u32(v, "sliding_window", 1, UINT32_MAX);
    c->swiglu_limit = (float)json_view_real_or(v, "swiglu_limit", 7, 1e-3, 1e6);
    int rc = v->rc < 0 ? v->rc : config_expect(v, "attention_bias", true);
    if (rc == 0)
        rc = read_layers(c, v);
    if (rc == 0)
        rc = check_biases(c, v);
    if (rc == 0)
        rc = config_read_attention(c, v, 1);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

/* --- experts as they were published --- */

/* A stack [n_experts][rows]: gate and up rows interleaved, beginning with gate, or down's rows. */
static const struct stack {
    const char *tail, *names[2];
    uint32_t n_dims;
} stacks[] = {
    {".gate_up_proj_blocks", {".gate_proj.weight", ".up_proj.weight"}, 4},
    {".gate_up_proj_scales", {".gate_proj.scales", ".up_proj.scales"}, 3},
    {".gate_up_proj_bias", {".gate_proj.bias", ".up_proj.bias"}, 2},
    {".down_proj_blocks", {".down_proj.weight", NULL}, 4},
    {".down_proj_scales", {".down_proj.scales", NULL}, 3},
    {".down_proj_bias", {".down_proj.bias", NULL}, 2},
};
enum { N_STACKS = sizeof stacks / sizeof *stacks, BLOCK_BYTES = 16, BLOCK_COLS = 32 };

static int check_stack(const struct tensor *t, const struct stack *s, const char *where,
                       struct moeflux_err *e)
{
    char found[TENSOR_SHAPE_TEXT];
    uint32_t n_parts = s->names[1] ? 2 : 1;
    bool is_block = s->n_dims == 4;
    bool ok = t->n_dims == s->n_dims && t->bytes > 0 && t->shape[1] % n_parts == 0 &&
              (s->n_dims == 2 || t->dtype == DTYPE_U8) && (!is_block || t->shape[3] == BLOCK_BYTES);
    tensor_shape_text(t, found);
    return ok ? 0
              : err_set(e, ERR_FORMAT, "%s: tensor %s: %s %s, expected %s of %u dimensions", where, t->name,
                        tensor_dtype_name(t->dtype), found,
                        is_block         ? "U8, blocks of 16 bytes"
                        : s->n_dims == 3 ? "U8"
                                         : "numbers",
                        s->n_dims);
}

/* Takes the gate rows (part 0), the up rows (part 1), or all rows of down. */
static int take_rows(const struct tensor *whole, const struct stack *s, uint32_t part, struct tensor *out,
                     struct moeflux_err *e)
{
    uint64_t n_parts = s->names[1] ? 2 : 1, n_rows = whole->shape[0] * whole->shape[1],
             row_bytes = whole->bytes / n_rows;
    size_t stem = strlen(whole->name) - strlen(s->tail);
    *out = *whole;
    out->shape[1] /= n_parts;
    out->bytes /= n_parts;
    if (s->n_dims == 4) { /* MLX has the same bytes as words */
        out->dtype = DTYPE_U32;
        out->n_dims = 3;
        out->shape[2] *= BLOCK_BYTES / sizeof(uint32_t);
        out->mode = QUANT_MXFP4;
        out->bits = 4;
        out->group = BLOCK_COLS;
    }
    if (n_parts == 2)
        out->pieces = (struct tensor_pieces){1, 2 * row_bytes, n_rows / 2, {{part * row_bytes, row_bytes}}};
    out->name = names_replace_end(whole->name, strlen(whole->name) - stem, s->names[part], e);
    return out->name ? 0 : ERR_MEMORY;
}

static int split_stack(struct tensor_list *l, size_t at, const struct stack *s, const char *where,
                       struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    int rc = check_stack(&whole, s, where, e);
    for (uint32_t i = 0; rc == 0 && i < 2 && s->names[i]; i++) {
        struct tensor part;
        rc = take_rows(&whole, s, i, &part, e);
        if (rc == 0 && i > 0)
            rc = tensor_list_add(l, &part, e);
        else if (rc == 0)
            l->items[at] = part;
    }
    if (l->items[at].name != whole.name)
        free(whole.name);
    return rc;
}

static int adopt(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* up rows are appended after these */
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        for (int k = 0; k < N_STACKS; k++)
            if (names_ends_with(l->items[i].name, stacks[k].tail)) {
                rc = split_stack(l, i, &stacks[k], where, e);
                break;
            }
    return rc;
}

static const char *const renamed[][2] = {
    {".mlp.router.", ".mlp.gate."}, {".mlp.experts.", ".mlp.switch_mlp."}, {0}};

const struct family family_gptoss = {
    .name = "gpt-oss",
    .id = 7,
    .types = {"gpt_oss"},
    .read = read,
    .inner_key = "intermediate_size",
    .renamed = renamed,
    .router_bias = "gate.bias",
    .adopt = adopt,
    .experts_by_columns = true,
    .mlx_prefix = "",
    .gate_bits = 8,
};
